"""Network on a CPU, in fp32 or int8; used by `backend.py`."""

import contextlib
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastapi_pt.network import CHANNELS_LAST, Normalise, folded, read_network
from serving.backends.shared_choice import shared_choice
from serving.errors import ConfigurationError
from serving.model import Kind, Model
from serving.settings import Settings

INT8: Kind = "model_quantized.pt"
ENGINE = "onednn"  # of int8 on x86; fbgemm was slower
PLAIN, LAYOUTS = "plain", "layouts"
FORM = "traced-form"


class CpuNetwork:
    """Network that computes images or normalised tensors in batches of any size."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        scratch: Path | None,
        precision: str = "fp32",
        form: str | None = None,
    ) -> None:
        """Loads the file of `precision`; `form` is that of fp32, None: the faster one.

        Raises ConfigurationError.
        """
        self._threads = settings.intra_op_threads
        torch.set_num_threads(self._threads)
        self._normalise = Normalise(model.description.pipeline)
        if precision == "int8":
            self._network = read_int8(model.file(INT8))
        else:
            network = folded(read_network(model)).to(**CHANNELS_LAST)
            self._network = optimised(network, model.description.pipeline.output_size, scratch, form)

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images [N, H, W, 3]."""
        with torch.inference_mode():
            return self._logits(self._normalise(torch.from_numpy(batch)))

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]; NaN for one not finite."""
        with torch.inference_mode():
            images = torch.from_numpy(batch).contiguous(**CHANNELS_LAST)
            logits = self._logits(images)
            is_finite = images.abs().sum((1, 2, 3)).isfinite().numpy()
        logits[~is_finite] = np.nan  # oneDNN's ReLU and int8 make a number of NaN, and so a class of it
        return logits

    def _logits(self, tensors: Tensor) -> NDArray[np.float32]:
        if torch.get_num_threads() != self._threads:  # the number is the process's, not the network's
            torch.set_num_threads(self._threads)
        logits: NDArray[np.float32] = self._network(tensors).numpy()
        return logits


def read_int8(path: Path) -> nn.Module:
    """Reads what `training.int8_pt` has written. Raises ConfigurationError."""
    try:
        torch.backends.quantized.engine = ENGINE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript's age
            network: nn.Module = torch.jit.load(path, map_location="cpu")
    except Exception as error:  # RuntimeError, ValueError, pickle's errors
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"{path} cannot be loaded: {reason}") from error
    return network


def optimised(
    network: nn.Module, size: tuple[int, int], scratch: Path | None, form: str | None = None
) -> nn.Module:
    """Traces and freezes the network in a form, or with oneDNN's memory layouts if they are faster.

    The layouts are faster for thin networks such as MobileNetV2 and slower for thick ones such as
    ResNet-18. The first instance tries both forms and chooses for all instances, because the forms'
    answers differ in the last digits. `torch.compile` was no faster and needs a compiler.
    """
    example = torch.zeros(1, 3, *size).contiguous(**CHANNELS_LAST)
    forms: dict[str, nn.Module] = {}

    def choose() -> tuple[str, str]:
        forms[PLAIN] = traced(network, example, PLAIN)
        seconds = {PLAIN: least_seconds(forms[PLAIN], example)}
        with contextlib.suppress(RuntimeError):  # oneDNN lacks some pooling: AlexNet's at 256 pixels
            forms[LAYOUTS] = traced(network, example, LAYOUTS)
            seconds[LAYOUTS] = least_seconds(forms[LAYOUTS], example)
        return min(seconds, key=seconds.__getitem__), "the faster form"

    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of fixed sizes and of its age
        form = form or shared_choice(scratch, FORM, choose)[0]
        return forms.get(form) or traced(network, example, form)


def traced(network: nn.Module, example: Tensor, form: str) -> nn.Module:
    """Returns the PLAIN or LAYOUTS form of a network, traced and frozen."""
    frozen = torch.jit.freeze(torch.jit.trace(network, example))
    return frozen if form == PLAIN else torch.jit.optimize_for_inference(frozen)


def least_seconds(run: nn.Module, example: Tensor) -> float:
    """Returns the time of the fastest of ten calls, after three to warm up.

    Makes fewer calls for a large network: those that fit into a second, at least one.
    """
    for _ in range(3):
        run(example)
    times: list[float] = []
    while not times or (len(times) < 10 and sum(times) < 1):
        started = time.perf_counter()
        run(example)
        times.append(time.perf_counter() - started)
    return min(times)

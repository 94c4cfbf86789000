"""Network on a CPU, in fp32 or int8; used by `backend.py` and `tokens.py`."""

import contextlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastapi_pt.network import CHANNELS_LAST, Normalise, served_network
from smallplates.errors import ConfigurationError
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.worker.shared_choice import shared_choice

INT8: Kind = "model_quantized.pt"
ENGINE = "onednn"  # of int8 on x86; fbgemm was slower
PLAIN, LAYOUTS, EAGER = "plain", "layouts", "eager"
FORM = "traced-form"
TOLERANCE = 1e-3
"""Of a traced form's outputs, absolute and relative."""

Inputs = tuple[Tensor, ...]


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
        """Loads the file of `precision`; `form` is that of fp32 and bf16, None: the faster one.

        Raises ConfigurationError.
        """
        self._threads = settings.threads
        torch.set_num_threads(self._threads)
        self._normalise = Normalise(model.description.pipeline)
        self._dtype = torch.float32
        if precision == "int8":
            self._network = read_int8(model.file(INT8))
        else:
            size = model.description.pipeline.output_size
            single = torch.zeros(1, 3, *size)
            several = torch.rand(3, 3, *size, generator=torch.Generator().manual_seed(0))
            if precision == "bf16":
                self._dtype = torch.bfloat16
                form = PLAIN  # the forms' answers differ by more than is tolerated
            examples = [(images.to(self._dtype, **CHANNELS_LAST),) for images in (single, several)]
            network = served_network(model).to(dtype=self._dtype, **CHANNELS_LAST)
            self._network = optimise(network, examples, scratch, form)

    def infer(self, batch: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Those of a normalised image that is not finite are NaN.
        """
        use_threads(self._threads)
        images = torch.from_numpy(batch)
        is_normalised = batch.dtype != np.uint8
        with torch.inference_mode():
            tensors = images.contiguous(**CHANNELS_LAST) if is_normalised else self._normalise(images)
            logits: NDArray[np.float32] = self._network(tensors.to(self._dtype)).float().numpy()
            if is_normalised:  # oneDNN's ReLU and int8 make a number of NaN, and so a class of it
                logits[~tensors.abs().sum((1, 2, 3)).isfinite().numpy()] = np.nan
        return logits


def use_threads(count: int) -> None:
    """Sets the number of threads, which is the process's and not the network's."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def read_int8(path: Path) -> nn.Module:
    """Reads what `smallplates.export.int8_pt` has written. Raises ConfigurationError."""
    try:
        torch.backends.quantized.engine = ENGINE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript's age
            network: nn.Module = torch.jit.load(path, map_location="cpu")
    except Exception as error:  # RuntimeError, ValueError, pickle's errors
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"{path} cannot be loaded: {reason}") from error
    return network


def optimise(
    network: nn.Module, examples: Sequence[Inputs], scratch: Path | None, form: str | None = None
) -> nn.Module:
    """Traces and freezes the network in a form, or with oneDNN's memory layouts if they are faster.

    The layouts are faster for thin networks such as MobileNetV2 and slower for thick ones such as
    ResNet-18. The first instance tries both forms and chooses for all instances, because the forms'
    answers differ in the last digits. `torch.compile` was no faster and needs a compiler.

    The first of `examples` is traced and timed. A form that does not answer all of them, which are of
    several sizes, as the network does is not taken: tracing fixes sizes with which Python computes.
    """
    forms: dict[str, nn.Module] = {EAGER: network}

    def choose() -> tuple[str, str]:
        expected = [network(*example) for example in examples]
        seconds = {}
        for name in (PLAIN, LAYOUTS):
            with contextlib.suppress(Exception):  # oneDNN lacks some pooling: AlexNet's at 256 pixels
                run = trace(network, examples[0], name)
                actual = [run(*example) for example in examples]
                torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
                forms[name], seconds[name] = run, least_seconds(run, examples[0])
        if not seconds:
            return EAGER, "the traced forms do not answer as the network does"
        return min(seconds, key=seconds.__getitem__), "the faster form"

    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of fixed sizes and of its age
        form = form or shared_choice(scratch, FORM, choose)[0]
        return forms.get(form) or trace(network, examples[0], form)


def trace(network: nn.Module, example: Inputs, form: str) -> nn.Module:
    """Returns the PLAIN or LAYOUTS form of a network, traced and frozen."""
    frozen = torch.jit.freeze(torch.jit.trace(network, example, check_trace=False))
    return frozen if form == PLAIN else torch.jit.optimize_for_inference(frozen)


def least_seconds(run: nn.Module, example: Inputs) -> float:
    """Returns the time of the fastest of ten calls, after three to warm up.

    Makes fewer calls for a large network: those that fit into a second, at least one.
    """
    for _ in range(3):
        run(*example)
    times: list[float] = []
    while not times or (len(times) < 10 and sum(times) < 1):
        started = time.perf_counter()
        run(*example)
        times.append(time.perf_counter() - started)
    return min(times)

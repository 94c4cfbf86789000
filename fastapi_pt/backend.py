"""PyTorch backend, on the CPU or a CUDA GPU; the engine's workers load and call it."""

import contextlib
import copy
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from fastapi_pt.cuda import CudaNetwork
from fastapi_pt.network import Network, build, fill
from serving.backends import precision_check
from serving.backends.base import BackendInfo
from serving.backends.device_errors import translate_errors
from serving.errors import ConfigurationError
from serving.model import ImagePipeline, Model
from serving.settings import Settings

PLAIN, LAYOUTS = FORMS = ("plain", "layouts")
CHOICE = "traced-form"
CHANNELS_LAST: Any = {"memory_format": torch.channels_last}  # unknown to torch's own stub


class Normalise(nn.Module):
    """Normalises uint8 images [N, H, W, 3] to float32 [N, 3, H, W]."""

    def __init__(self, pipeline: ImagePipeline) -> None:
        super().__init__()
        mean, std = torch.tensor(pipeline.mean), torch.tensor(pipeline.std)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", (1 / (255 * std)).view(1, 3, 1, 1))
        self.register_buffer("shift", (-mean / std).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Computes (pixel / 255 - mean) / std; the result is channels-last in memory."""
        return pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift


class TorchBackend:
    """Backend with one network on a CPU, or `CudaNetwork` on a GPU."""

    def __init__(self) -> None:
        self._normalise: nn.Module | None = None
        self._network: nn.Module | None = None
        self._cuda: CudaNetwork | None = None
        self._threads = 1

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads `model.safetensors`. Raises ConfigurationError, also for `device=cuda` without CUDA."""
        self._threads = settings.intra_op_threads
        device, fallback = choose_device(settings.device, *settings.devices[:1])
        if device.type == "cpu" and settings.precision == "fp16":
            raise ConfigurationError("SERVING_PRECISION=fp16 needs a GPU")
        network = read_network(model, model.file("model.safetensors"))
        network.body = fuse(network.body)
        normalise, precision = Normalise(model.description.image), "fp32"
        if device.type == "cuda":
            precision = self._load_on_gpu(network, normalise, device, model, settings)
        else:
            torch.set_num_threads(self._threads)
            network = network.to(**CHANNELS_LAST).eval()
            self._normalise = normalise
            self._network = optimised_for_cpu(network, model.description.image.output_size, scratch)
        return BackendInfo(
            backend=f"torch {torch.__version__}",
            device=str(device),
            execution_provider=device.type,
            precision=precision,
            fallback=fallback,
        )

    def _load_on_gpu(
        self,
        network: nn.Module,
        normalise: nn.Module,
        device: torch.device,
        model: Model,
        settings: Settings,
    ) -> str:
        """Makes `CudaNetwork`; returns its precision.

        Raises ConfigurationError and OutOfDeviceMemoryError.
        """
        torch.cuda.set_per_process_memory_fraction(settings.gpu_memory_fraction, device)
        torch.backends.cudnn.benchmark = True  # plans are made at warm-up, and used for ever
        torch.backends.cudnn.allow_tf32 = False  # fp32 means full precision
        size, classes = model.description.image.output_size, len(model.labels)
        with translate_errors():
            network = network.to(device, **CHANNELS_LAST).eval()
            normalise = normalise.to(device)
            half = None
            if settings.precision != "fp32":
                half = in_half(network, normalise, size, insist=settings.precision == "fp16")
            self._cuda = CudaNetwork(
                half or network, normalise, size, classes, graphs=settings.cuda_graphs
            )
        return "fp16" if half else "fp32"

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images [N, H, W, 3]."""
        if self._cuda is not None:
            return self._cuda.infer(batch)
        assert self._normalise is not None  # noqa: S101 load comes first
        with torch.inference_mode():
            return self._logits(self._normalise(torch.from_numpy(batch)))

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]."""
        if self._cuda is not None:
            return self._cuda.infer_tensor(batch)
        with torch.inference_mode():
            photos = torch.from_numpy(batch).contiguous(**CHANNELS_LAST)
            logits = self._logits(photos)
            is_finite = photos.abs().sum((1, 2, 3)).isfinite().numpy()
        logits[~is_finite] = np.nan  # oneDNN's ReLU makes 0 of NaN, and so a class of it
        return logits

    def attach(self, slots: NDArray[np.uint8]) -> bool:
        """Makes the slots readable by the GPU; see `SlotReader`. Returns False on a CPU."""
        return self._cuda is not None and self._cuda.attach(slots)

    def fetch(self, indices: list[int], size: int, place: int) -> Callable[[], NDArray[np.float32]]:
        """Starts to copy slots to the GPU; see `SlotReader`."""
        assert self._cuda is not None  # noqa: S101 attach comes first
        return self._cuda.fetch(indices, size, place)

    def _logits(self, tensors: Tensor) -> NDArray[np.float32]:
        assert self._network is not None  # noqa: S101 load comes first
        if torch.get_num_threads() != self._threads:  # the number is the process's, not the network's
            torch.set_num_threads(self._threads)
        logits: NDArray[np.float32] = self._network(tensors).numpy()
        return logits

    def trim(self) -> None:
        """Empties PyTorch's cache of GPU memory; a CPU has none."""
        if self._cuda is not None:
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Drops the network and frees the GPU's memory."""
        self._normalise = self._network = None
        if self._cuda is not None:
            self._cuda.close()
            self._cuda = None
            torch.cuda.empty_cache()


def choose_device(wanted: str, index: int = 0) -> tuple[torch.device, str | None]:
    """Returns the device, and why `auto` fell back to the CPU, else None.

    Raises ConfigurationError if `cuda` cannot be used.
    """
    if wanted == "cpu":
        return torch.device("cpu"), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a broken driver is reported below, in words
        usable = torch.cuda.is_available()
    if torch.version.cuda is None:
        reason = "this torch is built without CUDA"
    elif not usable:
        reason = f"torch is built for CUDA {torch.version.cuda} but finds no usable GPU or driver"
    else:
        try:
            device = torch.device("cuda", index)
            torch.ones(1, device=device).add(1).cpu()
            return device, None
        except RuntimeError as error:  # no such GPU, too old for this torch, or full
            reason = str(error)
    if wanted == "cuda":
        raise ConfigurationError(f"CUDA cannot be used: {reason}")
    return torch.device("cpu"), reason


def in_half(
    network: nn.Module, normalise: nn.Module, size: tuple[int, int], insist: bool
) -> nn.Module | None:
    """Returns a copy in fp16, or None if its answers differ too much from `network`'s.

    Raises ConfigurationError instead of None if `insist` is set.
    """
    half = copy.deepcopy(network).half()
    with torch.inference_mode():
        device = next(network.parameters()).device
        tensors = normalise(torch.from_numpy(precision_check.sample_images(size)).to(device))
        expected, found = network(tensors).cpu().numpy(), half(tensors.half()).float().cpu().numpy()
    return half if precision_check.is_accurate(expected, found, insist) else None


def read_network(model: Model, path: Path) -> Network:
    """Builds the described architecture with a safetensors file's weights, float32, in eval mode.

    Raises ConfigurationError.
    """
    description = model.description
    network = build(description.architecture, len(description.labels), description.body_size)
    try:
        fill(network, load_file(path))
    except (SafetensorError, ConfigurationError) as error:
        raise ConfigurationError(f"{path} does not fit {description.architecture}: {error}") from error
    network.eval()
    return network


def optimised_for_cpu(network: nn.Module, size: tuple[int, int], scratch: Path | None) -> nn.Module:
    """Traces and freezes the network, with oneDNN's memory layouts if they are faster.

    The layouts are faster for thin networks such as MobileNetV2 and slower for thick ones such as
    ResNet-18. The first instance tries both forms and chooses for all instances, because the forms'
    answers differ in the last digits. `torch.compile` was no faster and needs a compiler.
    """
    example = torch.zeros(1, 3, *size).contiguous(**CHANNELS_LAST)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of fixed sizes and of its age
        if chosen := read_choice(scratch):
            return traced(network, example, chosen)
        candidates = {PLAIN: traced(network, example, PLAIN)}
        seconds = {PLAIN: least_seconds(candidates[PLAIN], example)}
        with contextlib.suppress(RuntimeError):  # oneDNN lacks some pooling: AlexNet's at 256 pixels
            candidates[LAYOUTS] = traced(network, example, LAYOUTS)
            seconds[LAYOUTS] = least_seconds(candidates[LAYOUTS], example)
        return candidates[settle_choice(scratch, min(seconds, key=seconds.__getitem__))]


def traced(network: nn.Module, example: Tensor, form: str) -> nn.Module:
    """Returns one of the FORMS of a network, traced and frozen."""
    frozen = torch.jit.freeze(torch.jit.trace(network, example))
    return frozen if form == PLAIN else torch.jit.optimize_for_inference(frozen)


def read_choice(scratch: Path | None) -> str | None:
    """Returns the form that the instances of this model have chosen; None if there is none yet."""
    with contextlib.suppress(OSError):
        if scratch and (choice := (scratch / CHOICE).read_text()) in FORMS:
            return choice
    return None


def settle_choice(scratch: Path | None, own: str) -> str:
    """Chooses a form for all instances unless one has chosen; returns the choice."""
    if scratch:
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile("w", dir=scratch) as file:
            file.write(own)
            file.flush()
            os.link(file.name, scratch / CHOICE)  # atomic; fails if there is a choice
    return read_choice(scratch) or own


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

"""Backend for ONNX files, on a CPU or a CUDA GPU; the engine's workers load and call it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from fastapi_onnx import graph_file
from fastapi_onnx.independence import with_compared_items
from fastapi_onnx.largest_items import with_larger_limits
from fastapi_onnx.network import FP32, INT8, Network, batch_note, signature_of
from fastapi_onnx.sessions import OnnxRuntimeSession
from smallplates.engine.backend import BackendInfo
from smallplates.errors import ConfigurationError, library_errors
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.worker.choice import device_for

if TYPE_CHECKING:
    from fastapi_onnx.cuda import CudaNetwork


class OnnxBackend:
    """Backend with `CudaNetwork` for images on a GPU, and `Network` otherwise."""

    def __init__(self) -> None:
        self._network: Network | CudaNetwork | None = None

    def signature(self, model: Model) -> Signature:
        """Returns how a graph is called with its own tensors. Raises ConfigurationError."""
        return signature_of(model)

    def compare_items(self, model: Model, signature: Signature) -> Iterator[Signature]:
        """See `GraphReader`; raises ConfigurationError."""
        best = signature
        for best in with_compared_items(model, signature):
            yield best
        yield from with_larger_limits(model, best)

    def weights(self, model: Model) -> Iterable[Path]:
        """See `WeightsReader`; raises ConfigurationError."""
        graphs = {model.file(kind) for kind in (FP32, INT8) if model.has(kind)}
        return graphs.union(*map(graph_file.data_files, graphs))

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the model's graph. Raises ConfigurationError, also for `device=cuda` without CUDA."""
        network, device, provider, fallback = None, "cpu", "", None
        if device_for(settings) != "cpu":
            try:
                network, device, provider = load_on_gpu(model, settings)
            except ConfigurationError as error:
                if settings.device == "cuda":
                    raise
                fallback = str(error)
        self._network = network = network or Network.on_cpu(model, settings, scratch)
        if isinstance(network, Network):
            info = network.info(device, fallback)
        else:
            library = OnnxRuntimeSession.library
            info = BackendInfo(library, device, provider, network.precision, network.reason, fallback)
        return replace(info, batch_note=batch_note(model, info.precision, scratch))

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch, see `Backend.infer`."""
        assert self._network is not None  # noqa: S101 load comes first
        if isinstance(self._network, Network):
            return self._network.infer(signature, inputs)
        return [self._network.infer(*inputs)]

    def trim(self) -> None:
        """Gives back memory that only warm-up needed; a GPU's batch sizes need all of theirs."""
        if isinstance(self._network, Network):
            self._network.trim()

    def close(self) -> None:
        """Drops the sessions, which frees the device's memory."""
        self._network = None


def load_on_gpu(model: Model, settings: Settings) -> tuple["Network | CudaNetwork", str, str]:
    """Returns the network, the device and the provider in use. Raises ConfigurationError."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise ConfigurationError(
            "CUDA cannot be used: this onnxruntime is built without CUDA; "
            "install onnxruntime-gpu[cuda,cudnn] instead"
        )
    from fastapi_onnx.cuda import CUDA, CudaNetwork, Device  # a CPU needs none of it

    path = model.file("model.onnx")
    with library_errors(f"{path} cannot be loaded on the GPU"):
        device = Device(settings)
        if kind_of(model.description.task).plain_graph:
            return Network.on_gpu(model, settings, device, CUDA), f"cuda:{device.index}", CUDA
        network = CudaNetwork(model, device, settings.precision)
        return network, f"cuda:{device.index}", CUDA

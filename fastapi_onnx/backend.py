"""ONNX Runtime backend, on the CPU or a CUDA GPU; the engine's workers load and call it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from fastapi_onnx.cpu import INT8, CpuNetwork
from fastapi_onnx.optimised import CPU
from fastapi_onnx.tensor_network import TensorNetwork, signature_of
from serving.backends.base import BackendInfo
from serving.backends.precision import Infer, chosen_precision, wanted_device
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.task_kinds import kind_of
from serving.tensors import Array, Signature

LIBRARY = f"onnxruntime {ort.__version__}"

if TYPE_CHECKING:
    from fastapi_onnx.cuda import CudaNetwork


class OnnxBackend:
    """Backend with `CpuNetwork` on a CPU, `CudaNetwork` on a GPU, `TensorNetwork` for other graphs."""

    def __init__(self) -> None:
        self._network: CpuNetwork | CudaNetwork | TensorNetwork | None = None

    def signatures(self, model: Model) -> tuple[Signature, ...]:
        """Returns how a graph is called with its own tensors. Raises ConfigurationError."""
        return (signature_of(model),)

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the model's graph. Raises ConfigurationError, also for `device=cuda` without CUDA."""
        fallback = None
        if wanted_device(settings) != "cpu":
            try:
                return self._load_on_gpu(model, settings)
            except ConfigurationError as error:
                if settings.device == "cuda":
                    raise
                fallback = str(error)

        def load(precision: str) -> Infer:
            return CpuNetwork(model, settings, None, precision).infer

        if kind_of(model.description.task).plain_graph:
            self._network = network = TensorNetwork.on_cpu(model, settings, scratch)
            precision, reason = network.precision, network.reason
        else:
            precision, reason = chosen_precision(model, INT8, settings, scratch, load)
            self._network = CpuNetwork(model, settings, scratch, precision)
        return BackendInfo(
            backend=LIBRARY,
            device="cpu",
            execution_provider=CPU,
            precision=precision,
            precision_reason=reason,
            fallback=fallback,
        )

    def _load_on_gpu(self, model: Model, settings: Settings) -> BackendInfo:
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise ConfigurationError(
                "CUDA cannot be used: this onnxruntime is built without CUDA; "
                "install onnxruntime-gpu[cuda,cudnn] instead"
            )
        from fastapi_onnx.cuda import CUDA, CudaNetwork, Device  # a CPU needs none of it

        path = model.file("model.onnx")
        try:
            device = Device(settings)
            network: CudaNetwork | TensorNetwork
            if kind_of(model.description.task).plain_graph:
                network = TensorNetwork.on_gpu(model, settings, device)
            else:
                network = CudaNetwork(model, device, settings.precision)
            self._network = network
        except ConfigurationError:
            raise
        except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
            raise ConfigurationError(f"{path} cannot be loaded on the GPU: {error}") from error
        return BackendInfo(
            backend=LIBRARY,
            device=f"cuda:{device.index}",
            execution_provider=CUDA if isinstance(network, TensorNetwork) else device.provider,
            precision=network.precision,
            precision_reason=network.reason,
        )

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch, see `Backend.infer`."""
        assert self._network is not None  # noqa: S101 load comes first
        if isinstance(self._network, TensorNetwork):
            return self._network.infer(signature, inputs)
        infer = self._network.infer if signature.normalises else self._network.infer_tensor
        return [infer(*inputs)]

    def trim(self) -> None:
        """Gives back memory that only warm-up needed; a GPU's batch sizes need all of theirs."""
        if isinstance(self._network, CpuNetwork | TensorNetwork):
            self._network.trim()

    def close(self) -> None:
        """Drops the sessions, which frees the device's memory."""
        self._network = None

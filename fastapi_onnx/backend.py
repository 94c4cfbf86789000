"""ONNX Runtime backend, on the CPU or a CUDA GPU; the engine's workers load and call it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx.graph import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.optimised import CPU, optimised
from serving.backends.base import BackendInfo
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.model import Model
from serving.settings import Settings

if TYPE_CHECKING:
    from fastapi_onnx.cuda import CudaNetwork


class OnnxBackend:
    """Backend with one session on a CPU, or `CudaNetwork` on a GPU."""

    def __init__(self) -> None:
        self._session: ort.InferenceSession | None = None
        self._cuda: CudaNetwork | None = None
        self._no_pixels: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._no_tensor: NDArray[np.float32] = np.empty(0, np.float32)

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads `model.onnx`. Raises ConfigurationError, also for `device=cuda` without CUDA."""
        fallback = None
        if settings.device != "cpu":
            try:
                return self._load_on_gpu(model, settings)
            except ConfigurationError as error:
                if settings.device == "cuda":
                    raise
                fallback = str(error)
        if settings.precision == "fp16":
            raise ConfigurationError("SERVING_PRECISION=fp16 needs a GPU")
        self._load_on_cpu(model, settings, scratch)
        return BackendInfo(f"onnxruntime {ort.__version__}", "cpu", CPU, "fp32", fallback)

    def _load_on_gpu(self, model: Model, settings: Settings) -> BackendInfo:
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise ConfigurationError(
                "CUDA cannot be used: this onnxruntime is built without CUDA; "
                "install onnxruntime-gpu[cuda,cudnn] instead"
            )
        from fastapi_onnx.cuda import CudaNetwork, Device  # a CPU needs none of it

        path = model.file("model.onnx")
        try:
            device = Device(settings)
            self._cuda = CudaNetwork(model, device, settings.precision)
        except ConfigurationError:
            raise
        except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
            raise ConfigurationError(f"{path} cannot be loaded on the GPU: {error}") from error
        return BackendInfo(
            backend=f"onnxruntime {ort.__version__}",
            device=f"cuda:{device.index}",
            execution_provider=device.provider,
            precision=self._cuda.precision,
        )

    def _load_on_cpu(self, model: Model, settings: Settings, scratch: Path | None) -> None:
        path = model.file("model.onnx")
        height, width = model.description.image.output_size
        self._no_pixels = np.empty((0, height, width, 3), np.uint8)
        self._no_tensor = np.empty((0, 3, height, width), np.float32)

        def graph() -> bytes:
            made: bytes = with_two_inputs(onnx.load(path), model.description.image).SerializeToString()
            return made

        try:
            self._session = cpu_session(graph, settings, scratch)
        except ConfigurationError:
            raise
        except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
            raise ConfigurationError(f"{path} cannot be loaded: {error}") from error

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images [N, H, W, 3]."""
        if self._cuda is not None:
            return self._cuda.infer(batch)
        return self._run(batch, self._no_tensor)

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]."""
        if self._cuda is not None:
            return self._cuda.infer_tensor(batch)
        return self._run(self._no_pixels, batch)

    def _run(
        self,
        pixels: NDArray[np.uint8],
        tensor: NDArray[np.float32],
        options: ort.RunOptions | None = None,
    ) -> NDArray[np.float32]:
        """Computes the input that has elements; the other one is empty."""
        assert self._session is not None  # noqa: S101 load comes first
        inputs = {PIXELS: pixels, TENSOR: tensor}
        logits: NDArray[np.float32] = self._session.run(None, inputs, options)[0]
        return logits

    def trim(self) -> None:
        """Shrinks the CPU's memory arena to the size that a batch of one needs."""
        if self._session is None:
            return
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        one = np.zeros((1, *self._no_pixels.shape[1:]), np.uint8)
        self._run(one, self._no_tensor, options)

    def close(self) -> None:
        """Drops the sessions, which frees the device's memory."""
        self._session = self._cuda = None


def cpu_session(
    graph: Callable[[], bytes], settings: Settings, scratch: Path | None
) -> ort.InferenceSession:
    """Makes a session with weights shared through `scratch`, or with its own if that fails."""
    options = cpu_options(settings)
    path = optimised(graph, scratch) if scratch else None
    if path:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(path, options, providers=[CPU])
        except Exception as error:  # onnxruntime's types have no common base
            logger().warning("the model's shared weights cannot be used", reason=str(error))
            options = cpu_options(settings)
    return ort.InferenceSession(graph(), options, providers=[CPU])


def cpu_options(settings: Settings) -> ort.SessionOptions:
    """Returns session options: several threads spin during a computation and sleep when it is over."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = 1
    spin = settings.intra_op_threads > 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options

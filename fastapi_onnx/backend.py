"""Inference with ONNX Runtime on the CPU or a CUDA GPU; called by the engine."""

import ctypes
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx.graph import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.optimised import CPU, optimised
from serving.backend import BackendInfo
from serving.errors import ConfigurationError
from serving.logs import logger
from serving.model import Model
from serving.settings import Settings

CUDA = "CUDAExecutionProvider"


class OnnxBackend:
    """One session, shared by all threads: `InferenceSession.run` is thread-safe."""

    def __init__(self) -> None:
        self._session: ort.InferenceSession | None = None
        self._no_pixels: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._no_tensor: NDArray[np.float32] = np.empty(0, np.float32)

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads `model.onnx`. Raises ConfigurationError, with `device=cuda` also without CUDA."""
        path = model.file("model.onnx")
        height, width = model.description.image.output_size
        self._no_pixels = np.empty((0, height, width, 3), np.uint8)
        self._no_tensor = np.empty((0, 3, height, width), np.float32)
        try:
            graph = with_two_inputs(onnx.load(path), model.description.image).SerializeToString()
            fallback = self._open(graph, settings, scratch)
        except ConfigurationError:
            raise
        except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
            raise ConfigurationError(f"{path} cannot be loaded: {error}") from error
        assert self._session is not None  # noqa: S101 _open has set it
        provider = self._session.get_providers()[0]
        return BackendInfo(
            backend=f"onnxruntime {ort.__version__}",
            device=f"cuda:{gpu_index(settings)}" if provider == CUDA else "cpu",
            execution_provider=provider,
            precision="fp32",
            fallback=fallback,
        )

    def _open(self, graph: bytes, settings: Settings, scratch: Path | None) -> str | None:
        """Opens the session on the wanted device; returns why `auto` did not take the GPU."""
        if settings.device == "cpu":
            self._session = cpu_session(graph, settings, scratch)
            return None
        try:
            self._session = cuda_session(graph, settings)
        except ConfigurationError as error:
            if settings.device == "cuda":
                raise
            self._session = cpu_session(graph, settings, scratch)
            return str(error)
        return None

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB pixels [N, H, W, 3] -> logits [N, classes]."""
        return self._run(batch, self._no_tensor)

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalised photos [N, 3, H, W] -> logits [N, classes]."""
        return self._run(self._no_pixels, batch)

    def _run(
        self,
        pixels: NDArray[np.uint8],
        tensor: NDArray[np.float32],
        options: ort.RunOptions | None = None,
    ) -> NDArray[np.float32]:
        """Whichever of the two has elements is what is computed."""
        assert self._session is not None  # noqa: S101 load comes first
        inputs = {PIXELS: pixels, TENSOR: tensor}
        logits: NDArray[np.float32] = self._session.run(None, inputs, options)[0]
        return logits

    def trim(self) -> None:
        """Shrinks the CPU arena to what a batch of one needs."""
        if self._session is None or self._session.get_providers()[0] != CPU:
            return
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        one = np.zeros((1, *self._no_pixels.shape[1:]), np.uint8)
        self._run(one, self._no_tensor, options)

    def close(self) -> None:
        """Drops the session and with it the device's memory."""
        self._session = None


def cpu_session(graph: bytes, settings: Settings, scratch: Path | None) -> ort.InferenceSession:
    """A session with weights shared through `scratch`, or, where that fails, with its own."""
    options = cpu_options(settings)
    path = optimised(graph, scratch) if scratch else None
    if path:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(path, options, providers=[CPU])
        except Exception as error:  # onnxruntime's types have no common base
            logger().warning("the model's shared weights cannot be used", reason=str(error))
            options = cpu_options(settings)
    return ort.InferenceSession(graph, options, providers=[CPU])


def cpu_options(settings: Settings) -> ort.SessionOptions:
    """Several threads spin while a picture is computed, so that none waits; idle costs nothing."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = 1
    spin = settings.intra_op_threads > 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def gpu_index(settings: Settings) -> int:
    """The GPU that this worker is for."""
    return settings.devices[0] if settings.devices else 0


def gpu_memory_bytes(index: int) -> int:
    """Total memory of a GPU, from NVIDIA's driver. Raises ConfigurationError without one."""
    total, device = ctypes.c_size_t(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ConfigurationError(f"no NVIDIA driver: {error}") from error
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        raise ConfigurationError(f"the NVIDIA driver finds no GPU {index}")
    if driver.cuDeviceTotalMem_v2(ctypes.byref(total), device):
        raise ConfigurationError(f"the NVIDIA driver does not tell the memory of GPU {index}")
    return total.value


def cuda_session(graph: bytes, settings: Settings) -> ort.InferenceSession:
    """A session that runs on the GPU or not at all. Raises ConfigurationError with what is missing."""
    if CUDA not in ort.get_available_providers():
        raise ConfigurationError(
            "this onnxruntime is built without CUDA; install onnxruntime-gpu[cuda,cudnn] instead"
        )
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    index = gpu_index(settings)
    options: dict[str, str | int] = {"device_id": index, "cudnn_conv_algo_search": "HEURISTIC"}
    if settings.gpu_memory_fraction < 1:
        options["gpu_mem_limit"] = int(gpu_memory_bytes(index) * settings.gpu_memory_fraction)
    try:
        # nodes that compute shapes may stay on the CPU, where ONNX Runtime prefers them
        session = ort.InferenceSession(graph, providers=[(CUDA, options)])
    except Exception as error:  # its binding raises several types
        raise ConfigurationError(f"CUDA cannot be used: {error}") from error
    if session.get_providers()[0] != CUDA:
        raise ConfigurationError(
            "onnxruntime-gpu found no usable GPU, or not the CUDA and cuDNN libraries it needs"
        )
    session.disable_fallback()
    return session

"""Network on a GPU, with ONNX Runtime's CUDA provider; used by `backend.py`.

Every batch size has a bucket: sessions, buffers and bindings of its own. A session keeps its convolution
plans for one size only, so that a shared session would plan anew at each change; and with fixed sizes
and addresses a session can be recorded as a CUDA graph. The normalisation is a session of its own in
front of the network: images go through both sessions, tensors only through the network's.
"""

import contextlib
import ctypes
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx import gpu_graph, graph_file
from fastapi_onnx.logits import keep_logits
from fastapi_onnx.normalisation import NORMALISED, PIXELS, model_input
from fastapi_onnx.shared_weights import CPU
from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.worker import batch_sizes, cuda_driver, precision_check
from smallplates.worker.device_errors import OutOfDeviceMemoryError, classify, translate_errors
from smallplates.worker.precision_check import IMAGE

CUDA = "CUDAExecutionProvider"
LIBRARIES = ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so")
GRAPH_ID = "1"  # one graph for each session; ONNX Runtime reserves 0
FATAL = 4

Options = dict[str, str]


class Device:
    """One GPU, used as the settings say; opens sessions that never fall back to the CPU."""

    def __init__(self, settings: Settings) -> None:
        """Loads the libraries. Raises ConfigurationError that says what is missing."""
        self.index = settings.devices[0] if settings.devices else 0
        self._settings = settings
        self._memory = int(cuda_driver.total_memory(self.index) * settings.gpu_memory_fraction)
        self._sizes = batch_sizes.sizes(settings, "cuda")
        self._said = load_libraries()

    def open(self, graph: onnx.ModelProto, share: float, fp16: bool = False) -> ort.InferenceSession:
        """Opens a session with a share, from 0 to 1, of the memory; `fp16` is the graph's precision.

        Raises ConfigurationError and OutOfDeviceMemoryError.
        """
        options = gpu_options()
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options_of_cuda = self._cuda(share, self._settings.cuda_graphs, fp16)
        return self._session(graph.SerializeToString(), options, [(CUDA, options_of_cuda)])

    def open_graph(self, graph: bytes | Path) -> ort.InferenceSession:
        """Opens a session with all of the memory; the CPU computes what CUDA cannot, such as shapes.

        Raises ConfigurationError and OutOfDeviceMemoryError.
        """
        providers = [(CUDA, self._cuda(1)), (CPU, Options())]
        return self._session(graph, gpu_options(), providers)

    def _session(
        self, graph: bytes | Path, options: ort.SessionOptions, providers: list[tuple[str, Options]]
    ) -> ort.InferenceSession:
        try:
            session = ort.InferenceSession(graph, options, providers=providers, enable_fallback=0)
        except Exception as error:  # the library raises several types
            if isinstance(full := classify(str(error)), OutOfDeviceMemoryError):
                raise full from error
            raise ConfigurationError(f"CUDA cannot be used: {error}{self._loader_messages()}") from error
        if session.get_providers()[0] != CUDA:
            raise ConfigurationError(f"{CUDA} cannot be used{self._loader_messages()}")
        session.disable_fallback()
        return session

    def share(self, size: int) -> float:
        """Returns a batch size's share of the memory: half by size, half evenly, for the weights."""
        return 0.5 / len(self._sizes) + 0.5 * size / max(size, sum(self._sizes))

    def array(self, shape: tuple[int, ...], kind: Any) -> ort.OrtValue:  # a NumPy type
        """Allocates uninitialised memory on the GPU at a fixed address."""
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, "cuda", self.index)

    def _cuda(self, share: float, graphs: bool = False, fp16: bool = False) -> Options:
        options = {
            "device_id": str(self.index),
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
            # fp32 means full precision; without TF32, convolutions in fp16 get no tensor cores either
            "use_tf32": str(int(fp16)),
            # measured with MobileNetV2 on an H200: 10 to 14 % faster in fp16, 10 % slower in fp32
            "prefer_nhwc": str(int(fp16)),
            "enable_cuda_graph": str(int(graphs)),
        }
        if self._settings.gpu_memory_fraction < 1:
            options["gpu_mem_limit"] = str(int(self._memory * share))
        return options

    def _loader_messages(self) -> str:
        """Returns the libraries' own messages, to be appended to an error."""
        reasons = [self._said, unloadable()]
        return "".join(f"; {words}" for words in reasons if words)


def gpu_options() -> ort.SessionOptions:
    """Returns session options with a single thread: the GPU computes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class Bound:
    """Session whose inputs and outputs have fixed addresses on the GPU."""

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, ort.OrtValue],
        outputs: Mapping[str, ort.OrtValue],
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", GRAPH_ID)

    def run(self) -> None:
        """Computes the outputs; the first call records the CUDA graph, for the calling thread."""
        self._session.run_with_iobinding(self._binding, self._options)


@dataclass(frozen=True)
class Network:
    """Graph to compute, with its shapes."""

    graph: onnx.ModelProto  # computes float32 logits [N, classes] of float32 [N, 3, H, W]
    fp16: bool  # true if it computes in fp16 in between
    pipeline: ImagePipeline
    classes: int


class Bucket:
    """Sessions and buffers of one batch size."""

    def __init__(self, device: Device, network: Network, size: int) -> None:
        pipeline, share = network.pipeline, device.share(size)
        height, width = pipeline.output_size
        graph = gpu_graph.of_size(network.graph, size, pipeline)
        normalisation = device.open(gpu_graph.normalisation(pipeline, size), share / 4)
        session = device.open(graph, share * 3 / 4, network.fp16)
        self.pixels = device.array((size, height, width, 3), np.uint8)
        self.tensors = device.array((size, 3, height, width), np.float32)
        self._logits = device.array((size, network.classes), np.float32)
        self._normalise = Bound(normalisation, {PIXELS: self.pixels}, {NORMALISED: self.tensors})
        output = session.get_outputs()[0].name
        self._network = Bound(session, {model_input(graph).name: self.tensors}, {output: self._logits})

    def infer(self, batch: Array) -> NDArray[np.float32]:
        """Computes logits [size, classes] of images, uint8 [size, H, W, 3], or normalised ones."""
        if batch.dtype == np.uint8:
            self.pixels.update_inplace(batch)
            self._normalise.run()
        else:
            self.tensors.update_inplace(batch)
        self._network.run()
        logits: NDArray[np.float32] = self._logits.numpy().copy()  # the next batch overwrites it
        return logits


class CudaNetwork:
    """Network for batches of any size; a new size makes a bucket, which takes a while."""

    def __init__(self, model: Model, device: Device, precision: str) -> None:
        """Chooses fp16 or fp32 by `precision` of the settings. Raises ConfigurationError."""
        precision_check.check_gpu_precision(precision)
        self._device = device
        self._buckets: dict[int, Bucket] = {}
        pipeline, classes = model.description.pipeline, len(model.labels)
        made = graph_file.read(model.file("model.onnx"))
        keep_logits(made.graph)
        graph, on_cpu = gpu_graph.simplify(made)
        self.precision, self.reason = "fp32", precision_check.FORCED.format("fp32")
        if precision != "fp32":
            self._network = Network(gpu_graph.half(graph), True, pipeline, classes)
            self.precision, self.reason = precision_check.fp16_or_fp32(
                lambda inputs: [on_cpu(gpu_graph.normalise(inputs[0], pipeline))],
                lambda inputs: [np.concatenate([self.infer(image[np.newaxis]) for image in inputs[0]])],
                precision_check.samples(model, IMAGE),
                insist=precision == "fp16",
            )
            self._buckets.clear()  # the computing thread cannot use this thread's recordings
        if self.precision == "fp32":
            self._network = Network(graph, False, pipeline, classes)

    def infer(self, batch: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Raises `device_errors`.
        """
        with translate_errors(), self._bucket(len(batch)) as bucket:
            return bucket.infer(batch)

    @contextlib.contextmanager
    def _bucket(self, size: int) -> Iterator[Bucket]:
        """Yields the bucket of a size; keeps a new one only if its first batch fits into the memory."""
        bucket = self._buckets.get(size) or Bucket(self._device, self._network, size)
        yield bucket
        self._buckets[size] = bucket


def load_libraries() -> str:
    """Loads CUDA's libraries from their packages; returns messages about those that are missing."""
    ort.set_default_logger_severity(FATAL)  # it logs every plan that cuDNN does not support as an error
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    return " ".join(said.getvalue().split())


def unloadable() -> str:
    """Returns the linker's message about the first library that CUDA lacks; empty if it loads."""
    folder = Path(ort.__file__).parent / "capi"
    try:
        for library in LIBRARIES:
            ctypes.CDLL(str(folder / library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""

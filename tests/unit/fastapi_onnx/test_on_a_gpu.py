"""`fastapi_onnx.cuda`, as far as a CPU goes: the same sessions, buffers and bindings, in its memory."""

import contextlib
import ctypes
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from fastapi_onnx import cuda, gpu_graph
from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.network import Network
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import precision_check
from smallplates.worker.device_errors import OutOfDeviceMemoryError
from tests import graphs
from tests.unit.worker.test_gpu_parts import Driver


class Processor:
    """A `cuda.Device` that is none; records what is opened."""

    index = 0

    def __init__(self, _: Settings | None = None) -> None:
        self.opened: list[bool] = []

    def open(self, graph: onnx.ModelProto, share: float, fp16: bool = False) -> ort.InferenceSession:
        assert 0 < share < 1
        self.opened.append(fp16)
        return ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])

    def open_graph(self, path: Path) -> ort.InferenceSession:
        return ort.InferenceSession(path, providers=["CPUExecutionProvider"])

    def share(self, size: int) -> float:
        return size / 100

    def array(self, shape: tuple[int, ...], kind: Any) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, "cpu", 0)


@pytest.fixture(scope="module")
def expected(model: Model, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    backend = OnnxBackend()
    backend.load(model, Settings(device="cpu", precision="fp32"))
    return compute_logits(backend, pixels)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("fp16", 2e-2)])
def test_every_size_answers_as_on_the_cpu(
    model: Model,
    pixels: NDArray[np.uint8],
    expected: NDArray[np.float32],
    precision: str,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision_check, "LEAST_SAMPLES", 8)  # a CPU takes long in fp16
    device = Processor()
    network = cuda.CudaNetwork(model, device, precision)  # type: ignore[arg-type]
    assert network.precision == precision
    photos = gpu_graph.normalise(pixels, model.description.pipeline)
    for size in (4, 1, 4):
        for first in (0, 4):
            part = slice(first, first + size)
            np.testing.assert_allclose(network.infer(pixels[part]), expected[part], atol=tolerance)
            actual = network.infer(photos[part])
            np.testing.assert_allclose(actual, expected[part], atol=tolerance)
    sessions = 4 if precision == "fp32" else 6  # two for each of two sizes, and for the comparison
    assert len(device.opened) == sessions
    assert any(device.opened) == (precision == "fp16")


def test_fp16_is_only_used_where_it_agrees(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_check, "MAX_DIFFERENCE", 0.0)
    network = cuda.CudaNetwork(model, Processor(), "auto")  # type: ignore[arg-type]
    assert network.precision == "fp32"
    with pytest.raises(ConfigurationError, match="SERVING_PRECISION=fp16 cannot be used: fp16"):
        cuda.CudaNetwork(model, Processor(), "fp16")  # type: ignore[arg-type]


def test_a_size_that_does_not_fit_is_let_go(
    model: Model, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[cuda.Bucket]] = []

    class Watched(cuda.Bucket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(weakref.ref(self))

        def infer(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            if len(pixels) > 1:
                raise RuntimeError("CUDA failure 2: out of memory")
            return super().infer(pixels)

    monkeypatch.setattr(cuda, "Bucket", Watched)
    network = cuda.CudaNetwork(model, Processor(), "fp32")  # type: ignore[arg-type]
    with contextlib.suppress(OutOfDeviceMemoryError):
        network.infer(pixels[:4])
    network.infer(pixels[:1])
    network.infer(pixels[:1])
    assert [bucket() is None for bucket in made] == [True, False]


def claim_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [cuda.CUDA])


def test_a_build_with_cuda_says_that_there_is_no_driver(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_cuda(monkeypatch)

    def missing(name: str, *_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ConfigurationError, match=r"no NVIDIA driver: libcuda\.so\.1: cannot open"):
        OnnxBackend().load(model, Settings(device="cuda"))
    info = OnnxBackend().load(model, Settings(device="auto"))
    assert info.device == "cpu"
    assert info.fallback == "no NVIDIA driver: libcuda.so.1: cannot open shared object file"


def test_a_provider_that_does_not_load_is_named(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    claim_cuda(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: Driver())
    device = cuda.Device(Settings(device="cuda", gpu_memory_fraction=0.5))
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match=r"CUDA cannot be used: .*; .*\.so"):
        device.open(gpu_graph.normalisation(model.description.pipeline, 1), 0.5)


def test_fp16_means_half_precision_except_for_means_whose_sums_overflow() -> None:
    nodes = [graphs.node("Relu", "x", "large"), graphs.node("ReduceMean", "large", "mean", axes=[2, 3])]
    x, mean = graphs.value("x", axes=[1, 1, 8, 8]), graphs.value("mean", axes=[1, 1, 1, 1])
    half = gpu_graph.half(graphs.model(nodes, [x], [mean], opset=13))
    types = {node.output[0]: node for node in half.graph.node}
    (relu,) = (node for node in half.graph.node if node.op_type == "Relu")
    (reduced,) = (node for node in half.graph.node if node.op_type == "ReduceMean")
    assert types[relu.input[0]].attribute[0].i == onnx.TensorProto.FLOAT16
    assert types[reduced.input[0]].attribute[0].i == onnx.TensorProto.FLOAT
    session = ort.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    large = np.full((1, 1, 8, 8), 30_000, np.float32)
    assert session.run(None, {"x": large})[0].item() == 30_000


def test_the_memory_is_shared_out_among_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    claim_cuda(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: Driver())
    device = cuda.Device(Settings(device="cuda", gpu_memory_fraction=0.5, max_batch_size=4))
    shares = [device.share(size) for size in (1, 2, 4)]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares)


def test_a_graph_in_tensor_form_is_computed_by_a_plain_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim_cuda(monkeypatch)
    monkeypatch.setattr(cuda, "Device", Processor)
    made = Model.read(graphs.saved(graphs.two_by_two(), tmp_path / "sums"))
    backend = OnnxBackend()
    info = backend.load(made, Settings(device="cuda"))
    assert (info.device, info.execution_provider, info.precision) == ("cuda:0", cuda.CUDA, "fp32")
    signature = backend.signature(made)
    a, b = np.ones((3, 2), np.float32), np.full((3, 2), 4)
    total, more = backend.infer(signature, [a, b])
    assert np.array_equal(total, a + b)
    assert not more.any()
    for precision, said in (("int8", "int8 needs a CPU"), ("fp16", "fp16 is for image classifiers")):
        with pytest.raises(ConfigurationError, match=said):
            OnnxBackend().load(made, Settings.model_validate({"device": "cuda", "precision": precision}))


def test_a_plain_session_has_all_memory_and_no_recorded_graph(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim_cuda(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: Driver())
    device = cuda.Device(Settings(device="cuda", gpu_memory_fraction=0.5, cuda_graphs=True))
    opened: dict[str, Any] = {}

    class Session:
        def __init__(self, graph: Path, options: ort.SessionOptions, **more: Any) -> None:
            opened.update(more, graph=graph, options=options)

        def get_providers(self) -> list[str]:
            return [cuda.CUDA, "CPUExecutionProvider"]

        def disable_fallback(self) -> None:
            opened["fallback"] = False

        def run(self, *_: object) -> None:
            raise RuntimeError("CUDA failure 2: out of memory")

    monkeypatch.setattr(ort, "InferenceSession", Session)
    path = graphs.saved(graphs.two_by_two(), tmp_path / "sums") / "model.onnx"
    network = Network.on_gpu(Model.read(path.parent), Settings(), device, cuda.CUDA)
    (name, options), (other, _) = opened["providers"]
    assert (opened["graph"], name, other) == (path, cuda.CUDA, "CPUExecutionProvider")
    assert options["enable_cuda_graph"] == "0"
    assert options["gpu_mem_limit"] == str(1 << 29)
    assert opened["fallback"] is False
    with pytest.raises(RuntimeError):  # the CPU may compute what CUDA cannot, such as shapes
        opened["options"].get_session_config_entry("session.disable_cpu_ep_fallback")
    with pytest.raises(OutOfDeviceMemoryError):
        network.infer(Signature("", (), ()), [])
    network.trim()  # there is nothing to give back

"""What each backend refuses at start, and in which words."""

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
from onnx import TensorProto

from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.normalisation import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.shared_weights import FOLDER, GRAPH, WEIGHTS, optimise
from smallplates.engine.backend import Backend
from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from tests import graphs
from tests.conftest import BACKENDS, NO_GPU
from tests.graphs import node, tensors, value

PIPELINE = ImagePipeline(resize=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each package's backend, not loaded."""
    made: Backend = resolve_name(resolve_name(f"{request.param}:BACKEND"))()
    return made


@NO_GPU
def test_cuda_without_a_gpu_refuses_to_start(backend: Backend) -> None:
    settings = Settings(device="cuda")
    with pytest.raises(ConfigurationError, match="CUDA"):
        backend.load(Model.read(settings.model_dir), settings)


@NO_GPU
def test_auto_says_why_it_took_the_cpu(backend: Backend) -> None:
    settings = Settings(device="auto")
    info = backend.load(Model.read(settings.model_dir), settings)
    assert info.device == "cpu"
    assert info.fallback
    asked_for = backend.load(Model.read(settings.model_dir), Settings(device="cpu"))
    assert asked_for.fallback is None
    backend.close()


def test_a_file_that_is_no_model(backend: Backend, tmp_path: Path) -> None:
    names = ("1/model.onnx", "1/model.safetensors")
    files = {"files": dict.fromkeys(names, hashlib.sha256(b"").hexdigest())}
    description = Model.read(Settings().model_dir).description.model_copy(update=files)
    (tmp_path / "1").mkdir()
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError):
        backend.load(Model(tmp_path, description), Settings())


def graph(inputs: int = 1, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """An identity on `x0`, with this many inputs of this type."""
    axes = ("N", 3, 8, 8)
    values = [value(f"x{number}", kind, axes) for number in range(inputs)]
    return graphs.model([node("Identity", "x0", "y")], values, [value("y", kind, axes)])


def test_normalisation_moves_into_the_graph() -> None:
    onnx.checker.check_model(with_two_inputs(graph(), PIPELINE), full_check=True)


@pytest.mark.parametrize("wrong", [graph(inputs=2), graph(kind=TensorProto.UINT8)])
def test_a_graph_of_another_shape_is_refused(wrong: onnx.ModelProto) -> None:
    with pytest.raises(ConfigurationError, match="exactly one input"):
        with_two_inputs(wrong, PIPELINE)


def test_weights_among_the_inputs_and_a_fixed_batch_size_are_no_obstacle() -> None:
    x, w, y = (value(name, axes=[1, 3, 8, 8]) for name in "xwy")
    weights = tensors(w=np.ones((1, 3, 8, 8), np.float32))
    made = graphs.model([node("Add", "x w", "y")], [x, w], [y], weights, opset=13, ir_version=3)
    old = with_two_inputs(made, PIPELINE)
    session = ort.InferenceSession(old.SerializeToString(), providers=["CPUExecutionProvider"])
    photos = np.zeros((2, 3, 8, 8), np.float32)
    arrays = {PIXELS: np.empty((0, 8, 8, 3), np.uint8), TENSOR: photos}
    assert np.array_equal(session.run(None, arrays)[0], photos + 1)
    assert session.get_outputs()[0].shape[0] != 1  # ONNX Runtime would warn of every other size


def test_sessions_share_the_weights_on_disk_and_answer_as_before(tmp_path: Path) -> None:
    settings = Settings(device="cpu", cpu_runtime="onnxruntime", precision="fp32")
    model = Model.read(settings.model_dir)
    alone, first, second = OnnxBackend(), OnnxBackend(), OnnxBackend()
    alone.load(model, settings)
    first.load(model, settings, tmp_path)
    folder = tmp_path / FOLDER
    assert {file.name for file in folder.iterdir()} == {GRAPH, WEIGHTS}
    written = (folder / WEIGHTS).stat()
    second.load(model, settings.model_copy(update={"intra_op_threads": 2}), tmp_path)
    assert (folder / WEIGHTS).stat() == written
    mapped = [region.path for region in psutil.Process().memory_maps()]
    assert str(folder / WEIGHTS) in mapped
    height, width = model.description.pipeline.output_size
    pixels = np.random.default_rng(1).integers(0, 256, (2, height, width, 3), np.uint8)
    tensor = np.random.default_rng(2).normal(size=(2, 3, height, width)).astype(np.float32)
    for shared in (first, second):
        np.testing.assert_allclose(
            compute_logits(shared, pixels), compute_logits(alone, pixels), atol=1e-5
        )
        np.testing.assert_allclose(
            compute_logits(shared, tensor), compute_logits(alone, tensor), atol=1e-5
        )


def test_workers_that_start_together_make_the_optimised_graph_once(tmp_path: Path) -> None:
    model = Model.read(Settings().model_dir)
    made = with_two_inputs(onnx.load(model.file("model.onnx")), model.description.pipeline)
    makers: list[int] = []
    all_ask = threading.Barrier(4)

    def graph() -> bytes:
        makers.append(threading.get_ident())
        time.sleep(0.05)  # another one would come in meanwhile
        content: bytes = made.SerializeToString()
        return content

    def ask(_: int) -> Path | None:
        all_ask.wait()
        return optimise(graph, tmp_path)

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(ask, range(4))) == {tmp_path / FOLDER / GRAPH}
    assert len(makers) == 1


@pytest.mark.parametrize("damage", ["cut", "gone", "no folder"])
def test_a_damaged_shared_copy_is_not_used(tmp_path: Path, damage: str) -> None:
    settings = Settings(device="cpu", cpu_runtime="onnxruntime")
    model = Model.read(settings.model_dir)
    OnnxBackend().load(model, settings, tmp_path)
    folder = tmp_path / FOLDER
    if damage == "cut":
        with (folder / WEIGHTS).open("r+b") as file:
            file.truncate(1000)
    elif damage == "gone":
        (folder / WEIGHTS).unlink()
    else:
        tmp_path = tmp_path / "removed"
    backend = OnnxBackend()
    backend.load(model, settings, tmp_path)
    height, width = model.description.pipeline.output_size
    assert compute_logits(backend, np.zeros((1, height, width, 3), np.uint8)).shape == (
        1,
        len(model.labels),
    )

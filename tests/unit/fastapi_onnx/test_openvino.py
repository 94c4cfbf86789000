"""OpenVINO as the runtime of `fastapi_onnx`: the same answers as ONNX Runtime, or ONNX Runtime's."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks import text_model
from fastapi_onnx import network, openvino_session
from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.openvino_session import OPENVINO, OpenVinoSession
from smallplates.engine.backend import BackendInfo
from smallplates.errors import ConfigurationError
from smallplates.models.comparison import probabilities
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import ROOT, Settings
from smallplates.system.cpus import bf16_objection
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import choice, precision_check
from tests import graphs

pytest.importorskip("openvino")
WITH_BF16 = pytest.mark.skipif(bool(bf16_objection()), reason="no instructions for bf16")


def loaded(
    model: Model, scratch: Path | None = None, **settings: Any
) -> tuple[OnnxBackend, BackendInfo]:
    """Returns a backend on the CPU, by default in OpenVINO's fp32."""
    backend = OnnxBackend()
    values = {"device": "cpu", "cpu_runtime": OPENVINO, "precision": "fp32"} | settings
    return backend, backend.load(model, Settings.model_validate(values), scratch)


def computed(made: onnx.ModelProto, folder: Path, runtime: str, *inputs: Array) -> Sequence[Array]:
    model = Model.read(graphs.saved(made, folder))
    backend, info = loaded(model, cpu_runtime=runtime)
    assert info.backend.startswith(runtime)
    signature = backend.signature(model)
    return backend.infer(signature, inputs)


def index_limits(made: onnx.ModelProto) -> dict[str, int]:
    core = openvino_session.import_openvino().Core()
    return openvino_session.index_limits(core.read_model(made.SerializeToString()))


@pytest.mark.parametrize(
    ("precision", "most"), [("fp32", 1e-4), pytest.param("bf16", 0.02, marks=WITH_BF16), ("int8", 0.03)]
)
def test_images_and_normalised_images_are_computed_as_by_onnx_runtime(
    precision: str, most: float
) -> None:
    model = Model.read(Settings().model_dir)
    pixels = precision_check.sample_images((224, 224))
    tensors = np.random.default_rng(2).normal(size=(3, 3, 224, 224)).astype(np.float32)
    backend, info = loaded(model, precision=precision)
    assert (info.backend.partition(" ")[0], info.precision) == (OPENVINO, precision)
    exact, _ = loaded(model, cpu_runtime="onnxruntime", precision=precision.replace("bf16", "fp32"))
    for batch in (pixels, pixels[:1], tensors):
        expected, found = compute_logits(exact, batch), compute_logits(backend, batch)
        assert probabilities(expected, found).mean < most
    tensors[1, 0, 0, 0] = np.nan
    assert np.isfinite(compute_logits(backend, tensors)).all(axis=1).tolist() == [True, False, True]


def test_outputs_of_one_call_are_not_changed_by_the_next() -> None:
    backend, _ = loaded(Model.read(Settings().model_dir))
    pixels = precision_check.sample_images((224, 224))
    first = compute_logits(backend, pixels[:1])
    kept = first.copy()
    compute_logits(backend, pixels[1:2])
    assert np.array_equal(first, kept)


def test_types_and_sizes_of_tensors_are_kept(tmp_path: Path) -> None:
    a, b = np.array([[1.5, -2]], np.float32), np.array([[1, 2**40]])
    total, more = computed(graphs.two_by_two(), tmp_path, OPENVINO, a, b)
    assert [output.dtype.name for output in (total, more)] == ["float32", "bool"]
    assert total.tolist() == (a + b.astype(np.float32)).tolist()
    assert more.tolist() == [[True, False]]


@pytest.mark.parametrize("index", [-5, 4])
def test_an_index_that_its_table_lacks_fails_as_in_onnx_runtime(tmp_path: Path, index: int) -> None:
    made = graphs.text_classifier(np.arange(8, dtype=np.float32).reshape(4, 2))
    tokens = np.array([[0, 3, -4]])
    mask = np.ones_like(tokens)
    expected, found = (
        computed(made, tmp_path, runtime, tokens, mask)[0] for runtime in ("onnxruntime", OPENVINO)
    )
    np.testing.assert_allclose(found, expected)
    tokens[0, 1] = index
    for runtime in ("onnxruntime", OPENVINO):
        with pytest.raises(Exception, match=r"out of data bounds|out of bounds: -4 to 3"):
            computed(made, tmp_path, runtime, tokens, mask)


def test_an_unchecked_index_is_refused_however_the_runtime_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "QUICK_MS", 0)
    made = graphs.model(
        [graphs.node("GatherND", "table i", "y")],
        [graphs.value("i", TensorProto.INT64, ["N", 1])],
        [graphs.value("y", axes=["N", 2])],
        graphs.tensors(table=np.ones((4, 2), np.float32)),
    )
    model = Model.read(graphs.saved(made, tmp_path))
    with pytest.raises(ConfigurationError, match="what GatherND is given"):
        loaded(model)
    backend, info = loaded(model, cpu_runtime="auto")
    assert info.backend.startswith("onnxruntime")
    assert "GatherND" in {trial.runtime: trial.reason for trial in info.trials}[OPENVINO]
    signature = backend.signature(model)
    with pytest.raises(Exception, match="invalid index"):
        backend.infer(signature, [np.array([[10**6]])])


@pytest.mark.usefixtures("any_speed")
def test_numbers_that_openvino_computes_otherwise_are_left_to_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes 0 of NaN in a ReLU, computes 64 bits in 32, and does not round quotients down."""
    calls: list[bool] = []
    run = OpenVinoSession.run

    def recorded(self: OpenVinoSession, *arguments: Any) -> list[Array]:
        calls.append(True)
        return run(self, *arguments)

    monkeypatch.setattr(OpenVinoSession, "run", recorded)
    made = graphs.model(
        [
            graphs.node("Relu", "x", "y"),
            graphs.node("Identity", "i", "j"),
            graphs.node("Div", "i eleven", "k"),
            graphs.node("Gather", "table row", "z"),
        ],
        [
            graphs.value("x", axes=["N", 2]),
            graphs.value("i", TensorProto.INT64, ["N", 2]),
            graphs.value("row", TensorProto.INT64, ["N"]),
        ],
        [
            graphs.value("y", axes=["N", 2]),
            graphs.value("j", TensorProto.INT64, ["N", 2]),
            graphs.value("k", TensorProto.INT64, ["N", 2]),
            graphs.value("z", axes=["N"]),
        ],
        graphs.tensors(eleven=11, table=np.arange(2**16, dtype=np.float32)),
    )
    model = Model.read(graphs.saved(made, tmp_path))
    (tmp_path / "scratch").mkdir()
    backend, info = loaded(model, tmp_path / "scratch", cpu_runtime="auto")
    assert info.backend.startswith(OPENVINO)
    signature = backend.signature(model)
    for x, i, is_openvino in (
        (-1.5, 2**15 - 1, True),
        (np.nan, 1, False),
        (-np.inf, 1, False),
        (1e30, 1, False),
        (0.5, 5 * 10**9, False),
        (0.5, -(10**9), False),
    ):
        calls.clear()
        numbers, whole = np.array([[x, 0.25]], np.float32), np.array([[i, -7]])
        y, j, k, z = backend.infer(signature, [numbers, whole, np.array([2**16 - 1])])
        np.testing.assert_array_equal(y, np.maximum(numbers, 0))
        assert j.tolist() == whole.tolist()
        assert k.tolist() == [[int(i / 11), 0]]
        assert z.tolist() == [2**16 - 1]
        assert calls == [True] * is_openvino


def test_arithmetic_in_8_bits_is_left_to_onnx_runtime() -> None:
    """OpenVINO says that 200 + 100 is 255, and 7 / 2 is 4."""
    nodes = [graphs.node("Unsqueeze", "x one", "wide"), graphs.node("Div", "wide two", "y")]
    weights = graphs.tensors(one=[1], two=np.uint8(2))
    inputs = [graphs.value("x", TensorProto.UINT8, ["N"])]
    made = graphs.model(nodes, inputs, [graphs.value("y", TensorProto.UINT8, ["N", 1])], weights)
    with pytest.raises(ValueError, match="saturates Divide in 8 bits, which depends on x"):
        index_limits(made)
    nodes = [graphs.node("Cast", "x", "f", to=TensorProto.FLOAT), graphs.node("Div", "f f", "y")]
    made = graphs.model(nodes, inputs, [graphs.value("y")])
    assert index_limits(made) == {}


@pytest.mark.parametrize(
    ("nodes", "operation"),
    [
        ([graphs.node("Add", "i one", "j"), graphs.node("Gather", "table j", "y")], "Gather"),
        ([graphs.node("Gather", "x i", "y")], "Gather"),
        ([graphs.node("GatherND", "table i", "y")], "GatherND"),
        ([graphs.node("GatherElements", "table i", "y")], "GatherElements"),
        ([graphs.node("ScatterElements", "table i x", "y")], "ScatterElementsUpdate"),
        ([graphs.node("Div", "one i", "y")], "Divide"),
        ([graphs.node("Squeeze", "i", "j"), graphs.node("Range", "j one one", "y")], "Range"),
        ([graphs.node("Mul", "i i", "j"), graphs.node("Mul", "i j", "y")], "Multiply"),
        ([graphs.node("Mul", "i million", "y")], "Multiply"),
        ([graphs.node("Pow", "i hundred", "y")], "Power"),
        ([graphs.node("ReduceSum", "i", "y")], "ReduceSum"),
        ([graphs.node("Mul", "x half", "z"), graphs.node("Cast", "z", "y", to=7)], "Convert"),
        ([graphs.node("Gather", "table i", "z"), graphs.node("Cast", "z", "y", to=7)], "Convert"),
        ([graphs.node("Mod", "x half", "y", fmod=1)], "Mod"),
        ([graphs.node("Mul", "i i", "y")], ""),
        ([graphs.node("Mul", "i hundred", "j"), graphs.node("Sub", "j i", "y")], ""),
        ([graphs.node("QuantizeLinear", "x half", "y")], ""),
        ([graphs.node("ArgMax", "x", "j"), graphs.node("Mul", "j million", "y")], ""),
        ([graphs.node("Shape", "x", "s"), graphs.node("ReduceProd", "s", "y")], ""),
    ],
)
def test_what_openvino_computes_otherwise_is_left_to_onnx_runtime(
    nodes: Sequence[onnx.NodeProto], operation: str
) -> None:
    """It checks few indices and lengths, computes 64 bits in 32, sums and powers in float32, and cuts
    what becomes an integer.
    """
    floats = ("Gather", "GatherND", "GatherElements", "ScatterElements", "Mod")
    kinds = {**dict.fromkeys(floats, TensorProto.FLOAT), "QuantizeLinear": TensorProto.UINT8}
    made = graphs.model(
        nodes,
        [graphs.value("i", TensorProto.INT64, ["N", 1]), graphs.value("x", axes=["N", 1])],
        [graphs.value("y", kinds.get(nodes[-1].op_type, TensorProto.INT64), None)],
        graphs.tensors(
            one=1, hundred=100, million=10**6, half=np.float32(0.5), table=np.ones((4, 1), np.float32)
        ),
    )
    if operation:
        with pytest.raises(ValueError, match=rf" {operation}\b.*, which depends on [ix]$"):
            index_limits(made)
    else:
        assert index_limits(made) == {}


def test_graphs_inside_of_a_graph_are_left_to_onnx_runtime() -> None:
    """What they compute of clients' numbers is not followed: integers of large numbers, for example."""
    nodes = [graphs.node("Mul", "x million", "m"), graphs.node("Cast", "m", "i", to=TensorProto.INT64)]
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [*made, graphs.node("Cast", made[-1].output[0], name, to=TensorProto.FLOAT)],
            name,
            [],
            [graphs.value(name, axes=[1])],
        )
        for name, made in (("then", nodes), ("else", nodes[:1]))
    }
    decided = [graphs.node("Greater", "x million", "is_large"), graphs.node("Squeeze", "is_large", "c")]
    made = graphs.model(
        [*decided, graphs.node("If", "c", "y", **branches)],
        [graphs.value("x", axes=[1])],
        [graphs.value("y", axes=[1])],
        graphs.tensors(million=np.float32(10**6)),
    )
    with pytest.raises(ValueError, match="inside of If, which depends on x"):
        index_limits(made)


def test_weights_that_are_nan_are_left_to_onnx_runtime() -> None:
    """A broken network would answer zeros, also where nothing is compared."""
    for number, is_refused in ((np.nan, True), (-np.inf, False)):  # masks are infinite
        nodes = [graphs.node("Add", "x w", "z"), graphs.node("Relu", "z", "y")]
        weights = graphs.tensors(w=np.array([1, number], np.float32))
        made = graphs.model(nodes, [graphs.value("x")], [graphs.value("y")], weights)
        if is_refused:
            with pytest.raises(ValueError, match="w has NaN"):
                index_limits(made)
        else:
            assert index_limits(made) == {}


def test_positions_that_the_graph_finds_itself_are_not_the_clients_indices() -> None:
    """As networks find the last token: by comparison with the padding token."""
    nodes = [
        graphs.node("Equal", "i one", "is_end"),
        graphs.node("NonZero", "is_end", "places"),
        graphs.node("Transpose", "places", "indices", perm=[1, 0]),
        graphs.node("Gather", "table i", "rows"),
        graphs.node("GatherND", "rows indices", "y"),
    ]
    made = graphs.model(
        nodes,
        [graphs.value("i", TensorProto.INT64, ["N", "n"])],
        [graphs.value("y", axes=["k", 3])],
        graphs.tensors(table=np.ones((4, 3), np.float32), one=1),
    )
    assert index_limits(made) == {"i": 4}


def doubled(kind: int) -> onnx.ModelProto:
    """Adds `x` [N, 3] to itself."""
    axes: graphs.Axes = ["N", 3]
    inputs, outputs = [graphs.value("x", kind, axes)], [graphs.value("y", kind, axes)]
    return graphs.model([graphs.node("Add", "x x", "y")], inputs, outputs)


def test_a_graph_in_float64_stays_with_onnx_runtime_unless_openvino_is_set(tmp_path: Path) -> None:
    made = doubled(TensorProto.DOUBLE)
    model = Model.read(graphs.saved(made, tmp_path))
    backend, info = loaded(model, cpu_runtime="auto", precision="auto")
    assert info.backend.startswith("onnxruntime")
    assert {trial.reason for trial in info.trials if trial.runtime == OPENVINO} == {
        "OpenVINO computes float64 in fp32"
    }
    signature = backend.signature(model)
    numbers = np.array([[1e300, 1 + 1e-12, 0]])
    assert np.array_equal(backend.infer(signature, [numbers])[0], numbers + numbers)


def test_workers_share_what_was_compiled(tmp_path: Path) -> None:
    model = Model.read(Settings().model_dir)
    alone, _ = loaded(model)
    first, _ = loaded(model, tmp_path)
    (tmp_path / "openvino-bf16").mkdir()  # of a trial
    _, _ = loaded(model, tmp_path)
    assert [folder.name for folder in tmp_path.glob("openvino-*/")] == ["openvino-fp32"]
    (blob,) = (tmp_path / "openvino-fp32").glob("*.blob")
    written = blob.stat()
    second, _ = loaded(model, tmp_path)
    assert blob.stat() == written
    assert str(blob) in [region.path for region in psutil.Process().memory_maps()]
    pixels = precision_check.sample_images((224, 224))
    for backend in (first, second):
        np.testing.assert_allclose(
            compute_logits(backend, pixels), compute_logits(alone, pixels), atol=1e-4
        )


@WITH_BF16
def test_texts_are_computed_in_bf16_where_that_is_faster(tmp_path: Path) -> None:
    text_model.make(tmp_path, width=384, layers=2)
    model = Model.read(tmp_path)
    backend, info = loaded(model, tmp_path, cpu_runtime="auto", precision="auto")
    trials = {(trial.runtime, trial.precision): trial for trial in info.trials}
    assert [trial.chosen for trial in info.trials].count(True) == 1
    bf16 = trials[OPENVINO, "bf16"]
    assert bf16.difference is not None
    assert 0 < bf16.difference < precision_check.MAX_DIFFERENCE
    assert trials["onnxruntime", "int8"].reason == "the model has no model_quantized.onnx"
    again, same = loaded(model, tmp_path, cpu_runtime="auto", precision="auto")
    assert same.trials == info.trials
    signature = backend.signature(model)
    for length in (3, 17, 64):
        tokens = np.full((2, length), 7)
        batch = precision_check.token_inputs(signature, tokens)
        assert np.array_equal(backend.infer(signature, batch)[0], again.infer(signature, batch)[0])


def open_picture(folder: Path, **limits: int) -> Model:
    """Returns a convolution of pictures with open height and width, FP32 [N, 3, H, W] to [N, 8]."""
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    made = graphs.model(
        [
            graphs.node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
            graphs.node("Relu", "c", "r"),
            graphs.node("GlobalAveragePool", "r", "p"),
            graphs.node("Flatten", "p", "y"),
        ],
        [graphs.value("x", axes=["N", 3, "H", "W"])],
        [graphs.value("y", axes=["N", 8])],
        graphs.tensors(w=weights),
    )
    description = {"name": "open", "version": "1", "task": "tensor", "limits": limits}
    (folder / "model.json").write_text(json.dumps(description))
    return Model.read(graphs.saved(made, folder, "1"))


@pytest.mark.usefixtures("any_speed")
@pytest.mark.parametrize("wrong_width", [0, 2], ids=["right", "wrong where narrow"])
def test_open_sizes_are_computed_as_by_onnx_runtime_inside_and_outside_of_what_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_width: int
) -> None:
    widths: list[int] = []
    run = OpenVinoSession.run

    def recorded(
        self: OpenVinoSession, names: Sequence[str], inputs: Mapping[str, Array], shrink: bool = False
    ) -> list[Array]:
        widths.append(inputs["x"].shape[-1])
        outputs = run(self, names, inputs, shrink)
        return [array * (1.3 if widths[-1] == wrong_width else 1) for array in outputs]

    monkeypatch.setattr(OpenVinoSession, "run", recorded)
    monkeypatch.setattr(precision_check, "MAX_ELEMENTS", 3 * 64 * 64)  # the next are 256 and the limits
    model = open_picture(tmp_path, H=512, W=512)
    (tmp_path / "scratch").mkdir()
    backend, info = loaded(model, tmp_path / "scratch", cpu_runtime="auto")
    assert not widths  # the comparison is in other processes
    exact, _ = loaded(model, cpu_runtime="onnxruntime")
    (trial,) = [trial for trial in info.trials if trial.runtime == OPENVINO]
    if wrong_width:
        assert (trial.chosen, trial.largest_size) == (False, None)
        assert "differs by 0.3" in trial.reason
        assert "[1, 3, 1, 2]" in trial.reason
    else:
        assert (trial.chosen, trial.largest_size) == (True, 64)
    signature = backend.signature(model)
    random = np.random.default_rng(1)
    for size in ((64, 64), (1, 1), (7, 3), (64, 1), (2, 50), (65, 2), (1, 512), (300, 200), (5, 2)):
        inputs = [random.random((2, 3, *size), np.float32)]
        expected, found = (each.infer(signature, inputs)[0] for each in (exact, backend))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert widths == ([] if wrong_width else [64, 1, 3, 1, 50, 2])
    backend.trim()  # closes the reference
    np.testing.assert_allclose(backend.infer(signature, inputs)[0], expected, rtol=1e-4)


def test_memory_is_bounded_however_many_sizes_are_computed(tmp_path: Path) -> None:
    model = open_picture(tmp_path, H=512, W=512)
    backend, _ = loaded(model)
    signature, memory = backend.signature(model), []
    for height in range(8, 48):
        for width in range(8, 48):
            backend.infer(signature, [np.zeros((1, 3, height, width), np.float32)])
        memory.append(choice.own_memory_mb())
    assert memory[-1] - memory[16] < 30  # MB; without a bound it grows by this much every seven rounds


@pytest.mark.usefixtures("any_speed")
def test_all_items_of_a_graph_in_which_they_depend_on_each_other_were_not_compared(
    tmp_path: Path,
) -> None:
    """OpenVINO's Resize leaves its output unwritten where the first axis is not what it was."""
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    made = graphs.model(
        [onnx.helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **asymmetric)],
        [graphs.value("x", axes=["N", 1, 2, 2])],
        [graphs.value("y", axes=["N", "a", "b", "c"])],
        graphs.tensors(sizes=[1, 1, 4, 4]),
    )
    model = Model.read(graphs.saved(made, tmp_path))
    (tmp_path / "scratch").mkdir()
    backend, _ = loaded(model, tmp_path / "scratch", cpu_runtime="auto")
    signature = graphs.compared(model)
    assert not signature.is_batched
    for size in (1, 2, 3):
        numbers = np.random.default_rng(size).random((1, size, 1, 2, 2), np.float32)
        (found,) = backend.infer(signature, [numbers])
        assert np.array_equal(found[0, 0, 0], numbers[0, 0, 0].repeat(2, 0).repeat(2, 1))


def test_a_graph_of_unknown_meaning_is_not_computed_less_exactly(tmp_path: Path) -> None:
    """The labels of generated items may agree in bf16, and those of clients' items differ."""
    made = graphs.model(
        [graphs.node("ArgMax", "x", "label", axis=1, keepdims=0)],
        [graphs.value("x", axes=["N", 512])],
        [graphs.value("label", TensorProto.INT64, ["N"])],
    )
    model = Model.read(graphs.saved(made, tmp_path))
    candidates = network.cpu_candidates(model, Settings(), "")
    limits = [(candidate.precision, candidate.max_difference) for candidate in candidates[1:]]
    assert limits == [("fp32", precision_check.EXACT)]


def test_without_openvino_its_absence_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "find_spec", lambda _: None)
    model = Model.read(Settings().model_dir)
    _, info = loaded(model, cpu_runtime="auto")
    assert info.backend.startswith("onnxruntime")
    assert (
        "OpenVINO is not installed" in {trial.runtime: trial.reason for trial in info.trials}[OPENVINO]
    )
    impossible: list[dict[str, Any]] = [{"cpu_runtime": OPENVINO}, {"precision": "bf16"}]
    for settings in impossible:
        with pytest.raises(ConfigurationError, match="OpenVINO is not installed"):
            loaded(model, **{"cpu_runtime": "auto"} | settings)


def test_openvino_comes_without_its_telemetry_and_uses_none_that_is_there(tmp_path: Path) -> None:
    assert find_spec("openvino_telemetry") is None
    (tmp_path / "openvino_telemetry.py").write_text("raise SystemExit('imported')")
    code = "from fastapi_onnx.openvino_session import import_openvino; import_openvino()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    for path in [*ROOT.glob("requirements*.txt"), *ROOT.glob("*/requirements*.txt")]:
        assert "openvino-telemetry" not in path.read_text()


def test_bf16_is_refused_where_the_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bf16_objection(Path("/no/cpuinfo"))
    monkeypatch.setattr(openvino_session, "bf16_objection", lambda: "this processor has no bf16")
    model = Model.read(Settings().model_dir)
    with pytest.raises(ConfigurationError, match="this processor has no bf16"):
        loaded(model, precision="bf16")
    with pytest.raises(ConfigurationError, match="SERVING_PRECISION=bf16 cannot be used"):
        loaded(model, precision="bf16", cpu_runtime="onnxruntime")


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.UINT16])
def test_number_types_are_kept(tmp_path: Path, kind: int) -> None:
    numbers: NDArray[Any] = np.array([[1, 2, 3]], onnx.helper.tensor_dtype_to_np_dtype(kind))
    (found,) = computed(doubled(kind), tmp_path, OPENVINO, numbers)
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers + numbers)

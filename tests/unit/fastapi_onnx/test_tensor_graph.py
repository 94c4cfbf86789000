"""`fastapi_onnx.signature` and what leads to it: from a file to a signature, or to a sentence."""

import json
import resource
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.signature import MAX_OUTPUT, graph_signature
from smallplates.errors import ConfigurationError, InvalidTensorError
from smallplates.models.description import DEFAULT_LIMIT, ModelDescription
from smallplates.models.folder import Model
from smallplates.models.task_kinds import TENSOR
from smallplates.models.tensors import Signature, TensorSpec, check_outputs
from smallplates.settings import Settings
from smallplates.supervision import describe
from smallplates.supervision.planner import planner, task_of
from tests import graphs
from tests.graphs import Axes, model, node, tensors, value

BACKEND = "fastapi_onnx.backend:OnnxBackend"
DESCRIBED: dict[str, Any] = {"name": "made", "version": "1", "task": TENSOR}


def signature(made: onnx.ModelProto, folder: Path, **limits: int) -> Signature:
    path = graphs.saved(made, folder) / "model.onnx"
    return graph_signature(path, Model(folder, ModelDescription(**DESCRIBED, limits=limits)))


def identity(asked: Axes, answered: Axes, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    outputs = [value("y", kind, answered)]
    return model([node("Identity", "x", "y")], [value("x", kind, asked)], outputs)


def test_inputs_and_outputs_are_those_of_the_graph(tmp_path: Path) -> None:
    actual = signature(graphs.two_by_two(), tmp_path)
    assert actual == Signature(
        "tensor",
        (TensorSpec("a", "float32", (2,)), TensorSpec("b", "int64", (2,))),
        (TensorSpec("sum", "float32", (2,)), TensorSpec("more", "bool", (2,))),
        failure_is_client_error=True,
    )


def test_weights_among_the_inputs_are_not_asked_for(tmp_path: Path) -> None:
    inputs = [value("x", axes=["N", 2]), value("w", axes=[2])]
    weights = tensors(w=np.ones(2, np.float32))
    made = model([node("Add", "x w", "y")], inputs, [value("y", axes=["N", 2])], weights)
    assert [spec.name for spec in signature(made, tmp_path).inputs] == ["x"]


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        (["N", "n"], ["N", "n"], ("n",)),
        ([None, None], [None, None], ("x_axis_1",)),
        (["N", None], None, ("x_axis_1",)),
        (["N", 3, "n"], ["K", 3, "m"], (3, "n")),  # other names for the same, as exporters write
        ([-1, 0], [-1, 0], ("x_axis_1",)),
        (["?", "?", "?"], ["?", "?", "?"], ("x_axis_1", "x_axis_2")),  # not the same size
        (["None", 3, "None"], ["None"] * 3, (3, "x_axis_2")),
        (["N"], ["N"], ()),
    ],
)
def test_axes_that_vary(
    tmp_path: Path, asked: Axes, answered: Axes, expected: tuple[int | str, ...]
) -> None:
    actual = signature(identity(asked, answered), tmp_path)
    assert (actual.inputs[0].shape, actual.outputs[0].shape) == (expected, expected)
    assert actual.limits == {axis: DEFAULT_LIMIT for axis in expected if isinstance(axis, str)}
    assert (actual.pads, actual.checks_finite, actual.batch_size) == (False, False, 0)


@pytest.mark.parametrize(
    ("asked", "declared", "perm", "is_batched", "expected"),
    [
        ([1, 4, "width"], [1, "length"], [2, 0, 1], False, ("width", 1, 4)),
        ([1, 4, "width"], [1, 4, "length", 1, 1], [0, 2, 1], True, ("width", 4)),
        (["N", 3, 4], ["N", 12], [0, 2, 1], True, (4, 3)),
        (["N", 3, 4], [], [0, 2, 1], True, (4, 3)),
    ],
)
def test_an_output_has_the_axes_that_it_returns_and_not_as_many_as_declared(
    tmp_path: Path,
    asked: Axes,
    declared: Axes,
    perm: list[int],
    is_batched: bool,
    expected: tuple[int | str, ...],
) -> None:
    nodes = [node("Identity", "x", "same"), node("Transpose", "same", "y", perm=perm)]
    made = model(nodes, [value("x", axes=asked)], [value("y", axes=declared)])
    actual = signature(made, tmp_path)
    assert (actual.is_batched, actual.outputs[0].shape) == (is_batched, expected)


POSITIONS = [
    node("Shape", "x", "axes", start=1, end=2),
    node("Squeeze", "axes", "count"),
    node("Range", "zero count one", "places"),
    node("Gather", "table places", "found"),
    node("Add", "x found", "y"),
]
PRODUCTS = [node("Transpose", "x", "turned", perm=[0, 2, 1]), node("MatMul", "x turned", "y")]
TWICE = [node("Add", "x x", "y")]


@pytest.mark.parametrize(
    ("nodes", "asked", "answered", "limits", "expected"),
    [
        (POSITIONS, ["N", "n"], ["N", "n"], {}, {"n": 1024}),  # of 1500 in the table
        (POSITIONS, ["N", "n"], ["N", "n"], {"n": 7}, {"n": 7}),
        (PRODUCTS, ["N", "n", 2], ["N", "n", "n"], {}, {"n": 4096}),  # an output of 16 million numbers
        (TWICE, ["N", 3, "h", "w"], ["N", 3, "h", "w"], {}, {"h": 1024, "w": 1024}),
        (TWICE, ["N", 3, "h", "w"], ["N", 3, "h", "w"], {"h": 48}, {"h": 48, "w": 16384}),
        (TWICE, ["N", "a", "b", "c"], ["N", "a", "b", "c"], {}, dict.fromkeys("abc", DEFAULT_LIMIT)),
    ],
)
def test_limits_are_the_largest_sizes_that_the_graph_computes_in_little_memory(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    asked: Axes,
    answered: Axes,
    limits: dict[str, int],
    expected: dict[str, int],
) -> None:
    weights = tensors(table=np.zeros(1500, np.float32), zero=0, one=1)
    made = model(nodes, [value("x", axes=asked)], [value("y", axes=answered)], weights)
    graphs.saved(made, tmp_path)
    described = Model(tmp_path, ModelDescription(**DESCRIBED, limits=limits))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    *_, found = OnnxBackend().compare_items(described, OnnxBackend().signature(described))
    assert found.limits == expected
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("size", [1, 8])
def test_a_fixed_batch_size_is_the_only_one(tmp_path: Path, size: int) -> None:
    assert signature(graphs.two_by_two(size), tmp_path).batch_size == size


def test_limits_are_those_of_model_json(tmp_path: Path) -> None:
    limited = signature(identity(["N", "n"], ["N", "n"]), tmp_path, n=7)
    task = task_of(Model(tmp_path, ModelDescription(**DESCRIBED)), Settings(), {}, [limited])
    assert limited.limits == task.limits == {"n": 7}
    with pytest.raises(InvalidTensorError, match=r"1 to 7 are accepted.*model\.json can raise it"):
        limited.items([np.zeros((1, 8), np.float32)])
    with pytest.raises(InvalidTensorError, match=r"1 to 7 are accepted$"):
        limited.items([np.zeros((1, 0), np.float32)])
    with pytest.raises(ConfigurationError, match=r"unknown axes \['m'\]; the variable axes are \['n'\]"):
        signature(identity(["N", "n"], ["N", "n"]), tmp_path, m=7)


def test_sizes_that_depend_on_the_data_have_a_limit(tmp_path: Path) -> None:
    assert signature(graphs.nonzero(), tmp_path).limits == {"n": DEFAULT_LIMIT, "found": MAX_OUTPUT // 2}
    actual = signature(graphs.nonzero(), tmp_path, found=100)
    assert [spec.shape for spec in actual.outputs] == [(2, "found"), ("n",)]
    assert actual.limits == {"n": DEFAULT_LIMIT, "found": 100}
    assert actual.batch_size == 1
    unnamed = identity(["N", 2], ["N", 2])
    unnamed.graph.output.append(value("z", TensorProto.INT64, None))
    unnamed.graph.node.append(node("NonZero", "x", "z"))
    assert signature(unnamed, tmp_path).limits == {"z_axis_1": MAX_OUTPUT // 2}


def test_only_the_product_of_axes_that_depend_on_the_data_has_a_limit(tmp_path: Path) -> None:
    def elements(**limits: int) -> tuple[int, int, int]:
        """Limits of h and w, and the most elements of an item's output [3, h, w]."""
        actual = signature(halved, tmp_path, **limits)
        return actual.limits["h"], actual.limits["w"], actual.outputs[0].largest(actual.limits)

    axes: Axes = ["N", 3, "height", "width"]
    pool = node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2])
    halved = model([pool], [value("x", axes=axes)], [value("y", axes=["N", 3, "h", "w"])])
    assert elements() == (MAX_OUTPUT // 3, MAX_OUTPUT // 3, MAX_OUTPUT)
    assert elements(h=2) == (2, MAX_OUTPUT // 3, MAX_OUTPUT)
    assert elements(h=2, w=5) == (2, 5, 3 * 2 * 5)
    assert elements(h=3000, w=3000) == (3000, 3000, 3 * 3000 * 3000)  # more than MAX_OUTPUT


@pytest.mark.parametrize("shape", [(2, 256, 128), (MAX_OUTPUT // 4, 1, 4), (256, 256, 256)])
def test_an_output_of_open_axes_may_be_long_in_each_of_them(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    inputs = [value("x", axes=["N", 4]), value("shape", TensorProto.INT64, [3])]
    made = model([node("Reshape", "x shape", "y")], inputs, [value("y", axes=[None, None, None])])
    actual, sizes = signature(made, tmp_path), {"N": 1}
    check_outputs(actual, [np.broadcast_to(np.float32(0), (1, *shape))], 1, sizes)
    too_many = np.broadcast_to(np.float32(0), (1, 257, 256, 256))
    with pytest.raises(ValueError, match="y with 16842752 numbers; at most 16777216 are accepted"):
        check_outputs(actual, [too_many], 1, sizes)


@pytest.mark.parametrize(("axis", "is_batched"), [("N", True), ("boxes", False), (None, False)])
def test_a_first_axis_that_has_a_limit_is_not_the_batch(
    tmp_path: Path, axis: str | None, is_batched: bool
) -> None:
    made = model(
        [node("NonZero", "x", "t"), node("Transpose", "t", "y")],
        [value("x", axes=[axis, 4])],
        [value("y", TensorProto.INT64, ["found", 2])],
    )
    actual = signature(made, tmp_path, found=4)
    assert (actual.outputs[0].shape, actual.batch_size) == (("found", 2), 1)
    assert actual.is_batched == is_batched  # boxes, for example, are found together


@pytest.mark.parametrize(
    ("operator", "axes", "expected"),
    [("ReduceSum", [], ()), ("Transpose", [3, "N"], (3, 1)), ("ReduceSum", [1, 1], (1, 1))],
)
def test_outputs_without_a_batch_axis_are_computed_for_one_item(
    tmp_path: Path, operator: str, axes: Axes, expected: tuple[int, ...]
) -> None:
    attributes = {"keepdims": int(bool(axes))} if operator == "ReduceSum" else {}
    made = model(
        [node(operator, "x", "y", **attributes)], [value("x", axes=["N", 3])], [value("y", axes=axes)]
    )
    actual = signature(made, tmp_path)
    assert (actual.outputs[0].shape, actual.batch_size) == (expected, 1)


def first(asked: Axes, answered: Axes, axis: int, keepdims: int = 0) -> onnx.ModelProto:
    nodes = [node("Gather", "x index", "y", axis=axis)]
    weights = tensors(index=[0] if keepdims else 0)
    return model(nodes, [value("x", axes=asked)], [value("y", axes=answered)], weights)


WHOLE, ONE, BATCH = (False, 1), (True, 1), (True, 0)
"""Whether a graph has a batch axis, and its only batch size; 0: any."""


@pytest.mark.parametrize(
    ("asked", "answered", "axis", "limits", "shapes", "expected"),
    [
        (["seq", "batch", 2], ["batch", 2], 0, {}, [("seq", "batch", 2), ("batch", 2)], WHOLE),
        (["T", "B", 2], ["B", 2], 0, {}, [("T", "B", 2), ("B", 2)], WHOLE),
        (["T", "B", 2], [1, "B", 2], 0, {}, [("T", "B", 2), (1, "B", 2)], WHOLE),
        ([None, None, 2], [None, 2], 0, {}, [("x_axis_0", "x_axis_1", 2), ("x_axis_1", 2)], WHOLE),
        (["unk__1", "unk__2"], ["unk__2"], 0, {}, [("unk__1", "unk__2"), ("unk__2",)], WHOLE),
        (["N", "M"], ["M"], 0, {}, [("N", "M"), ("M",)], WHOLE),
        (["T", 3, "n"], [3, "n"], 0, {}, [("T", 3, "n"), (3, "n")], WHOLE),
        (["T", "B", 2], ["B", 2], 0, {"T": 9}, [("T", "B", 2), ("B", 2)], WHOLE),
        (["T", "B", "n"], ["B", "n"], 0, {"n": 9}, [("T", "B", "n"), ("B", "n")], WHOLE),
        (["T", "B", 2], ["B", 2], 0, {"B": 9}, [("B", 2), ("B", 2)], ONE),
        ([None, None, 2], [None, 2], 0, {"x_axis_1": 9}, [("x_axis_1", 2), ("x_axis_1", 2)], ONE),
        (["batch", 3, "n"], [3, "n"], 0, {}, [(3, "n"), (3, "n")], ONE),
        (["N", 3], [3], 0, {}, [(3,), (3,)], ONE),
        (["T", 3], [3], 0, {}, [(3,), (3,)], ONE),
        (["batch_size", "n"], ["batch_size"], 1, {}, [("n",), ()], BATCH),
        (["unk__12", "unk__13"], ["unk__12"], 1, {}, [("unk__13",), ()], BATCH),
        ([None, None, None], [None, None], 1, {}, [("x_axis_1", "x_axis_2"), ("x_axis_2",)], BATCH),
        (["batch", "c", "h", "w"], ["batch", "h", "w"], 1, {}, [("c", "h", "w"), ("h", "w")], BATCH),
        (["b", "c", "h", "w"], ["other", "h", "w"], 1, {}, [("c", "h", "w"), ("h", "w")], BATCH),
    ],
)
def test_which_axis_is_the_batch(
    tmp_path: Path,
    asked: Axes,
    answered: Axes,
    axis: int,
    limits: dict[str, int],
    shapes: list[tuple[int | str, ...]],
    expected: tuple[bool, int],
) -> None:
    keepdims = int(len(asked or ()) == len(answered or ()))
    actual = signature(first(asked, answered, axis, keepdims), tmp_path, **limits)
    assert [spec.shape for spec in (*actual.inputs, *actual.outputs)] == shapes
    assert (actual.is_batched, actual.batch_size) == expected
    if expected == WHOLE:
        assert str(shapes[0][0]) in actual.batch_note
    else:
        assert ("one at a time; the output y gets a batch axis" in actual.batch_note) == (
            expected == ONE
        )
        assert bool(actual.batch_note) == (expected == ONE)


@pytest.mark.parametrize(
    ("made", "shapes", "said"),
    [
        (identity([], []), [(), ()], "no axis in x"),
        (identity(["N", "N"], ["N", "N"]), [("N", "N"), ("N", "N")], "N, is also another axis of x"),
        (
            model([node("Add", "a b", "y")], [value("a"), value("b", axes=["M", 1])],
                  [value("y", axes=["M", "N"])]),
            [("N",), ("M", 1), ("M", "N")],
            "N in a and M in b",
        ),
        (
            model([node("Add", "a b", "y")], [value("a", axes=[None, 3]), value("b", axes=[])],
                  [value("y", axes=[None, 3])]),
            [("a_axis_0", 3), (), ("a_axis_0", 3)],
            "no axis in b",
        ),
        (
            model([node("ReduceSum", "x", "y", keepdims=0)], [value("x", axes=[4])],
                  [value("y", axes=[])]),
            [(4,), ()],
            "fixed at 4, but the output y cannot be divided",
        ),
        (
            model([node("Transpose", "x", "y")], [value("x", axes=[1, 3])], [value("y", axes=[3, 1])]),
            [(1, 3), (3, 1)],
            "fixed at 1, but the output y cannot be divided",
        ),
        (identity([9999], [9999]), [(9999,), (9999,)], "fixed at 9999, more than the largest batch"),
    ],
)  # fmt: skip
def test_graphs_without_a_batch_axis_have_their_full_shapes(
    tmp_path: Path, made: onnx.ModelProto, shapes: list[tuple[int | str, ...]], said: str
) -> None:
    actual = signature(made, tmp_path)
    assert [spec.shape for spec in (*actual.inputs, *actual.outputs)] == shapes
    assert (actual.is_batched, actual.batch_size) == (False, 1)
    assert said in actual.batch_note
    assert set(actual.limits) == {axis for shape in shapes for axis in shape if isinstance(axis, str)}


def sequence() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"]))
    made = model([node("SequenceConstruct", "x", "y")], [value("x")], [value("y")])
    made.graph.output[0].type.CopyFrom(kind)
    return made


@pytest.mark.parametrize("axis", [None, "batch", 1])  # the last: LightGBM's, for a batch of any size
def test_trees_answer_with_the_probability_of_each_class(tmp_path: Path, axis: int | str | None) -> None:
    read = Model.read(graphs.saved(graphs.trees(axis), tmp_path / "trees"))
    actual = graphs.compared(read)
    assert actual.batch_size == 0
    backend, settings = OnnxBackend(), Settings(device="cpu")
    backend.load(read, settings)
    rows = np.array([[9, 0.5], [0, 0.75]], np.float32)
    label, probabilities = backend.infer(actual, [rows])
    assert label.tolist() == [0, 2]
    assert probabilities.tolist() == [[0.75, 0.25, 0.0], [0.0, 0.125, 0.875]]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            graphs.with_zip_map(graphs.trees()),
            r'mapped is not a tensor.* options={"zipmap": False}, or with zipmap=False, or remove'
            " the node ZipMap$",
        ),
        (graphs.trees(classlabels_strings=["a", "b", "c"]), "label has the type STRING.*`labels` in"),
        (identity(["N"], ["N"], TensorProto.STRING), "x has the type STRING.*; encode texts as numbers"),
        (
            identity(["N"], ["N"], TensorProto.BFLOAT16),
            "x has the type BFLOAT16, which[^;]*$",
        ),
        (sequence(), "y is not a tensor, but has the type sequence.*; remove this output(?!.*zipmap)"),
        (model([], [], []), "no input"),
        (
            model([node("Magic", "x", "y")], [value("x")], [value("y", axes=None)]),
            "the number of axes of the output y is unknown",
        ),
    ],
)
def test_what_cannot_be_served_is_said_in_words(
    tmp_path: Path, made: onnx.ModelProto, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        signature(made, tmp_path)


def test_a_file_that_is_no_graph(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ConfigurationError, match="cannot be"):
        graph_signature(tmp_path / "model.onnx", Model(tmp_path, ModelDescription(**DESCRIBED)))


@pytest.mark.parametrize("version", [None, "1"])
def test_a_folder_that_holds_only_a_graph_is_a_model(tmp_path: Path, version: str | None) -> None:
    made = Model.read(graphs.saved(graphs.two_by_two(), tmp_path / "sums", version))
    assert (made.description.name, made.description.version) == ("sums", "1")
    assert made.description.task == TENSOR
    assert made.file("model.onnx").is_file()
    with pytest.raises(ConfigurationError, match="no model in"):
        Model.read(tmp_path / "sums", "2")


def test_the_newest_version_of_a_folder_of_graphs_is_served(tmp_path: Path) -> None:
    for version in ("9", "10", "old", "011"):
        graphs.saved(graphs.two_by_two(), tmp_path / "sums", version)
    assert Model.read(tmp_path / "sums").description.version == "10"
    assert Model.read(tmp_path / "sums", "9").description.version == "9"


def test_the_only_graph_of_a_version_may_have_any_name(tmp_path: Path) -> None:
    """As Triton's `default_model_filename` says."""
    folder = tmp_path / "sums"
    for version in ("1", "2", "3"):
        graphs.saved(graphs.two_by_two(), folder, version)
        (folder / version / "model.onnx").rename(folder / version / "own.onnx")
    graphs.saved(graphs.two_by_two(), folder)
    (folder / "2" / "model_quantized.onnx").touch()
    (folder / "3" / "other.onnx").touch()
    made = Model.read(folder)
    assert (made.description.version, made.file("model.onnx")) == ("2", folder / "2" / "own.onnx")
    assert Model.read(folder, "1").file("model.onnx") == folder / "1" / "own.onnx"
    with pytest.raises(ConfigurationError, match="no model in"):
        Model.read(folder, "3")


def test_a_graph_beside_its_description_is_in_the_wrong_place(tmp_path: Path) -> None:
    folder = graphs.saved(graphs.two_by_two(), tmp_path)
    (folder / "model.json").write_text(json.dumps(DESCRIBED))
    with pytest.raises(ConfigurationError, match=r"has no 1/model\.onnx .*: move .*/model\.onnx there"):
        OnnxBackend().signature(Model.read(folder))


def test_another_process_reads_the_graph(tmp_path: Path) -> None:
    read = Model.read(graphs.saved(graphs.nonzero(), tmp_path / "graph"))
    read.description.limits["lost"] = 5
    graphs.saved(graphs.nonzero(), read.folder, "1")
    (read.folder / "model.json").write_text(read.description.model_dump_json(exclude_none=True))
    with pytest.raises(ConfigurationError, match=r"unknown axes \['lost'\]"):
        planner(BACKEND, Settings())(read, Event())
    read.description.limits["found"] = read.description.limits.pop("lost")  # it reads the folder itself
    written = read.description.model_dump_json(exclude_none=True)
    (read.folder / "model.json").write_text(written)
    assert planner(BACKEND, Settings())(read, Event()) == (BACKEND, (OnnxBackend().signature(read),))


def test_a_process_that_dies_or_takes_too_long_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Model.read(graphs.saved(graphs.two_by_two(), tmp_path / "sums"))
    with pytest.raises(ConfigurationError, match="the process that reads sums ended with exit code 1"):
        describe.signature("no.such:Backend", read)
    with pytest.raises(ConfigurationError, match="FakeBackend cannot serve ONNX graphs"):
        describe.signature("tests.fake.backend:FakeBackend", read)
    (ending := Event()).set()
    with pytest.raises(ConfigurationError, match="not read within"):
        describe.signature("tests.fake.graph_readers:Endless", read, ending)
    monkeypatch.setattr(describe, "LOAD_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigurationError, match="not read within"):
        describe.signature(BACKEND, read)


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    read = Model.read(graphs.saved(graphs.two_by_two(), tmp_path / "sums"))
    read.description.task = "divination"
    with pytest.raises(ConfigurationError, match=r"divination.*image-classification.*tensor"):
        planner(BACKEND, Settings())(read, Event())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": "fp16"}, "fp16 is for image classifiers"),
        ({"precision": "int8"}, r"has no model_quantized\.onnx"),
    ],
)
def test_a_precision_that_there_is_not(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    read = Model.read(graphs.saved(graphs.two_by_two(), tmp_path, "1"))
    with pytest.raises(ConfigurationError, match=said):
        OnnxBackend().load(read, Settings.model_validate({"device": "cpu", **settings}))


def test_a_quantised_file_is_taken_where_it_is_asked_for(tmp_path: Path) -> None:
    read = Model.read(graphs.saved(graphs.two_by_two(), tmp_path, "1"))
    (tmp_path / "1" / "model.onnx").rename(tmp_path / "1" / "model_quantized.onnx")
    graphs.saved(graphs.two_by_two(), tmp_path, "1")
    chosen = [
        OnnxBackend().load(read, Settings(device="cpu", precision=precision)).precision
        for precision in ("auto", "int8")
    ]
    assert chosen == ["fp32", "int8"]

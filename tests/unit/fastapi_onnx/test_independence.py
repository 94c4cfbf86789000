"""`fastapi_onnx.independence` and what leads to it: whether a graph's items share batches."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fastapi_onnx.backend import OnnxBackend
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import NOT_COMPARED, Signature
from smallplates.settings import Settings
from smallplates.supervision import describe
from tests import exports, graphs
from tests.graphs import Axes, model, node, tensors, value


def described(made: onnx.ModelProto, folder: Path) -> Signature:
    return graphs.compared(Model.read(graphs.saved(made, folder / "graph")))


def graph(
    nodes: Sequence[onnx.NodeProto],
    batch: int | str | None,
    kind: int = TensorProto.FLOAT,
    **weights: object,
) -> onnx.ModelProto:
    """From `x` [batch, 4] to `y` of the same shape."""
    axes = [batch, 4]
    return model(nodes, [value("x", kind, axes)], [value("y", kind, axes)], tensors(**weights))


def centred(batch: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """`y` is `x` less the mean of the batch."""
    nodes = [node("ReduceMean", "x axes", "mean", keepdims=1), node("Sub", "x mean", "y")]
    return graph(nodes, batch, kind, axes=[0])


def summed(batch: int | str | None) -> onnx.ModelProto:
    """`y` has the sums of each item and those before it."""
    return graph([node("CumSum", "x axis", "y")], batch, TensorProto.FLOAT, axis=0)


@pytest.mark.parametrize("batch", ["N", None, 1, 2, 8])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32])
def test_independent_items_share_batches(tmp_path: Path, batch: int | str | None, kind: int) -> None:
    signature = described(graph([node("Abs", "x", "y")], batch, kind), tmp_path)
    assert (signature.is_batched, signature.batch_note) == (True, "")
    assert signature.inputs[0].shape == (4,)


@pytest.mark.parametrize(
    ("batch", "shape"), [("N", ("N", 4)), (None, ("x_axis_0", 4)), (2, (2, 4)), (8, (8, 4))]
)
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_items_that_depend_on_each_other_share_none(
    tmp_path: Path, batch: int | str | None, shape: tuple[int | str, ...], kind: int
) -> None:
    signature = described(centred(batch, kind), tmp_path)
    assert (signature.is_batched, signature.batch_size) == (False, 1)
    assert "depend on each other" in signature.batch_note
    assert signature.inputs[0].shape == signature.outputs[0].shape == shape


@pytest.mark.parametrize(
    ("first", "other", "is_batched"),
    [
        (["unk__7", 4], ["unk__9", 4], True),  # tf2onnx's names
        (["a_dynamic_axes_1", 4], ["b_dynamic_axes_1", 4], True),  # PyTorch's
        ([None, 4], ["unk__9", 4], True),
        (["unk__7", "unk__8"], ["unk__8", "unk__9"], False),
        (["unk__7", 4], ["boxes", 4], False),
        (["unk__7", 4], [1, 4], False),
        (["unk__7", 4], [], False),
    ],
)
def test_generated_names_of_first_axes_may_be_the_same_batch(
    tmp_path: Path, first: Axes, other: Axes, is_batched: bool
) -> None:
    inputs = [value("a", axes=first), value("b", axes=other)]
    made = model([node("Add", "a b", "y")], inputs, [value("y", axes=[None, None])])
    assert described(made, tmp_path / "added").is_batched == is_batched
    made.graph.node[0].op_type = "MatMul"
    made.graph.node[0].input[1] = "t"
    made.graph.node.insert(0, node("Einsum", "b", "t", equation="...ij->...ji"))
    assert not described(made, tmp_path / "pairs").is_batched


def test_a_generated_name_with_a_limit_is_not_the_batch(tmp_path: Path) -> None:
    inputs = [value("a", axes=["unk__7", 4]), value("b", axes=["unk__9", 4])]
    made = model([node("Add", "a b", "y")], inputs, [value("y", axes=["unk__11", 4])])
    folder = graphs.saved(made, tmp_path / "graph", "1")
    limits = {"unk__7": 9, "unk__9": 9}
    described = {"name": "added", "version": "1", "task": "tensor", "limits": limits}
    (folder / "model.json").write_text(json.dumps(described))
    signature = graphs.compared(Model.read(folder))
    assert not signature.is_batched
    assert [spec.shape for spec in signature.inputs] == [("unk__7", 4), ("unk__9", 4)]


@pytest.mark.parametrize("names", [("nodes_axis_0", "edges_axis_0"), ("unk__1", "unk__2")])
@pytest.mark.parametrize(
    "pool",
    [
        None,
        node("Einsum", "neighbours", "y", equation="eij->j"),
        node("ReduceMean", "neighbours axes", "y", keepdims=0),
    ],
    ids=["rows", "sum", "reduction"],
)
def test_an_item_that_refers_to_others_shares_no_batch(
    tmp_path: Path, pool: onnx.NodeProto | None, names: tuple[str, str]
) -> None:
    """As a network over the nodes and edges of a graph: alone, an item has no neighbour.

    The number of nodes is not that of edges.
    """
    first, second = names if "unk" in names[0] else (None, None)
    inputs = [value("nodes", axes=[first, 4]), value("edges", TensorProto.INT64, [second, 2])]
    gather = node("Gather", "nodes edges", "neighbours" if pool else "y")
    output = value("y", axes=[4] if pool else [None, 2, 4])
    made = model([gather, *filter(None, [pool])], inputs, [output], tensors(axes=[0, 1]))
    signature = described(made, tmp_path)
    assert [spec.shape for spec in signature.inputs] == [(names[0], 4), (names[1], 2)]
    assert (signature.is_batched, signature.batch_size) == (False, 1)


def test_an_item_that_depends_on_its_place_shares_no_batch(tmp_path: Path) -> None:
    made = graph([node("Add", "x places", "y")], 3, TensorProto.DOUBLE, places=[0.0, 0.0, 1.0, 0.0])
    assert described(made, tmp_path / "columns").is_batched
    made.graph.initializer[0].CopyFrom(*tensors(places=[[0.0], [0.0], [1.0]]))
    assert not described(made, tmp_path / "rows").is_batched


@pytest.mark.parametrize(
    ("nodes", "axes", "batched"),
    [
        ([node("ReduceMean", "x axis", "y", keepdims=0)], [4], False),
        ([node("ReduceMean", "x axis", "y", keepdims=1)], [1, 4], False),
        ([node("ReduceSum", "x", "y", keepdims=0)], [], False),
        ([node("Gather", "x first", "y", axis=0)], [4], False),
        ([node("Transpose", "x", "t"), node("MatMul", "x t", "y")], ["N", "N"], False),
        ([node("Identity", "axis", "i"), node("Cast", "i", "y", to=TensorProto.FLOAT)], [1], True),
        ([node("Reshape", "x shape", "y")], [1, 4], True),
    ],
    ids=["mean", "kept axis", "sum", "first", "pairs", "constant", "only one item"],
)
def test_an_output_of_all_items_takes_the_batch(
    tmp_path: Path, nodes: Sequence[onnx.NodeProto], axes: Sequence[int | str], batched: bool
) -> None:
    made = model(
        [*nodes, node("Abs", "x", "more")],
        [value("x", axes=["N", 4])],
        [value("y", axes=axes), value("more", axes=["N", 4])],
        tensors(axis=[0], first=0, shape=[1, -1]),
    )
    signature = described(made, tmp_path)
    assert (signature.is_batched, signature.batch_size) == (batched, 1)
    assert signature.inputs[0].shape == ((4,) if batched else ("N", 4))
    assert ("one at a time" in signature.batch_note) == batched


@pytest.mark.parametrize("declared", [["N"], ["N", 4], [1, 1]])
def test_the_returned_shape_counts_if_another_one_is_declared(
    tmp_path: Path, declared: Sequence[int | str]
) -> None:
    """CatBoost's regressors declare [N] and return [N, 1]."""
    trees = node(
        "TreeEnsembleRegressor",
        "x",
        "y",
        **graphs.SPLIT,
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
        n_targets=1,
    )
    made = model([trees], [value("x", axes=["N", 4])], [value("y", axes=declared)])
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    signature = described(made, tmp_path)
    assert (signature.is_batched, signature.batch_size, signature.batch_note) == (True, 0, "")
    assert signature.outputs[0].shape == (1,)


def test_a_row_for_each_item_counts_if_only_that_of_an_example_is_declared(tmp_path: Path) -> None:
    axes: Axes = ["N", 3, "height", "width"]
    nodes = [node("ArgMax", "x", "y", axis=1, keepdims=0), node("Abs", "x", "more")]
    outputs = [value("y", TensorProto.INT64, [1, "height", "width"]), value("more", axes=axes)]
    signature = described(model(nodes, [value("x", axes=axes)], outputs), tmp_path)
    assert (signature.is_batched, signature.batch_size, signature.batch_note) == (True, 0, "")
    assert signature.outputs[0].shape == ("height", "width")


@pytest.mark.parametrize(
    ("first", "declared", "batched", "shape"),
    [
        (1, [12800, 1], False, ("y_axis_0", 1)),
        (1, ["boxes", 1], False, ("boxes", 1)),
        ("N", [12800, 1], True, ("y_axis_0", 1)),
        (1, [1, 12800, 1], True, ("y_axis_1", 1)),
        ("N", ["N", 12800, 1], True, ("y_axis_1", 1)),
    ],
)
def test_the_sizes_of_an_example_do_not_count_if_those_of_the_input_vary(
    tmp_path: Path, first: int | str, declared: Axes, batched: bool, shape: tuple[int | str, ...]
) -> None:
    """Face detectors are exported with a photo of 640x640, and declare its number of places."""
    shape_of_one = [-1, 1] if len(declared or ()) == 2 else [0, -1, 1]
    nodes = [node("MaxPool", "x", "p", kernel_shape=[8, 8], strides=[8, 8])]
    made = model(
        [*nodes, node("Reshape", "p shape", "y")],
        [value("x", axes=[first, 2, None, None])],
        [value("y", axes=declared)],
        tensors(shape=shape_of_one),
    )
    signature = described(made, tmp_path)
    assert (signature.is_batched, signature.batch_size) == (batched, 1)
    assert signature.outputs[0].shape == shape
    assert signature.limits["x_axis_2"] < signature.limits[str(shape[0])] == 2**24


def test_rounding_does_not_count_if_the_first_items_are_all_but_zero(tmp_path: Path) -> None:
    """A sum of many trees is added up in another order in large batches."""
    noise = np.where(np.arange(512) < 32, 1e-7, 2e-7).astype(np.float32)[:, None]
    nodes = [
        node("Shape", "x", "size", start=0, end=1),
        node("Sub", "size one", "last"),
        node("Gather", "noise last", "rounding"),
        node("Greater", "x much", "is"),
        node("Cast", "is", "class", to=TensorProto.FLOAT),
        node("Add", "class rounding", "y"),
    ]
    made = graph(nodes, "N", TensorProto.FLOAT, noise=noise, one=[1], much=np.float32(1.5))
    assert described(made, tmp_path).is_batched


def test_numbers_that_a_batch_rounds_otherwise_are_no_dependence(tmp_path: Path) -> None:
    rounding = np.where(np.arange(512) > 0, 0.01, 0).astype(np.float32)[:, None]
    nodes = [
        node("Shape", "x", "size", start=0, end=1),
        node("Sub", "size one", "last"),
        node("Gather", "rounding last", "more"),
        node("Add", "x more", "y"),
    ]
    made = graph(nodes, "N", TensorProto.FLOAT, rounding=rounding, one=[1])
    assert described(made, tmp_path).is_batched


def test_whole_numbers_differ_enough(tmp_path: Path) -> None:
    for kind in (TensorProto.INT64, TensorProto.FLOAT):
        shaped = [value("x", kind, ["N"])], [value("y", kind, ["N"])]
        made = model([node("CumSum", "x axis", "y")], *shaped, tensors(axis=0))
        assert not described(made, tmp_path / str(kind)).is_batched


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            [node("RandomNormal", "", "n", shape=[4]), node("Add", "x n", "y")],
            "differ from call to call",
        ),
        ([node("Reshape", "x shape", "z"), node("Add", "x z", "y")], "fails on generated items"),
    ],
    ids=["random", "refused"],
)
def test_a_graph_that_cannot_be_tried_is_served_as_declared(
    tmp_path: Path, nodes: Sequence[onnx.NodeProto], said: str
) -> None:
    signature = described(graph(nodes, "N", shape=[-1, 2]), tmp_path)
    assert signature.is_batched
    assert signature.batch_note.startswith(NOT_COMPARED)
    assert said in signature.batch_note


def test_scales_of_the_whole_batch_are_a_dependence(tmp_path: Path) -> None:
    """An item of large numbers would make zeros of the others."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("DequantizeLinear", "q scale zero", "y"),
    ]
    signature = described(graph(nodes, "N"), tmp_path)
    assert not signature.is_batched
    assert "DynamicQuantizeLinear" in signature.batch_note


def test_the_lengths_are_tried_until_one_fits(tmp_path: Path) -> None:
    made = model(
        [node("Reshape", "x shape", "parts"), node("ReduceMax", "parts axis", "most", keepdims=1),
         node("Sub", "parts most", "differences"), node("Shape", "x", "size"),
         node("Reshape", "differences size", "y")],
        [value("x", axes=["N", "n"])],
        [value("y", axes=["N", "n"])],
        tensors(shape=[-1, 64], axis=[0]),
    )  # fmt: skip
    assert not described(made, tmp_path).is_batched


def test_a_limit_makes_the_first_axis_one_of_many(tmp_path: Path) -> None:
    graphs.saved(centred("N"), tmp_path, "1")
    written = {"name": "m", "version": "1", "task": "tensor", "limits": {"N": 9}}
    (tmp_path / "model.json").write_text(json.dumps(written))
    signature = OnnxBackend().signature(Model.read(tmp_path))
    assert (signature.is_batched, signature.limits) == (False, {"N": 9})
    assert "has a limit for the first axis, N" in signature.batch_note


@pytest.mark.parametrize(("reader", "said"), [("Crashing", "signal 6"), ("Endless", "too long")])
def test_a_crash_or_a_delay_leaves_the_graph_as_declared(tmp_path: Path, reader: str, said: str) -> None:
    read = Model.read(graphs.saved(graph([node("Abs", "x", "y")], "N"), tmp_path / "graph"))
    signature = describe.signature(f"tests.fake.graph_readers:{reader}", read)
    assert signature.is_batched
    assert signature.batch_note.startswith(NOT_COMPARED)
    assert said in signature.batch_note
    alone = Model.read(graphs.saved(graph([node("Abs", "x", "y")], 1), tmp_path / "alone"))
    assert describe.signature(f"tests.fake.graph_readers:{reader}", alone).batch_note == ""


def test_what_is_known_before_a_delay_is_kept(tmp_path: Path) -> None:
    read = Model.read(graphs.saved(graph([node("Abs", "x", "y")], "N"), tmp_path / "graph"))
    signature = describe.signature("tests.fake.graph_readers:Slow", read)
    assert signature.batch_note == "known"


@pytest.mark.parametrize("axes", [("T", "B"), (None, None), ("sequence", "batch"), ("B", "T"), (5, "B")])
@pytest.mark.parametrize(("axis", "batched"), [(0, False), (1, True)])
def test_steps_of_a_sequence_share_no_batch_wherever_its_axis_is(
    tmp_path: Path, axes: Sequence[int | str | None], axis: int, batched: bool
) -> None:
    shaped = [*axes, 2]
    made = model(
        [node("CumSum", "x axis", "y")],
        [value("x", axes=shaped)],
        [value("y", axes=shaped)],
        tensors(axis=axis),
    )
    signature = described(made, tmp_path)
    assert signature.is_batched == batched
    assert bool(signature.batch_note) == (not batched)
    assert len(signature.inputs[0].shape) == (2 if batched else 3)


def test_an_output_that_a_batch_does_not_divide_is_not_taken_for_one_of_items(tmp_path: Path) -> None:
    made = model(
        [node("ReduceMean", "x first", "mean", keepdims=0), node("Reshape", "mean shape", "y")],
        [value("x", axes=["T", "B", 2])],
        [value("y", axes=["rows", 2])],  # the runtime cannot infer that these are B
        tensors(first=[0], shape=[-1, 2]),
    )
    signature = described(made, tmp_path / "open")
    assert (signature.is_batched, signature.outputs[0].shape) == (False, ("rows", 2))
    described_in = {"name": "m", "version": "1", "task": "tensor", "limits": {"rows": 9}}
    graphs.saved(made, tmp_path, "1")
    (tmp_path / "model.json").write_text(json.dumps(described_in))
    signature = graphs.compared(Model.read(tmp_path))
    assert (signature.is_batched, signature.outputs[0].shape) == (False, ("rows", 2))


def test_the_describing_process_compares(tmp_path: Path) -> None:
    read = Model.read(graphs.saved(summed("N"), tmp_path / "graph"))
    signature = describe.signature("fastapi_onnx.backend:OnnxBackend", read)
    assert not signature.is_batched


def test_an_input_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the number of axes of the input x is unknown"):
        described(model([node("Abs", "x", "y")], [value("x", axes=None)], [value("y")]), tmp_path)


def branch(name: str, operator: str) -> onnx.GraphProto:
    """A branch that computes `name` from `x`, which is outside of it."""
    return helper.make_graph([node(operator, "x", name)], name, [], [value(name, axes=None)])


def condition(
    nodes: Sequence[onnx.NodeProto], batch: int | str | None, **weights: object
) -> onnx.ModelProto:
    """`y` is -x if `bool` is true, else |x|; the nodes compute `bool`."""
    choice = node("If", "bool", "y", then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs"))
    return graph([*nodes, choice], batch, TensorProto.FLOAT, **weights)


SIZE = [node("Shape", "x", "size", start=0, end=1), node("Squeeze", "size", "n")]
"""`n` is the number of items."""


@pytest.mark.parametrize(
    ("nodes", "batched"),
    [
        ([node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum many", "bool")], False),
        ([node("NonZero", "x", "z"), node("Size", "z", "n"), node("Greater", "n most", "bool")], False),
        ([node("Gather", "x first", "item", axis=0), node("Gather", "item first", "n"),
          node("Greater", "n many", "bool")], False),
        ([*SIZE, node("Greater", "n most", "bool")], False),
        ([*SIZE, node("Greater", "n none", "bool")], True),
        ([node("Shape", "x", "size", start=1), node("Squeeze", "size", "n"),
          node("Greater", "n none", "bool")], True),
    ],
    ids=["sum", "count", "an item", "size", "any size", "another axis"],
)  # fmt: skip
def test_a_branch_that_all_items_choose_shares_no_batch(
    tmp_path: Path, nodes: Sequence[onnx.NodeProto], batched: bool
) -> None:
    """None of the made-up batches reaches `many`."""
    made = condition(nodes, "N", many=np.float32(1e6), most=100, none=0, first=0)
    signature = described(made, tmp_path)
    assert signature.is_batched is batched
    assert bool(signature.batch_note) is not batched


@pytest.mark.parametrize("batched", [False, True])
def test_a_loop_whose_end_all_items_choose_shares_no_batch(tmp_path: Path, batched: bool) -> None:
    """It doubles `x` until the sum is large, or a number of times."""
    turn = [
        node("Add", "now now", "next"),
        node("ReduceSum", "next", "sum", keepdims=0),
        node("Less", "i most" if batched else "sum many", "again"),
    ]
    inputs = [
        value("i", TensorProto.INT64, []),
        value("go", TensorProto.BOOL, []),
        value("now", axes=None),
    ]
    outputs = [value("again", TensorProto.BOOL, []), value("next", axes=None)]
    if batched:
        del turn[1]
    body = helper.make_graph(turn, "body", inputs, outputs)
    made = graph(
        [node("Loop", "steps go x", "y", body=body)], "N", steps=3, most=9, many=np.float32(1e6)
    )
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "go"))
    body.input[1].name = "was"
    signature = described(made, tmp_path)
    assert signature.is_batched is batched


@pytest.mark.parametrize(
    ("nodes", "batched"),
    [
        ([node("ReduceSum", "x", "n", keepdims=1)], False),
        ([node("ReduceMax", "x rows", "n", keepdims=1)], False),
        ([node("Identity", "x", "i"), node("ReduceMin", "i both", "n", keepdims=1)], False),
        ([node("ReduceSum", "x", "n", noop_with_empty_axes=1)], True),
        ([node("ReduceSum", "x columns", "n", keepdims=1)], True),
        ([node("Shape", "x", "s"), node("Cast", "s", "f", to=TensorProto.FLOAT),
          node("ReduceMax", "f", "n", keepdims=1)], True),
        ([node("BatchNormalization", "x ones ones ones ones", "n mean var", training_mode=1)], False),
        ([node("BatchNormalization", "x ones ones ones ones", "n")], True),
        ([node("TopK", "x columns", "n places", axis=0)], False),
        ([node("TopK", "x columns", "n places")], True),
        ([node("CumSum", "x rows", "n")], False),
        ([node("Transpose", "x", "t"), node("Unsqueeze", "t rows", "u"), node("GlobalMaxPool", "u", "p"),
          node("Squeeze", "p rows", "s"), node("Transpose", "s", "n")], False),
        ([node("Transpose", "x", "t"), node("Unsqueeze", "t columns", "u"),
          node("GlobalMaxPool", "u", "p"), node("Squeeze", "p", "n")], False),
        ([node("Unsqueeze", "x columns", "u"), node("GlobalMaxPool", "u", "p"),
          node("Squeeze", "p columns", "n")], True),
        ([node("QuantizeLinear", "x scale nothing", "q"),
          node("DequantizeLinear", "q scale nothing", "d"),
          node("Softmax", "d", "n", axis=0)], False),
        ([node("QuantizeLinear", "x scale nothing", "q"),
          node("DequantizeLinear", "q scale nothing", "d"),
          node("Softmax", "d", "n")], True),
        ([node("DynamicQuantizeMatMul", "x matrix scale nothing", "n", domain="com.microsoft")], False),
        ([node("NoSuchOperator", "x", "n", domain="elsewhere")], False),
    ],
    ids=["all", "rows", "both", "none", "columns", "shape", "training", "inference", "top", "row top",
         "sums", "pool", "pool of rows", "pool of columns", "quantised", "rows quantised", "dynamic",
         "unknown"],
)  # fmt: skip
def test_a_threshold_for_all_items_shares_no_batch(
    tmp_path: Path, nodes: Sequence[onnx.NodeProto], batched: bool
) -> None:
    """`y` is 0 where `n` is large, which it is for none of the made-up batches."""
    end = [node("Greater", "n many", "is"), node("Where", "is zero x", "y")]
    weights = {
        "many": np.float32(1e6),
        "zero": np.float32(0),
        "rows": [0],
        "both": [-2, -1],
        "columns": [1],
        "ones": np.ones(4, np.float32),
        "scale": np.float32(0.05),
        "nothing": np.uint8(128),
        "matrix": np.ones((4, 4), np.uint8),
    }
    made = graph([*nodes, *end], "N", TensorProto.FLOAT, **weights)
    made.opset_import.extend(helper.make_opsetid(name, 1) for name in ("com.microsoft", "elsewhere"))
    signature = described(made, tmp_path)
    assert signature.is_batched is batched
    assert bool(signature.batch_note) is not batched
    operators = [f"({part.op_type})" for part in nodes]
    assert batched or any(operator in signature.batch_note for operator in operators)


def test_texts_that_choose_a_branch_together_are_computed_alone(tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "made", exports.word_piece(), {})
    made = onnx.load(folder / "model.onnx")
    made.graph.node[-1].output[0] = "x"
    choice = {"then_branch": branch("a", "Neg"), "else_branch": branch("b", "Identity")}
    made.graph.node.extend(
        [
            node("ReduceMax", "counts", "longest", keepdims=0),
            node("Greater", "longest many", "bool"),
            node("If", "bool", "logits", **choice),
        ]
    )
    made.graph.initializer.append(numpy_helper.from_array(np.array(50, np.float32), "many"))
    graphs.saved(made, folder)
    signature = graphs.compared(Model.read(folder))
    assert (signature.is_batched, signature.batch_size) == (True, 1)
    assert "logits (If)" in signature.batch_note


def test_axes_in_another_file_are_left_to_the_runtime(tmp_path: Path) -> None:
    """ONNX Runtime refuses them when it loads the graph."""
    nodes = [node("ReduceSum", "x axes", "n", keepdims=1), node("Sub", "x n", "y")]
    made = graph(nodes, "N", TensorProto.FLOAT, axes=[0])
    onnx.save(made, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    read = Model.read(tmp_path)
    assert not OnnxBackend().signature(read).is_batched
    with pytest.raises(ConfigurationError, match="Cannot parse data from external tensors"):
        OnnxBackend().load(read, Settings(device="cpu"))


def test_what_a_function_computes_from_all_items_counts(tmp_path: Path) -> None:
    nodes = [
        node("ReduceSum", "a", "s", keepdims=0),
        node("Greater", "s s", "is"),
        node("Where", "is s a", "b"),
    ]
    opset = helper.make_opsetid("", 18)
    made = graph([helper.make_node("own", ["x"], ["y"], domain="mine")], "N")
    made.functions.append(helper.make_function("mine", "own", ["a"], ["b"], nodes, [opset]))
    made.opset_import.append(helper.make_opsetid("mine", 1))
    signature = described(made, tmp_path)
    assert not signature.is_batched
    assert "(ReduceSum)" in signature.batch_note


def dynamic(made: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with its first node's output in int8, by a scale of the whole batch."""
    output = made.graph.node[0].output[0]
    made.graph.node[0].output[0] = "before"
    made.graph.node.insert(1, node("DynamicQuantizeLinear", "before", "q scale zero"))
    made.graph.node.insert(2, node("DequantizeLinear", "q scale zero", output))
    return made


def test_texts_with_scales_of_the_whole_batch_are_computed_alone(tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "made", exports.word_piece(), {})
    graphs.saved(dynamic(onnx.load(folder / "model.onnx")), folder)
    signature = graphs.compared(Model.read(folder))
    assert (signature.is_batched, signature.batch_size) == (True, 1)
    assert "(DynamicQuantizeLinear)" in signature.batch_note


def test_the_int8_file_of_a_graph_is_looked_at_too(tmp_path: Path) -> None:
    def load(batch: int | str, precision: Literal["fp32", "int8"]) -> str:
        folder = tmp_path / f"{batch}"
        nodes = [node("Mul", "x two", "z"), node("Abs", "z", "y")]
        made = graph(nodes, batch, TensorProto.FLOAT, two=np.float32(2))
        graphs.saved(made, folder)
        onnx.save(dynamic(made), folder / "model_quantized.onnx")
        settings = Settings(device="cpu", cpu_runtime="onnxruntime", precision=precision)
        return OnnxBackend().load(Model.read(folder), settings).batch_note

    assert load("N", "fp32") == ""
    assert "(DynamicQuantizeLinear)" in load("N", "int8")
    with pytest.raises(ConfigurationError, match="DynamicQuantizeLinear"):
        load(2, "int8")

"""ONNX graphs made on the spot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

Axes = Sequence[int | str | None] | None


def value(name: str, kind: int = TensorProto.FLOAT, axes: Axes = ("N",)) -> onnx.ValueInfoProto:
    """An input or output; an axis is a size, a name or nothing; without axes their number is open."""
    return helper.make_tensor_value_info(name, kind, axes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A graph of these."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """An operator; names are separated by blanks."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def saved(made: onnx.ModelProto, folder: Path, version: str | None = None) -> Path:
    """The folder, which then holds the graph, without a model.json."""
    path = folder / version / "model.onnx" if version else folder / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return folder


def two_by_two(batch: int | str | None = "N") -> onnx.ModelProto:
    """Inputs `a` FP32 [2] and `b` INT64 [2]; outputs `sum` FP32 [2] and `more` BOOL [2], a > b."""
    nodes = [
        node("Cast", "b", "c", to=TensorProto.FLOAT),
        node("Add", "a c", "sum"),
        node("Greater", "a c", "more"),
    ]
    inputs = [value("a", axes=[batch, 2]), value("b", TensorProto.INT64, [batch, 2])]
    outputs = [value("sum", axes=[batch, 2]), value("more", TensorProto.BOOL, [batch, 2])]
    return model(nodes, inputs, outputs)


def nonzero() -> onnx.ModelProto:
    """Input `x` FP32 [N, n]; output `places` INT64 [2, found], and `twice` FP32 [N, n]."""
    inputs, nodes = (
        [value("x", axes=["N", "n"])],
        [node("NonZero", "x", "places"), node("Add", "x x", "twice")],
    )
    outputs = [value("places", TensorProto.INT64, [2, "found"]), value("twice", axes=["N", "n"])]
    return model(nodes, inputs, outputs)


def mean_colour(size: int | str = "height") -> onnx.ModelProto:
    """Input `pixel_values` FP32 [N, 3, size, size]; output `logits` [N, 3], the mean of each channel."""
    nodes = [node("GlobalAveragePool", "pixel_values", "means"), node("Flatten", "means", "logits")]
    inputs = [value("pixel_values", axes=["batch_size", 3, size, size])]
    return model(nodes, inputs, [value("logits", axes=["batch_size", 3])])

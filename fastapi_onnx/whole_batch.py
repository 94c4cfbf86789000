"""Finds branches, loops and reductions that depend on all items of a batch.

They may change the results only beyond a threshold, so comparing made-up items does not show them. What
follows from the batch's size alone does not count here, because it can be tried out. Called by
`signature.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

SIZES = ("Shape", "Size")
"""Operators whose output depends on their input's shape only."""

SIZED_BY_NUMBERS = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose output's shape depends on their inputs' numbers."""

SIZED_BY_INPUTS = {
    **dict.fromkeys(("ConstantOfShape", "Range"), 0),
    **dict.fromkeys(("CenterCropPad", "Expand", "OneHot", "Pad", "Reshape", "Resize", "Slice"), 1),
    **dict.fromkeys(("Split", "SplitToSequence", "Tile", "TopK", "Upsample"), 1),
}
"""Operators whose output's shape depends on their inputs from this place on."""

BY_AXIS = {"ArgMax": 0, "ArgMin": 0, "CumSum": 0, "TopK": -1}
"""Other operators whose result depends on all numbers of an axis, by default this one."""

DECIDES = "items depend on each other: numbers of the whole batch decide what {} does"
REDUCES = "items depend on each other: {} reduces the whole batch"


@dataclass(frozen=True)
class Trace:
    """Names of the tensors that follow from the inputs' numbers."""

    numbers: set[str] = field(default_factory=set)
    """Tensors whose numbers follow from the inputs' numbers."""

    shapes: set[str] = field(default_factory=set)
    """Tensors whose shape follows from the inputs' numbers."""

    def add(self, names: Iterable[str], numbers: bool, shapes: bool) -> None:
        """Adds names to these sets."""
        for chosen, known in ((numbers, self.numbers), (shapes, self.shapes)):
            if chosen:
                known.update(filter(None, names))

    def pass_on(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Adds each target to the sets that its source is in."""
        for source, target in zip(sources, targets, strict=False):
            self.add([target], source in self.numbers, source in self.shapes)


class WholeBatch:
    """Finds what a graph computes from all items of a batch."""

    def __init__(self, model: onnx.ModelProto, batch: int | str) -> None:
        """`model` has the shapes that onnx has inferred; `batch` is the first axis of its inputs."""
        self._batch = batch
        self._axes: dict[str, list[int | str]] = {}
        self._constants: dict[str, Any] = {}  # a tensor, or numbers
        self._trace = Trace()
        self.decisions: dict[str, None] = {}
        """The nodes that choose a branch, or the length of a loop."""

        self.reductions: dict[str, None] = {}
        """The nodes that reduce the batch."""

        weights = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights]
        self._trace.add(names, numbers=True, shapes=False)
        self._read(model.graph)

    def _read(self, graph: onnx.GraphProto) -> None:
        """Follows the numbers through a graph; those that it takes from around it are known."""
        inside = [tensor for tensor in graph.initializer if not uses_external_data(tensor)]
        self._constants |= {tensor.name: tensor for tensor in inside}
        for value in (*graph.input, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                axes = value.type.tensor_type.shape.dim
                self._axes[value.name] = [axis.dim_param or axis.dim_value for axis in axes]
        for node in graph.node:
            self._follow(node)

    def _follow(self, node: onnx.NodeProto) -> None:
        trace, kind = self._trace, node.op_type
        numbers = any(name in trace.numbers for name in node.input)
        shapes = any(name in trace.shapes for name in node.input)
        graphs = [part.g for part in node.attribute if part.type == onnx.AttributeProto.GRAPH]
        if kind == "Constant":
            made = onnx.helper.get_attribute_value(node.attribute[0])
            self._constants[node.output[0]] = made
        elif kind == "If":
            self._decide(node, node.input[:1])
            for branch in graphs:
                self._read(branch)
                trace.pass_on((value.name for value in branch.output), node.output)
        elif graphs:
            self._repeat(node, graphs[0], numbers, shapes)
        elif kind in SIZES:
            trace.add(node.output, shapes, shapes=False)
        else:
            sources = node.input[SIZED_BY_INPUTS.get(kind, len(node.input)) :]
            shapes |= any(name in trace.numbers for name in sources)
            trace.add(node.output, numbers, shapes or (numbers and kind in SIZED_BY_NUMBERS))
            if numbers and (kind.startswith(("DynamicQuantize", "Reduce")) or kind in BY_AXIS):
                self._reduce(node)
            if numbers and any(part.name == "training_mode" and part.i for part in node.attribute):
                self.reductions[name_of(node)] = None  # a batch normalisation

    def _repeat(self, node: onnx.NodeProto, body: onnx.GraphProto, numbers: bool, shapes: bool) -> None:
        """Follows the numbers through the body of a Loop, a Scan or another repeated graph."""
        trace, is_loop = self._trace, node.op_type == "Loop"
        inputs, outputs = ([value.name for value in side] for side in (body.input, body.output))
        if is_loop:
            trace.pass_on(node.input, inputs)
        else:
            trace.add(inputs, numbers, shapes)
        known = -1
        while known != (known := len(trace.numbers) + len(trace.shapes)):
            self._read(body)
            if is_loop:
                trace.pass_on(outputs, inputs[1:])  # to the next step
        if is_loop:
            self._decide(node, [*node.input[:2], outputs[0]])
            trace.pass_on(outputs[1:], node.output)
        else:
            trace.pass_on(outputs, node.output)

    def _decide(self, node: onnx.NodeProto, names: Iterable[str]) -> None:
        if any(name in self._trace.numbers for name in names):
            self.decisions[name_of(node)] = None

    def _reduce(self, node: onnx.NodeProto) -> None:
        """Notes a reduction of the axis that has the batch's name, or of all axes."""
        shape, reduced = self._axes.get(node.input[0]), self._reduction_axes(node)
        if reduced is None or (reduced and shape is None):
            return
        places = {axis % len(shape) for axis in reduced} if shape else set()
        named = shape and any(shape[place] == self._batch for place in places)
        if not reduced or len(places) == len(shape or ()) or (named and isinstance(self._batch, str)):
            self.reductions[name_of(node)] = None

    def _reduction_axes(self, node: onnx.NodeProto) -> list[int] | None:
        """Returns the axes that a node reduces; empty for all, None for no axis or unknown ones."""
        options = {part.name: onnx.helper.get_attribute_value(part) for part in node.attribute}
        axes = options.get("axes", options.get("axis", BY_AXIS.get(node.op_type, [])))
        if (name := "".join(node.input[1:2])) and node.op_type != "TopK":
            if name not in self._constants:
                return None
            axes = self._constants[name]
            axes = numpy_helper.to_array(axes) if isinstance(axes, onnx.TensorProto) else axes
        found: list[int] = np.atleast_1d(axes).tolist()
        return None if not found and options.get("noop_with_empty_axes") else found


def name_of(node: onnx.NodeProto) -> str:
    """Returns the node's name, or its output's if it has none, and its operator."""
    return f"{node.name or node.output[0]} ({node.op_type})"


def objection(model: onnx.ModelProto, batch: int | str, is_text: bool) -> str:
    """Returns why items depend on each other; empty if nothing is computed from the whole batch.

    A dynamic quantisation reduces the batch: a large number of one item makes zeros of the others'.
    Reductions don't count for texts, whose masks may be reduced without an effect on the results.
    """
    found = WholeBatch(model, batch)
    for name in found.decisions:
        return DECIDES.format(name)
    for name in () if is_text else found.reductions:
        return REDUCES.format(name)
    return ""

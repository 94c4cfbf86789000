"""Follows the items of a batch through a graph, to show that none depends on another.

Numbers of the whole batch may change the results only beyond a threshold, so comparing made-up items
does not show them. An operator is trusted only as far as `batch_rules.py` says. What follows from the
batch's size alone does not count, because it can be tried out. Called by `signature.py`, `backend.py`.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.helper import make_tensor_type_proto as tensor_type
from onnx.reference import ReferenceEvaluator

from fastapi_onnx.batch_rules import DOMAINS, RULES, Call, MixedError, Shape, Tensor, keep, product
from fastapi_onnx.normalisation import model_inputs
from smallplates.models.tensors import EXAMPLE_LENGTHS, Array

SIZE = 13
"""Items of the batch that is followed if the graph takes any number; hardly any axis has this size."""

MAX_VALUE = 2**20
"""Most numbers of a tensor that are computed, to know the shapes that follow from them."""

MAY_DEPEND = "items may depend on each other"
OBJECTION = f"{MAY_DEPEND}: {{}} is not known to keep them apart"
RANKS = {
    "LinearClassifier": (1, 2),
    "SVMClassifier": (1, 2),
    "TreeEnsembleClassifier": (1, 2),
    "EmbedLayerNormalization": (3, 1, 3),
}
"""Numbers of axes of outputs that onnx does not infer, if they are not those of an input."""

LABELS = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
Tensors = dict[str, Tensor]
Inputs = Sequence[Tensor | None]


def objection(model: onnx.ModelProto, size: int = 0) -> str:
    """Returns why items may depend on each other, with the name of a node; empty if none does.

    `size` is the batch's size if it is fixed. Large weights may be missing. A graph may compute some
    lengths of the other axes only.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    mixer = ""
    for length in EXAMPLE_LENGTHS:
        outputs = BatchAxis(model, size or SIZE, length).outputs()
        if not (mixers := [one.mixer for one in outputs if one.mixer]):
            return ""
        mixer = mixer or mixers[0]
    return OBJECTION.format(mixer)


class BatchAxis:
    """A graph whose batch has a certain size, and all other open axes a certain length."""

    def __init__(self, model: onnx.ModelProto, size: int, length: int) -> None:
        self._model, self._size = model, size
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._inputs: Tensors = {}
        for value in model_inputs(model.graph):
            kind = TypeProto()
            kind.CopyFrom(value.type)
            for place, axis in enumerate(kind.tensor_type.shape.dim):
                axis.dim_value = size if place == 0 else max(0, axis.dim_value) or length
            self._inputs[value.name] = Tensor(kind, rows=0)

    def outputs(self) -> list[Tensor]:
        """Returns what is known of the graph's outputs."""
        return self._follow(self._model.graph, self._inputs)

    def _follow(self, graph: onnx.GraphProto, around: Tensors) -> list[Tensor]:
        """Returns the outputs of a graph, given its inputs and the tensors around it."""
        known = dict(around)
        for weights in graph.initializer:
            kind = tensor_type(weights.data_type, weights.dims)
            known[weights.name] = with_value(Tensor(kind), stored(weights))
        for node in graph.node:
            known.update(zip(node.output, self._outputs(node, known), strict=False))
        return [known[value.name] for value in graph.output]

    def _outputs(self, node: onnx.NodeProto, known: Tensors) -> list[Tensor]:
        """Returns what is known of a node's outputs."""
        inputs = [known.get(name) for name in node.input]
        given = [one for one in inputs if one]
        graphs = {part.name: part.g for part in node.attribute if part.HasField("g")}
        types = self._types(node, known)
        if node.op_type == "GatherND" and inputs[1] and inputs[1].first is not None:
            mixers = [given[0].mixer] * bool(given[0].mixer)  # pairs of an item's number and another
        else:
            mixers = [one.mixer for one in given if one.mixer]
        try:
            if node.op_type == "If":
                return self._of_branches(inputs[0], graphs, known)
            if node.op_type in ("Loop", "Scan"):
                return self._of_loop(node, inputs, known)
            if mixers:
                return [Tensor(kind, mixer=mixers[0]) for kind in types]
            if node.op_type in ("Shape", "Size"):
                sizes = [size for size in given[0].shape if size is not None]
                is_known = len(sizes) == given[0].rank
                return computed(node, types, [np.broadcast_to(0, sizes) if is_known else None])
            if all(one.rows is None for one in given):
                made = computed(node, types, [one.value if one else None for one in inputs])
                return [self._repeated(node.op_type, given, one) for one in made]
            keep(node.domain in DOMAINS)
            places = {place: one for place, one in enumerate(inputs) if one}
            opset = self._opsets.get(node.domain, 1)
            call = Call(node, places, [*map(Tensor, types)], self._size, opset)
            axes = RULES[node.op_type](call)
            return [*apart(call, [axes] * len(types) if isinstance(axes, int) else axes)]
        except (MixedError, LookupError, ValueError):  # an unknown operator, or shapes against it
            rows, first = index_of_items(node, inputs)
            return [Tensor(kind, rows, name_of(node), first=first) for kind in types]

    def _types(self, node: onnx.NodeProto, known: Tensors) -> list[TypeProto]:
        """Returns the outputs' types; their number of axes if onnx does not know the operator."""
        given = {name: known[name] for name in node.input if name in known}
        values = {name: one.value for name, one in given.items() if one.value is not None}
        found: dict[str, TypeProto] = {}
        with contextlib.suppress(Exception):  # onnx's, of types that have no common base
            found = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain),
                node,
                {name: one.type for name, one in given.items()},
                {name: numpy_helper.from_array(value) for name, value in values.items()},
                opset_imports=[*self._model.opset_import],
                ir_version=self._model.ir_version,
            )
        are_free = all(one.rows is None for one in given.values())
        for place, name in enumerate(() if are_free else node.output):
            if name not in found or not found[name].tensor_type.HasField("shape"):
                with contextlib.suppress(MixedError):
                    shape = shape_of(node, place, [*given.values()])
                    found[name] = tensor_type(TensorProto.FLOAT, shape)
        return [found.get(name) or TypeProto() for name in node.output]

    def _repeated(self, operator: str, inputs: Sequence[Tensor], made: Tensor) -> Tensor:
        """Returns a tensor, too large to be computed, with its items if it repeats the same for each."""
        if made.value is None and operator in ("ConstantOfShape", "Expand", "Tile"):
            repeated = [] if operator == "ConstantOfShape" else inputs[0].shape
            once = [1] * (made.rank - len(repeated)) + [*repeated]
            for axis, (size, part) in enumerate(zip(made.shape, once, strict=True)):
                if size and part and size % (part * self._size) == 0:
                    return replace(made, rows=axis)
        return made

    def _of_branches(
        self, condition: Tensor | None, graphs: Mapping[str, onnx.GraphProto], known: Tensors
    ) -> list[Tensor]:
        """Returns the outputs of an If: those of both branches or, if their axes differ, of one."""
        keep(is_free(condition))
        outputs = {name: self._follow(graph, known) for name, graph in graphs.items()}
        first, second = outputs.values()
        pairs = [*zip(first, second, strict=True)]
        is_alike = all(one.mixer or other.mixer or one.rank == other.rank for one, other in pairs)
        if condition and condition.value is not None and not is_alike:
            return outputs["then_branch" if condition.value else "else_branch"]
        return [joined(one, other, self._size) for one, other in pairs]

    def _of_loop(self, node: onnx.NodeProto, inputs: Inputs, known: Tensors) -> list[Tensor]:
        """Returns the outputs of a Loop or a Scan, whose turns must not depend on the items.

        A Loop has two inputs in front of its state; a Scan has others after it, one part for each turn.
        """
        is_loop, body = node.op_type == "Loop", helper.get_node_attr_value(node, "body")
        keep(is_loop or {part.name for part in node.attribute} <= {"body", "num_scan_inputs"})
        first = 2 if is_loop else 0
        last = len(inputs) if is_loop else -helper.get_node_attr_value(node, "num_scan_inputs")
        parts = [one for one in inputs[last:] if one]
        keep(all(map(is_free, (*inputs[:first], *parts))))
        counters = [Tensor(tensor_type(kind, [])) for kind in (TensorProto.INT64, TensorProto.BOOL)]
        steps = [Tensor(tensor_type(one.kind, one.shape[1:])) for one in parts]
        before: list[Tensor] = []
        now = [replace(one, value=None, first=None) for one in inputs[first:last] if one]
        while True:
            given = zip(body.input, [*counters[:first], *now, *steps], strict=True)
            found = self._follow(body, known | {value.name: one for value, one in given})
            keep(all(map(is_free, found[:is_loop])))
            carried = zip(now, found[is_loop:], strict=False)
            before, now = now, [joined(one, other, self._size) for one, other in carried]
            if now == before:
                size = parts[0].shape[0] if parts else None
                return [*now, *(stacked(one, size) for one in found[is_loop + len(now) :])]


def apart(call: Call, axes: Sequence[int]) -> Iterator[Tensor]:
    """Yields the outputs of a call that keeps the items apart; those without an axis do not."""
    for place, one in enumerate(call.outputs):
        if place >= len(axes):
            yield replace(one, mixer=name_of(call.node))
            continue
        keep(axes[place] < one.rank)
        axis = one.type.tensor_type.shape.dim[axes[place]]
        axis.dim_value = axis.dim_value or call.lead.shape[call.lead.place] or 0
        keep(axis.dim_value and axis.dim_value % call.size == 0)
        yield replace(one, rows=axes[place])


def shape_of(node: onnx.NodeProto, place: int, inputs: Sequence[Tensor]) -> Shape:
    """Returns the shape of an output that onnx does not infer, as far as it is known."""
    if node.op_type == "ArrayFeatureExtractor":
        return [1, product(inputs[1].shape) or None]
    ranks, names = RANKS.get(node.op_type, ()), ("n_targets", *LABELS)
    rank = ranks[place] if place < len(ranks) else max(one.rank for one in inputs)
    widths = (
        len(part.ints) or len(part.strings) or part.i for part in node.attribute if part.name in names
    )
    return [None] * (rank - 1) + [next(widths, None) if rank > 1 else None]


def index_of_items(node: onnx.NodeProto, inputs: Inputs) -> tuple[int | None, Array | None]:
    """Returns the items' axis and the numbers in front if a node adds numbers of each item to constants.

    That is how the last token of each text is taken: by pairs of the text's number and its length.
    """
    if node.op_type == "Concat" and len(inputs) == 2:
        constant, other = inputs
        is_last = other and helper.get_node_attr_value(node, "axis") in (-1, other.rank - 1)
        if constant and other and is_last and is_free(constant) and not other.mixer:
            return other.rows, constant.first
    return None, None


def computed(
    node: onnx.NodeProto, types: Sequence[TypeProto], values: Sequence[Array | None]
) -> list[Tensor]:
    """Returns a node's outputs, with their numbers if those of all inputs are known and few."""
    feeds = {name: value for name, value in zip(node.input, values, strict=True) if name}
    made = [Tensor(kind) for kind in types]
    with contextlib.suppress(Exception):  # the evaluator's, of any type; or the shape is not known
        keep(all(value is not None for value in feeds.values()))
        keep(not node.op_type.startswith("Random"))
        keep(all(math.prod(size or 0 for size in one.shape) <= MAX_VALUE for one in made))
        found = ReferenceEvaluator(node).run(None, feeds)
        return [*map(with_value, made, found)]
    return made


def with_value(tensor: Tensor, value: Array | None) -> Tensor:
    """Returns a tensor with its numbers."""
    if value is None:
        return tensor
    kind = tensor_type(tensor.kind, value.shape)
    first = value[..., 0] if value.ndim and value.size else None
    return replace(tensor, type=kind, value=value, first=first)


def stored(weights: TensorProto) -> Array | None:
    """Returns a weight's numbers; None if they are left out, or lie in another file."""
    try:
        return None if uses_external_data(weights) else numpy_helper.to_array(weights)
    except ValueError:
        return None


def is_free(tensor: Tensor | None) -> bool:
    """Returns whether a tensor does not depend on the items' numbers."""
    return tensor is None or (tensor.rows is None and not tensor.mixer)


def joined(one: Tensor, other: Tensor, size: int) -> Tensor:
    """Returns what is known of a tensor that is either of two."""
    if one.mixer or other.mixer:
        return one if one.mixer else other
    keep(one.rank == other.rank)
    lead = one if one.rows is not None else other
    if lead.rows is not None:
        keep(one.is_even(lead.place, size) and other.is_even(lead.place, size))
    sizes = zip(one.shape, other.shape, strict=True)
    shape = [length if length == again else None for length, again in sizes]
    return Tensor(tensor_type(one.kind, shape), lead.rows)


def stacked(tensor: Tensor, size: int | None) -> Tensor:
    """Returns the tensor of several such tensors, which follow each other along a first axis."""
    rows = None if tensor.rows is None else tensor.rows + 1
    made = tensor_type(tensor.kind, [size, *tensor.shape])
    return replace(tensor, type=made, rows=rows, value=None, first=None)


def name_of(node: onnx.NodeProto) -> str:
    """Returns the node's name, or its output's if it has none, and its operator."""
    return f"{node.name or node.output[0]} ({node.op_type})"

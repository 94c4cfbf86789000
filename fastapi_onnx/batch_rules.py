"""Which operators keep the items of a batch apart, and along which axis their outputs have the items.

An operator that is not in RULES may mix the items. A rule gets a call of which some input has the items,
and returns the axis of each output. It raises MixedError for a call that mixes them, or that would need
to be known better. Called by `batch_axis.py`.
"""

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from smallplates.models.tensors import Array

Shape = list[int | None]
"""Sizes of a tensor's axes, None if unknown."""

Axes = int | list[int]
"""The axis of the items in each output, or in all of them."""


class MixedError(Exception):
    """A call is not known to keep the items apart."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor, in a batch of a certain size."""

    type: onnx.TypeProto
    rows: int | None = None
    """Axis along which the items follow each other, one or more places each; None: it has no items."""

    mixer: str = ""
    """The node that may have mixed items; empty if they are apart."""

    value: Array | None = None
    """Its numbers, if they do not depend on the items' and were computed."""

    first: Array | None = None
    """The same, only of the first place of the last axis."""

    @property
    def kind(self) -> int:
        """The type of its numbers."""
        return int(self.type.tensor_type.elem_type)

    @property
    def shape(self) -> Shape:
        """The sizes. Raises MixedError if not even the number of axes is known."""
        keep(self.type.tensor_type.HasField("shape"))
        axes = self.type.tensor_type.shape.dim
        return [axis.dim_value if axis.HasField("dim_value") else None for axis in axes]

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def place(self) -> int:
        """The axis of the items, counted from the end; 0 if it has none."""
        return 0 if self.rows is None else self.rows - self.rank

    def is_even(self, place: int, size: int) -> bool:
        """Returns whether all items of a batch get the same, or their own, if `place` is their axis."""
        if self.rows is not None or -place > self.rank or self.shape[place] == 1:
            return self.place in (0, place)
        if self.value is None or self.value.size == 0 or self.value.shape[place] % size:
            return False
        parts = np.split(self.value, size, place)
        return all((part == parts[0]).all() for part in parts)


@dataclass(frozen=True)
class Call:
    """A node with its inputs; those that it leaves out are None."""

    node: onnx.NodeProto
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    """Only their types are known."""

    size: int
    """Items of the batch."""

    opset: int

    def axis(self, default: int, rank: int) -> int:
        """Returns the attribute `axis`, counted from the front."""
        return int(self.option("axis", default)) % rank

    def option(self, name: str, default: Any = None) -> Any:
        """Returns an attribute."""
        values = (part for part in self.node.attribute if part.name == name)
        return next(map(onnx.helper.get_attribute_value, values), default)

    def __getitem__(self, place: int) -> Tensor:
        """Returns an input. Raises MixedError if it is left out."""
        if self.has(place) and (found := self.inputs[place]):
            return found
        raise MixedError

    def has(self, place: int) -> bool:
        """Returns whether an input is given."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def numbers(self, place: int) -> list[Any]:
        """Returns an input's numbers, none if it is left out. Raises MixedError for unknown ones."""
        if not self.has(place):
            return []
        if (value := self[place].value) is None:
            raise MixedError
        return list(np.atleast_1d(value).tolist())

    @property
    def given(self) -> list[Tensor]:
        """The inputs that are given; the first of `lead` has the items."""
        return [one for one in self.inputs if one]

    @property
    def lead(self) -> Tensor:
        """The first input that has the items."""
        return next(one for one in self.given if one.rows is not None)

    def rows(self, *places: int) -> int:
        """Returns the items' axis in the first input; only it and those of `places` may have items."""
        having = {place for place, one in enumerate(self.inputs) if one and one.rows is not None}
        keep(0 in having and having <= {0, *places})
        return self.lead.rank + self.lead.place

    def are_even(self, tensors: Iterable[Tensor], place: int) -> bool:
        """Returns whether tensors have the items at a place, or the same for all of them."""
        return all(one.is_even(place, self.size) for one in tensors)


Rule = Callable[[Call], Axes]


def keep(condition: object) -> None:
    """Raises MixedError unless the condition holds."""
    if not condition:
        raise MixedError


def product(sizes: Iterable[int | None]) -> int:
    """Returns a number of elements, 0 if a size is unknown."""
    return math.prod(size or 0 for size in sizes)


def each(call: Call) -> int:
    """Computes each number from those in the same place, broadcast from the last axis on."""
    keep(call.are_even(call.given, call.lead.place))
    return max(one.rank for one in call.given) + call.lead.place


def first(*places: int) -> Rule:
    """Computes items along the first axis of the first input and of those of `places`."""

    def rule(call: Call) -> int:
        keep(call.rows(*places) == 0 and call[0].rank > 1)
        keep(
            all(call[place].is_even(-call[place].rank, call.size) for place in places if call.has(place))
        )
        return 0

    return rule


def only_first(rule: Rule) -> Rule:
    """The other outputs are places in the whole tensor, or numbers of the whole batch."""
    return lambda call: [axes if isinstance(axes := rule(call), int) else axes[0]]


def before(count: int) -> Rule:
    """Computes along the last axes, of which there are `count` or more."""

    def rule(call: Call) -> int:
        keep(call.rows() < call.axis(-count, call[0].rank))
        return call.rows()

    return rule


def beside(default: int) -> Rule:
    """Computes along one axis, which is not that of the items."""

    def rule(call: Call) -> int:
        rank, place = call.lead.rank, call.lead.place
        alike = [one for one in call.given if one.rows is not None or one.rank == rank]
        keep(call.axis(default, rank) != rank + place)
        keep(all(one.rank == rank for one in alike) and call.are_even(alike, place))
        keep(len({one.shape[place] for one in alike}) == 1)
        return rank + place

    return rule


def softmax(call: Call) -> Axes:
    """Older versions take all axes from one on together."""
    if call.opset >= 13:
        return beside(-1)(call)
    keep(call.rows() < call.axis(1, call[0].rank))
    return call.rows()


def without(call: Call, given: Sequence[int]) -> int:
    """Computes along some axes, which may then be left out."""
    axes = {axis % call[0].rank for axis in given}
    keep(axes and call.rows() not in axes)
    return call.rows() - (0 if call.option("keepdims", 1) else sum(axis < call.rows() for axis in axes))


def reduced(call: Call) -> int:
    """Reduces some axes; without any, all of them."""
    axes = call.option("axes") or call.numbers(1)
    return call.rows() if not axes and call.option("noop_with_empty_axes") else without(call, axes)


def reshaped(call: Call) -> int:
    """Numbers keep their order, so an item keeps its own if as many groups of items come before it."""
    groups, shape = product(call[0].shape[: call.rows()]), call.outputs[0].shape
    for axis, size in enumerate(shape):
        if groups and size and size % call.size == 0 and product(shape[:axis]) == groups:
            return axis
    raise MixedError


def expanded(call: Call) -> int:
    """Repeats numbers along other axes."""
    axis = call.outputs[0].rank + call[0].place
    keep(call.outputs[0].shape[axis] == call[0].shape[call.rows()])
    return axis


def gathered(call: Call) -> int:
    """Takes places of an axis: the same ones of each item, or each item's own of a table."""
    table, places = call[0], call[1]
    axis = call.axis(0, table.rank)
    if table.rows is None:
        return axis + places.rank + places.place
    if call.rows() == axis:
        return axis + own(places.value, call.size, (table.shape[axis] or 0) // call.size)
    return table.rows if table.rows < axis else table.rows - 1 + places.rank


def gathered_by_index(call: Call) -> int:
    """As `gathered`, by indices of several axes; the first may be that of the item itself."""
    table, places = call[0], call[1]
    shared, last = call.option("batch_dims", 0), places.shape[-1] or 0
    if table.rows is None or table.rows < shared:
        keep(not places.mixer and places.rows is not None and places.place < -1)
        keep(places.rows == table.rows if shared else True)
        return places.rank + places.place
    if places.rows is None and last and table.rows >= last + shared:
        return places.rank - 1 + table.rows - last
    keep(not shared and table.rows == 0 and table.shape[0] == call.size)
    axis = own(places.first, call.size, 1)
    keep(places.rows in (None, axis))
    keep(places.value is None or (places.value.take([0], axis) == places.value)[..., 1:].all())
    return axis


def own(places: Array | None, size: int, group: int) -> int:
    """Returns the axis along which each item has places of its own group, the same as all others."""
    keep(places is not None)
    numbers = np.asarray(places)
    for axis, count in enumerate(numbers.shape):
        inside = np.moveaxis(numbers, axis, -1) - group * np.arange(count)
        is_inside = ((inside >= 0) & (inside < group)).all()
        if count == size and is_inside and (inside == inside[..., :1]).all():
            return axis
    raise MixedError


def multiplied(left: int, right: int) -> Rule:
    """Multiplies matrices, of any number of axes, that are the inputs of these places."""

    def place_of(matrix: Tensor, is_transposed: object, inner: int) -> set[int]:
        if matrix.rows is None:
            return set()
        place = -3 - matrix.place if is_transposed and matrix.place > -3 else matrix.place
        keep(place != inner and matrix.rank > 1)
        return {place}

    def rule(call: Call) -> int:
        one, two = call[left], call[right]
        having = [other.rows is not None for other in call.given]
        both = (one.rows is not None) + (two.rows is not None)
        keep(sum(having) == both and not (call.option("transBatchA") or call.option("transBatchB")))
        places = place_of(one, call.option("transA"), -1) | place_of(two, call.option("transB"), -2)
        keep(len(places) == 1)
        place = places.pop()
        keep(call.are_even([one, two], place) if place < -2 else both == 1)
        rank = max(one.rank, two.rank) - (one.rank == 1) - (two.rank == 1)
        return rank + place + (two.rank == 1) + (one.rank == 1 and place < -2)

    return rule


def general_product(call: Call) -> int:
    """Multiplies a matrix of items with one of weights, and adds numbers."""
    keep(call.rows(2) == int(bool(call.option("transA"))))
    keep(not call.has(2) or call[2].is_even(-2, call.size))
    return 0


def einsum(call: Call) -> int:
    """The items' letter is the same in all inputs that have it, and in the output."""
    left, _, right = call.option("equation").decode().replace(" ", "").partition("->")
    terms, most = left.split(","), 0
    for at, (term, one) in enumerate(zip(terms, call.given, strict=True)):
        more = (one.rank - len(term) + 3) * ("..." in term)
        terms[at], most = term.replace("...", string.digits[10 - more :]), max(more, most)
    pairs = [*zip(terms, call.given, strict=True)]
    letters = {term[one.rows] for term, one in pairs if one.rows is not None}
    letter, output = letters.pop(), right.replace("...", string.digits[10 - most :])
    keep(not letters and letter in output)
    for term, one in pairs:
        places = [match.start() - one.rank for match in re.finditer(letter, term)]
        keep(len(places) < 2 and all(one.is_even(place, call.size) for place in places))
    return int(output.index(letter))


def sliced(call: Call) -> int:
    """Takes a part of other axes, or all of this one in its order."""
    rows, shape = call.rows(), call[0].shape
    starts = call.option("starts") or call.numbers(1)
    axes = call.option("axes") or call.numbers(3) or range(len(starts))
    steps = call.numbers(4) or [1] * len(starts)
    for start, axis, step in zip(starts, axes, steps, strict=True):
        keep(axis % len(shape) != rows or (start == 0 and step == 1))
    keep(call.outputs[0].shape[rows] == shape[rows])
    return rows


def padded(call: Call) -> int:
    """Adds places to other axes."""
    pads, rank, rows = call.option("pads") or call.numbers(1), call[0].rank, call.rows()
    axes = [axis % rank for axis in call.numbers(3) or range(rank)]
    keep(pads and (rows not in axes or not any(pads[axes.index(rows) :: len(axes)])))
    return rows


def resized(call: Call) -> int:
    """Interpolates along other axes."""
    rows, rank = call.rows(), call[0].rank
    keep(call.option("coordinate_transformation_mode") != b"tf_crop_and_resize")
    keep(call.option("keep_aspect_ratio_policy", b"stretch") == b"stretch")
    keep(call.outputs[0].shape[rows] == call[0].shape[rows])
    scales = call.option("scales") or call.numbers(1 if call.opset < 11 else 2)
    axes = [axis % rank for axis in call.option("axes") or range(rank)]
    keep(not scales or rows not in axes or scales[axes.index(rows)] == 1)
    return rows


def of_numbers(call: Call) -> int:
    """Makes an axis of each number."""
    return call.rows() + (call.axis(-1, call[0].rank + 1) <= call.rows())


def scaled(call: Call) -> int:
    """Quantises by scales that do not depend on the items: by one, or one for each of another axis."""
    rows, scale = call.rows(), call[1]
    keep(scale.rank < 2 or scale.is_even(call[0].place, call.size))
    keep(scale.rank != 1 or scale.shape == [1] or call.axis(1, call[0].rank) != rows)
    return rows


def recurrent(call: Call) -> list[int]:
    """A layer over the steps of a sequence, whose items are the second axis, or the first."""
    axis = 0 if call.option("layout") else 1
    keep(call.rows(4, 5, 6) == axis)
    for place, expected in ((4, 0), (5, axis), (6, axis)):
        keep(not call.has(place) or call[place].is_even(expected - call[place].rank, call.size))
    return [2 * axis, axis, axis]


def selected(call: Call) -> Axes:
    """Takes places of the last axis, or numbers of a table at the places of the items."""
    table, places = call[0], call[1]
    if table.rows is not None:
        return before(1)(call)
    keep(table.rank == 1 and product(places.shape[: places.rows]) == 1)
    return 1


def normalised(call: Call) -> int:
    """Normalises by stored numbers, those of each place of the second axis."""
    keep(call.rows() != 1 and call[0].rank > 1 and not call.option("training_mode"))
    keep(len([*filter(None, call.node.output)]) == 1)  # older versions are in training with more
    return call.rows()


def attended(call: Call) -> Axes:
    """Queries, keys and values of each item, and masks whose first of four axes is the items'."""
    keep(not call.has(3) or call[3].is_even(-4, call.size))
    return first(1, 2, *([3] if call.has(3) and call[3].rows == 0 else []))(call)


MICROSOFT, CLASSICAL = "com.microsoft", "ai.onnx.ml"
ROWS: list[tuple[str, Rule, str]] = [
    (
        "",
        each,
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu "
        "Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual "
        "Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid "
        "Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor",
    ),
    ("", first(), "AveragePool Col2Im Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool"),
    ("", first(), "GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool"),
    ("", first(), "QLinearConv SpaceToDepth"),
    ("", first(1), "GridSample"),
    ("", only_first(first()), "MaxPool"),
    ("", only_first(normalised), "BatchNormalization"),
    ("", lambda call: without(call, call.option("axes", [0, 2, 3])), "MeanVarianceNormalization"),
    ("", before(1), "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    ("", before(2), "Det Trilu"),
    ("", softmax, "Hardmax LogSoftmax Softmax"),
    ("", beside(-1), "LpNormalization TopK"),
    ("", beside(0), "Concat GatherElements ScatterElements Split"),
    ("", lambda call: without(call, call.numbers(1)), "CumSum"),
    ("", reduced, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin"),
    ("", reduced, "ReduceProd ReduceSum ReduceSumSquare"),
    ("", lambda call: without(call, [call.option("axis", 0)]), "ArgMax ArgMin"),
    ("", reshaped, "Flatten Reshape Squeeze Unsqueeze"),
    (
        "",
        lambda call: [*(call.option("perm") or range(call[0].rank)[::-1])].index(call.rows()),
        "Transpose",
    ),
    ("", expanded, "Expand Tile"),
    ("", gathered, "Gather"),
    ("", gathered_by_index, "GatherND"),
    ("", multiplied(0, 1), "MatMul MatMulInteger"),
    ("", multiplied(0, 3), "QLinearMatMul"),
    ("", general_product, "Gemm"),
    ("", einsum, "Einsum"),
    ("", sliced, "Slice"),
    ("", padded, "Pad"),
    ("", resized, "Resize Upsample"),
    ("", of_numbers, "OneHot"),
    ("", scaled, "DequantizeLinear QuantizeLinear"),
    ("", recurrent, "GRU LSTM RNN"),
    ("", only_first(attended), "Attention"),
    ("", lambda call: (first(3) if call.has(3) else first(1, 2))(call), "RotaryEmbedding"),
    (MICROSOFT, each, "BiasGelu FastGelu Gelu QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid"),
    (MICROSOFT, each, "QuickGelu"),
    (MICROSOFT, first(1), "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    (MICROSOFT, multiplied(0, 1), "FusedMatMul MatMulIntegerToFloat"),
    (MICROSOFT, first(), "CDist GroupNorm QLinearAveragePool QLinearGlobalAveragePool"),
    (MICROSOFT, first(3), "FusedConv"),
    (MICROSOFT, only_first(first(3, 5)), "Attention"),
    (MICROSOFT, only_first(first(5)), "QAttention"),
    (MICROSOFT, only_first(first(1, 2, 4, 5)), "MultiHeadAttention"),
    (MICROSOFT, first(1, 7, 8), "EmbedLayerNormalization"),
    (MICROSOFT, first(1), "RotaryEmbedding"),
    (MICROSOFT, beside(-1), "QLinearSoftmax"),
    (MICROSOFT, beside(0), "QLinearConcat"),
    (MICROSOFT, general_product, "FusedGemm"),
    (MICROSOFT, before(1), "MatMulNBits"),
    (MICROSOFT, scaled, "DequantizeLinear QuantizeLinear"),
    (CLASSICAL, each, "Binarizer CategoryMapper LabelEncoder"),
    (CLASSICAL, first(), "FeatureVectorizer Imputer LinearClassifier LinearRegressor Normalizer Scaler"),
    (CLASSICAL, first(), "SVMClassifier SVMRegressor TreeEnsemble TreeEnsembleClassifier"),
    (CLASSICAL, first(), "TreeEnsembleRegressor OneHotEncoder"),
    (CLASSICAL, selected, "ArrayFeatureExtractor"),
]
RULES = {(domain, name): rule for domain, rule, names in ROWS for name in names.split()}

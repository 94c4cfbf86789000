"""Which operators keep the items of a batch apart, and along which axis their outputs have the items.

An operator that is not in RULES may mix the items. A rule gets a call of which some input has the items,
and returns the axis of each output. It raises MixedError for a call that mixes them, or that would need
to be known better. Called by `batch_axis.py`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """A node with its inputs, by their places; without those that it leaves out."""

    node: onnx.NodeProto
    inputs: Mapping[int, Tensor]
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

    def numbers(self, place: int) -> list[Any]:
        """Returns an input's numbers, none if it is left out. Raises MixedError for unknown ones."""
        if place not in self.inputs:
            return []
        keep(self.inputs[place].value is not None)
        return list(np.asarray(self.inputs[place].value).ravel().tolist())

    @property
    def lead(self) -> Tensor:
        """The first input that has the items."""
        return next(one for one in self.inputs.values() if one.rows is not None)

    def rows(self, *places: int) -> int:
        """Returns the items' axis in the first input; only it and those of `places` may have items."""
        having = {place for place, one in self.inputs.items() if one.rows is not None}
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
    keep(call.are_even(call.inputs.values(), call.lead.place))
    return max(one.rank for one in call.inputs.values()) + call.lead.place


def first(*places: int) -> Rule:
    """Computes items along the first axis of the first input and of those of `places`."""

    def rule(call: Call) -> int:
        keep(call.rows(*places) == 0 and call.inputs[0].rank > 1)
        others = [call.inputs[place] for place in places if place in call.inputs]
        keep(all(one.is_even(-one.rank, call.size) for one in others))
        return 0

    return rule


def only_first(rule: Rule) -> Rule:
    """The other outputs are places in the whole tensor, or numbers of the whole batch."""
    return lambda call: [axes if isinstance(axes := rule(call), int) else axes[0]]


def along(axes: Callable[[Call, int], Iterable[int]]) -> Rule:
    """Computes along some axes, given a call and its number of axes; they may then be left out."""

    def rule(call: Call) -> int:
        rows, rank = call.rows(), call.inputs[0].rank
        found = {axis % rank for axis in axes(call, rank)}
        keep(rows not in found)
        return rows - (0 if call.option("keepdims", 1) else sum(axis < rows for axis in found))

    return rule


def from_axis(call: Call, rank: int) -> Iterable[int]:
    """Returns the axes of a layer's normalisation: one and those behind it."""
    return range(call.axis(-1, rank), rank)


def softmax_axes(call: Call, rank: int) -> Iterable[int]:
    """Returns one axis; older versions take all from one on together."""
    return [call.option("axis", -1)] if call.opset >= 13 else range(call.axis(1, rank), rank)


def reduced_axes(call: Call, rank: int) -> Iterable[int]:
    """Returns the axes that are given; without any, it may be all of them."""
    axes: Sequence[int] = call.option("axes") or call.numbers(1)
    return axes or range(0 if call.option("noop_with_empty_axes") else rank)


def channel_axes(call: Call, rank: int) -> Iterable[int]:
    """Returns the axis with stored numbers; in training, with more outputs in older versions, all."""
    is_training = call.option("training_mode") or len([*filter(None, call.node.output)]) > 1
    return range(rank) if is_training else [1]


def beside(default: int) -> Rule:
    """Computes along one axis, which is not that of the items, of tensors with as many axes."""

    def rule(call: Call) -> int:
        rank, place = call.lead.rank, call.lead.place
        alike = [one for one in call.inputs.values() if one.rows is not None or one.rank == rank]
        keep(call.axis(default, rank) != rank + place)
        keep(all(one.rank == rank for one in alike) and call.are_even(alike, place))
        keep(len({one.shape[place] for one in alike}) == 1)
        return rank + place

    return rule


def reshaped(call: Call) -> int:
    """Numbers keep their order, so an item keeps its own if as many groups of items come before it."""
    groups, shape = product(call.inputs[0].shape[: call.rows()]), call.outputs[0].shape
    for axis, size in enumerate(shape):
        if groups and size and size % call.size == 0 and product(shape[:axis]) == groups:
            return axis
    raise MixedError


def transposed(call: Call) -> int:
    """Takes the axes in another order."""
    axes = call.option("perm") or range(call.inputs[0].rank)[::-1]
    return [*axes].index(call.rows())


def gathered(call: Call) -> int:
    """Takes places of an axis: the same ones of each item, or each item's own of a table."""
    table, places = call.inputs[0], call.inputs[1]
    axis = call.axis(0, table.rank)
    if table.rows is None:
        return axis + places.rank + places.place
    if call.rows() == axis:
        return axis + own(places.value, call.size, (table.shape[axis] or 0) // call.size)
    return table.rows if table.rows < axis else table.rows - 1 + places.rank


def gathered_by_index(call: Call) -> int:
    """As `gathered`, by indices of several axes; the first may be that of the item itself."""
    table, places = call.inputs[0], call.inputs[1]
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
    """Multiplies the matrices of these places, and adds or scales by numbers of the others."""

    def rule(call: Call) -> int:
        pair = call.inputs[left], call.inputs[right]
        keep(not (call.option("transBatchA") or call.option("transBatchB")))
        if pair[1].rank == 1 and pair[1].rows is None:  # a vector, which sums up the last axis
            keep(len(call.inputs) == 2 and pair[0].place < -1)
            return pair[0].rank + pair[0].place
        keep(all(one.rank > 1 for one in pair))
        turned = call.option("transA"), call.option("transB")
        having = [one.rows is not None for one in pair]
        (place,) = {
            -3 - one.place if is_turned and one.place > -3 else one.place
            for one, is_turned in zip(pair, turned, strict=True)
            if one.rows is not None
        }
        keep(call.are_even(pair, place) if place < -2 else having == [place == -2, place == -1])
        others = (one for at, one in call.inputs.items() if at not in (left, right))
        keep(call.are_even(others, place))
        return max(one.rank for one in pair) + place

    return rule


def einsum(call: Call) -> int:
    """The items' letter is the same in all inputs that have it, and in the output."""
    left, _, right = call.option("equation").decode().replace(" ", "").partition("->")
    pairs = [*zip(left.split(","), call.inputs.values(), strict=True)]
    keep("." not in left)
    (letter,) = {term[one.rows] for term, one in pairs if one.rows is not None}
    for term, one in pairs:
        keep(term.count(letter) < 2)
        keep(letter not in term or one.is_even(term.index(letter) - one.rank, call.size))
    return int(right.index(letter))


def unmoved(name: str = "", place: int = -1) -> Rule:
    """Changes other axes only: this one keeps its size, and no number of an input is negative.

    These are the steps of a Slice, or the places that Pad adds.
    """

    def rule(call: Call) -> int:
        axis = call.outputs[0].rank + call.inputs[0].place
        keep(call.outputs[0].shape[axis] == call.inputs[0].shape[call.rows()])
        keep(all(number >= 0 for number in call.option(name) or call.numbers(place)))
        return axis

    return rule


def resized(call: Call) -> Axes:
    """Interpolates along other axes."""
    keep(call.option("coordinate_transformation_mode") != b"tf_crop_and_resize")
    keep(not call.option("axes") and not call.option("keep_aspect_ratio_policy"))
    scales = call.option("scales") or call.numbers(1 if call.opset < 11 else 2)
    keep(not scales or scales[call.rows()] == 1)
    return unmoved()(call)


def of_numbers(call: Call) -> int:
    """Makes an axis of each number."""
    return call.rows() + (call.axis(-1, call.inputs[0].rank + 1) <= call.rows())


def scaled(call: Call) -> int:
    """Quantises by scales that do not depend on the items: by one, or one for each of another axis."""
    rows, rank, scale = call.rows(), call.inputs[0].rank, call.inputs[1]
    keep(scale.rank < 2 or scale.is_even(rows - rank, call.size))
    keep(scale.rank != 1 or scale.shape == [1] or call.axis(1, rank) != rows)
    return rows


def recurrent(call: Call) -> list[int]:
    """A layer over the steps of a sequence, whose items are the second axis, or the first."""
    axis = 0 if call.option("layout") else 1
    keep(call.rows(4, 5, 6) == axis)
    for place, expected in ((4, 0), (5, axis), (6, axis)):
        state = call.inputs.get(place)
        keep(state is None or state.is_even(expected - state.rank, call.size))
    return [2 * axis, axis, axis]


def selected(call: Call) -> Axes:
    """Takes places of the last axis, or numbers of a table at the places of the items."""
    table, places = call.inputs[0], call.inputs[1]
    if table.rows is not None:
        return along(from_axis)(call)
    keep(table.rank == 1 and product(places.shape[: places.rows]) == 1)
    return 1


def attended(call: Call) -> Axes:
    """Queries, keys and values of each item, and masks whose first of four axes is the items'."""
    if call.node.domain == MICROSOFT:
        return first(3, 5)(call)
    mask = call.inputs.get(3)
    keep(mask is None or mask.is_even(-4, call.size))
    return first(1, 2, *([3] if mask and mask.rows == 0 else []))(call)


def rotated(call: Call) -> Axes:
    """Turns each place by its position; positions of each item are known of ONNX Runtime's only."""
    return first(*([1] if call.node.domain == MICROSOFT else [1, 2]))(call)


MICROSOFT = "com.microsoft"
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", MICROSOFT)
"""Domains of the operators in RULES; those of the same name have the same rule."""

ROWS: list[tuple[Rule, str]] = [
    (
        each,
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu Binarizer BitShift BitwiseAnd BitwiseNot "
        "BitwiseOr BitwiseXor Cast CastLike CategoryMapper Ceil Celu Clip Cos Cosh Div Dropout Elu "
        "Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf "
        "IsNaN LabelEncoder LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu "
        "Pow QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QuickGelu Reciprocal Relu Round Selu "
        "Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu "
        "Where Xor",
    ),
    (
        first(),
        "AveragePool CDist Col2Im Conv ConvInteger ConvTranspose DepthToSpace FeatureVectorizer "
        "GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNorm GroupNormalization Imputer "
        "InstanceNormalization LRN LinearClassifier LinearRegressor LpPool Normalizer OneHotEncoder "
        "QLinearAveragePool QLinearConv QLinearGlobalAveragePool SVMClassifier SVMRegressor Scaler "
        "SpaceToDepth TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    ),
    (first(1), "GridSample SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    (first(3), "FusedConv"),
    (first(1, 7, 8), "EmbedLayerNormalization"),
    (rotated, "RotaryEmbedding"),
    (only_first(attended), "Attention"),
    (only_first(first(5)), "QAttention"),
    (only_first(first(1, 2, 4, 5)), "MultiHeadAttention"),
    (only_first(first()), "MaxPool"),
    (only_first(along(channel_axes)), "BatchNormalization"),
    (along(from_axis), "LayerNormalization MatMulNBits RMSNormalization SimplifiedLayerNormalization"),
    (along(softmax_axes), "Hardmax LogSoftmax Softmax"),
    (along(lambda call, _: [call.option("axis", -1)]), "LpNormalization QLinearSoftmax TopK"),
    (along(lambda call, _: [call.option("axis", 0)]), "ArgMax ArgMin"),
    (along(lambda call, _: call.option("axes", [0, 2, 3])), "MeanVarianceNormalization"),
    (along(lambda call, _: call.numbers(1)), "CumSum"),
    (along(lambda *_: [-2, -1]), "Det Trilu"),
    (
        along(reduced_axes),
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
        "ReduceSum ReduceSumSquare",
    ),
    (beside(0), "Concat GatherElements QLinearConcat ScatterElements Split"),
    (reshaped, "Flatten Reshape Squeeze Unsqueeze"),
    (transposed, "Transpose"),
    (gathered, "Gather"),
    (gathered_by_index, "GatherND"),
    (multiplied(0, 1), "FusedGemm FusedMatMul Gemm MatMul MatMulInteger MatMulIntegerToFloat"),
    (multiplied(0, 3), "QLinearMatMul"),
    (einsum, "Einsum"),
    (unmoved(), "Expand Tile"),
    (unmoved("", 4), "Slice"),
    (unmoved("pads", 1), "Pad"),
    (resized, "Resize Upsample"),
    (of_numbers, "OneHot"),
    (scaled, "DequantizeLinear QuantizeLinear"),
    (recurrent, "GRU LSTM RNN"),
    (selected, "ArrayFeatureExtractor"),
]
RULES = {name: rule for rule, names in ROWS for name in names.split()}

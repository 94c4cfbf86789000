"""Signature of a graph that is asked in tensors, read from its file without the weights.

The first axis of every input is the batch, unless they differ or an output does not share it: then the
graph computes one item at a time, of its full shapes if another axis may be the batch. Every other axis
that has a name, or nothing, in place of a size varies from item to item. Called by `backend.py`.
"""

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import TensorProto, helper, inliner

from fastapi_onnx import batch_axis
from fastapi_onnx.logits import check_logits
from fastapi_onnx.normalisation import model_inputs
from fastapi_onnx.pooling import with_vectors
from smallplates.errors import ConfigurationError, in_one_line
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Signature, TensorSpec, axes_of

TYPES = {
    TensorProto.BOOL,
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    *(TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE),
}
TENSOR_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
MAX_OUTPUT = 2**24
"""Most elements of an output whose size depends on the data, unless model.json limits all such axes."""

LIMITED = "limits in model.json can raise it"
"""What clients are told of the maximum size of an axis."""

MAX_SHAPE_NUMBERS = 4096  # numbers, or bytes, of a tensor that shapes may depend on
LARGEST_BATCH = 128  # items; no engine fills larger batches
NO_NAMES = ("?", "None")
"""What exporters write for axes without a name: two such axes may have different sizes."""

GENERATED = re.compile(r"unk__\d+|.+_dynamic_axes_\d+")
"""Names that tf2onnx and PyTorch generate, another one for each axis: they may be the same axis."""

NO_AXIS = "no axis"
"""Stands for the first axis of a scalar."""

ZIPMAP_CURE = (
    '; convert the classifier again with options={"zipmap": False}, or with zipmap=False, '
    "or remove the node ZipMap"
)
STRING_CURE = (
    "; a classifier should return numbers, whose names are `labels` in model.json; texts need a Python "
    "class"
)
TEXT_CURE = "; encode texts as numbers in your client, or serve the model with a Python class"
OUTPUT_CURE = "; remove this output from the graph, or put tensors in its place"
Axis = int | str


def graph_signature(
    path: Path, model: Model, objection: str = "", varying: Mapping[str, Set[int]] = MappingProxyType({})
) -> Signature:
    """Returns how the graph in a file is called, which the model's description may say in part.

    `objection` is a reason, from outside the file, why the first axis is not a batch dimension.
    `varying` has the outputs' axes, by their place from the end, whose sizes are not those in the file.
    Raises ConfigurationError, in one sentence, for a graph that cannot be served.
    """
    try:
        graph = read_graph(path, model)
        outputs = kind_of(model.description.task).outputs
        check_logits(graph.graph, [name for name in outputs if name.endswith("logits")])
        read = TensorGraph(graph, model.description, objection, varying)
        if read.doubt:
            read = TensorGraph(read_graph(path, model), model.description, read.doubt, varying)
        return read.signature()
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from error
    except Exception as error:  # onnx and protobuf raise types of their own
        reason = in_one_line(error)
        raise ConfigurationError(f"{path} cannot be read as an ONNX graph: {reason}") from error


def read_graph(path: Path, model: Model) -> onnx.ModelProto:
    """Returns the graph in a file, without weights beside it. Raises ConfigurationError."""
    return with_vectors(onnx.load(path, load_external_data=False), model)


class TensorGraph:
    """Inputs and outputs of a graph."""

    _alone: bool
    """Whether only batches of one can be computed."""

    _note: str
    """Why items are computed one at a time; empty if outputs divide into items."""

    def __init__(
        self,
        model: onnx.ModelProto,
        description: ModelDescription,
        objection: str,
        varying: Mapping[str, Set[int]],
    ) -> None:
        """Reads all but the weights. Raises ConfigurationError and onnx's errors."""
        self._description, self._limits = description, description.limits
        self.doubt = ""
        """Why the first axis is not the batch after all; the graph must be read with this objection."""

        inputs = model_inputs(model.graph)
        batch, self._objection = find_batch(inputs, self._limits, objection)
        forget_weights(model.graph)
        self._by_data = set(forget_sizes(model.graph.output, varying))
        stated = [axes(value) for value in model.graph.output]
        for dimension in itertools.chain.from_iterable(map(dimensions, model.graph.output)):
            if dimension.dim_value <= 0:
                dimension.Clear()  # else the name stands against what is inferred, mostly an input's
        declared = [*map(copy.deepcopy, model.graph.output)]
        read = {name for made in model.graph.node for name in made.input}
        for value in model.graph.output:
            if value.name not in read:  # else other shapes are inferred from it
                value.type.tensor_type.ClearField("shape")
        if model.functions:
            model = inliner.inline_local_functions(model)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        outputs = inferred.graph.output
        for value, other in zip(outputs, declared, strict=True):
            keep_sizes(value, other)
        self._read(inputs, outputs, stated, None if self._objection else batch)
        if self._objection:
            return
        is_one = bool(self._doubt) or batch == 1
        shared = "" if is_one else batch_axis.objection(model, batch if isinstance(batch, int) else 0)
        if shared and (self._alone or description.text is not None):
            self._alone, self._note = True, "; ".join(filter(None, (self._note, shared)))
        else:
            self.doubt = self._doubt or shared

    def _read(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        stated: Sequence[list[Axis]],
        batch: Axis | None,
    ) -> None:
        """Reads inputs and outputs with this batch axis, or with none."""
        self._batch = batch
        self._alone, self._note = batch is None, ""
        self._doubt: str = ""
        """Why this axis may not be the batch; empty if no output is against it."""

        first = 0 if batch is None else 1
        self._inputs = tuple(self._input(value, axes(value)[first:]) for value in inputs)
        self._input_axes = axes_of(self._inputs)
        self._outputs = tuple(map(self._output, outputs, stated))

    def signature(self) -> Signature:
        """Returns the graph's signature. Raises ConfigurationError."""
        varying = dict.fromkeys((*self._input_axes, *axes_of(self._outputs)))
        if unknown := set(self._limits) - set(varying):
            raise ConfigurationError(
                f"limits in model.json has unknown axes {sorted(unknown)}; "
                f"the variable axes are {list(varying)}"
            )
        batch_size = self._batch if isinstance(self._batch, int) else 0
        limits = self._limit_outputs()
        return Signature(
            "tensor",
            self._inputs,
            self._outputs,
            limits=limits,
            batch_size=1 if self._alone else batch_size,
            is_batched=self._batch is not None,
            batch_note=self._objection or self._note,
            failure_is_client_error=True,
        )

    def _limit_outputs(self) -> dict[str, int]:
        """Returns the limit of each axis; limits the elements of outputs with axes that no limit has.

        MAX_OUTPUT is for all axes of such an output together, because only their product takes memory.
        """
        limits = {axis: self._description.limit(axis) for axis in self._input_axes}
        outputs = []
        for spec in self._outputs:
            by_data = [axis for axis in axes_of([spec]) if axis not in self._input_axes]
            fewest = math.prod(spec.shape_at(limits | dict.fromkeys(by_data, 1)))
            fixed = math.prod(size for size in spec.shape if isinstance(size, int))
            for axis in by_data:
                most = max(1, MAX_OUTPUT // fixed)
                limits[axis] = self._limits.get(axis, min(most, limits.get(axis, most)))
            has_all = self._limits.keys() >= {*by_data}
            outputs.append(spec if has_all else replace(spec, most=max(fewest, MAX_OUTPUT)))
        self._outputs = tuple(outputs)
        return limits

    def _input(self, value: onnx.ValueInfoProto, shape: Sequence[Axis]) -> TensorSpec:
        """Returns an input's specification. The model's tokens, not model.json, limit those of texts."""
        has_limits = self._description.text is None and any(isinstance(axis, str) for axis in shape)
        return TensorSpec(value.name, dtype(value), tuple(shape), note=LIMITED if has_limits else "")

    def _output(self, value: onnx.ValueInfoProto, stated: list[Axis]) -> TensorSpec:
        """Returns an output's specification; finds out whether items must be computed alone.

        They must where their share of an output is not known: its size depends on the data, or it has no
        batch axis. An open first axis is taken for the batch unless it is known for another one.
        """
        name, kind, note = value.name, dtype(value, is_output=True), ""
        shape = self._output_axes(value, stated)
        has_batch = shape[:1] == [self._batch]
        if self._batch is not None and not has_batch and shape and isinstance(shape[0], str):
            has_batch = shape[0] not in {*self._input_axes, *self._limits, *self._by_data}
            note = f"its axis {shape[0]} is taken as the batch unless it has a limit in model.json"
        rest = shape[1:] if has_batch else shape
        by_data = [axis for axis in rest if isinstance(axis, str) and axis not in self._input_axes]
        if by_data or not has_batch:
            self._alone = True
            if not has_batch or self._batch != 1:
                self._doubt = self._doubt or self._doubt_of(name, shape, has_batch, bool(by_data))
                does = "depends on the data in its size" if has_batch else "gets a batch axis in front"
                self._note = f"items are computed one at a time; the output {name} {does}"
        size = tuple(1 if axis in by_data and axis == self._batch else axis for axis in rest)
        return TensorSpec(name, kind, size, note=note if has_batch else "")

    def _doubt_of(self, name: str, shape: Sequence[Axis], has_batch: bool, by_data: bool) -> str:
        """Returns why an output that cannot be divided into items is against the batch; empty if not.

        It is if it begins with another axis that varies. If the name of the first axis does not say that
        it is the batch, it is also against it if there is such an axis, or if its size depends on the
        data, as of boxes. An axis with a limit in model.json cannot be the batch.
        """
        batch = self._batch
        if isinstance(batch, int):
            return f"the first axis is fixed at {batch}, but the output {name} cannot be divided"
        if has_batch and batch in shape[1:]:
            return f"the first axis, {batch}, is also another axis of the output {name}"
        others = [axis for axis in self._input_axes if axis not in self._limits]
        is_named = "batch" in str(batch).lower() or batch in ("B", "N")
        if has_batch or self._description.text or (is_named and not {*others}.intersection(shape[:1])):
            return ""
        found = " or ".join([str(batch), *others])
        missing = f"the output {name} has no axis {batch} in front"
        if others:
            return f"{missing}; the batch may be {found}"
        return f"{missing}, and its size depends on the data" if by_data else ""

    def _output_axes(self, value: onnx.ValueInfoProto, stated: list[Axis]) -> list[Axis]:
        """Returns an output's axes: as inferred from the inputs', else as stated, else by a new name."""
        if not value.type.tensor_type.HasField("shape"):
            raise ConfigurationError(
                f"the number of axes of the output {value.name} is unknown; export the graph with shapes"
            )
        value_axes, known = axes(value), (self._batch, *self._input_axes)
        names = stated if len(stated) == len(value_axes) else [""] * len(value_axes)
        return [
            axis if isinstance(axis, int) or axis in known else name or f"{value.name}_axis_{place}"
            for place, (axis, name) in enumerate(zip(value_axes, names, strict=True))
        ]


def forget_weights(graph: onnx.GraphProto) -> None:
    """Empties large tensors: no shape depends on them, and shape inference would copy them all."""
    for tensor in graph.initializer:
        for name in TENSOR_DATA:
            data = getattr(tensor, name)
            if len(data) > MAX_SHAPE_NUMBERS:
                tensor.ClearField(name)


def keep_sizes(value: onnx.ValueInfoProto, declared: onnx.ValueInfoProto) -> None:
    """Gives an output the sizes that the file declares, unless it has another number of axes."""
    if not value.type.tensor_type.HasField("shape"):
        value.CopyFrom(declared)
    elif len(dimensions(value)) == len(dimensions(declared)):
        for dimension, other in zip(dimensions(value), dimensions(declared), strict=True):
            dimension.MergeFrom(other)


def forget_sizes(
    outputs: Sequence[onnx.ValueInfoProto], varying: Mapping[str, Set[int]]
) -> Iterator[str]:
    """Forgets the declared sizes of outputs' axes, see `graph_signature`; yields the axes' names."""
    for value in outputs:
        shape = dimensions(value)
        for place in varying.get(value.name, ()):
            if not shape[place].dim_param:
                shape[place].dim_param = f"{value.name}_axis_{len(shape) + place}"
            yield shape[place].dim_param


def find_batch(
    inputs: Sequence[onnx.ValueInfoProto], limits: Mapping[str, int], objection: str
) -> tuple[Axis, str]:
    """Names the inputs' axes that have neither a size nor a name; those in front as the batch, if any.

    Returns the batch axis, and why the graph has none; empty if it has. Raises ConfigurationError for
    inputs that cannot be served.
    """
    if not inputs:
        raise ConfigurationError("the graph has no input")
    firsts: dict[Axis, str] = {}
    for value in inputs:
        dtype(value)
        if not value.type.tensor_type.HasField("shape"):
            raise ConfigurationError(
                f"the number of axes of the input {value.name} is unknown; export the graph with shapes"
            )
        firsts.setdefault((axes(value) or [NO_AXIS])[0], value.name)
    others = {*limits, *itertools.chain.from_iterable(axes(value)[1:] for value in inputs)} - {""}
    may_share = not objection and firsts.keys().isdisjoint(others)
    if may_share and len(firsts) > 1 and all(map(is_generated, firsts)):
        for value in inputs:
            dimensions(value)[0].Clear()
        firsts.clear()
    firsts.pop("", None)
    batch = next(iter(firsts), f"{inputs[0].name}_axis_0")
    objection = objection or batch_objection(inputs, batch, firsts, limits)
    for value in inputs:
        for place, dimension in enumerate(dimensions(value)):
            if place == 0 and isinstance(batch, int) and not objection:
                dimension.dim_value = batch
            elif not axes(value)[place]:
                is_batch = place == 0 and not objection
                dimension.dim_param = str(batch) if is_batch else f"{value.name}_axis_{place}"
    return batch, objection


def is_generated(axis: Axis) -> bool:
    """Returns whether an axis has no name, or one that says nothing."""
    return not axis or GENERATED.fullmatch(str(axis)) is not None


def batch_objection(
    inputs: Sequence[onnx.ValueInfoProto],
    batch: Axis,
    firsts: Mapping[Axis, str],
    limits: Mapping[str, int],
) -> str:
    """Returns why the inputs' first axis, `batch`, is not a batch; empty if it may be one.

    `firsts` has an input for each different first axis.
    """
    if len(firsts) > 1 or batch == NO_AXIS:
        found = " and ".join(f"{axis} in {name}" for axis, name in firsts.items())
        return f"the inputs do not share their first axis: {found}"
    if isinstance(batch, int) and batch > LARGEST_BATCH:
        return f"the first axis is fixed at {batch}, more than the largest batch, {LARGEST_BATCH}"
    if batch in limits:
        return f"model.json has a limit for the first axis, {batch}"
    if isinstance(batch, str) and (both := [value for value in inputs if batch in axes(value)[1:]]):
        return f"the first axis, {batch}, is also another axis of {both[0].name}"
    return ""


def dimensions(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    """Returns the axes of a tensor, as the file has them."""
    shape: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return shape


def axes(value: onnx.ValueInfoProto) -> list[Axis]:
    """Returns the size of each axis, or its name; empty where there is neither."""
    return [
        axis.dim_value if axis.dim_value > 0 else axis.dim_param * (axis.dim_param not in NO_NAMES)
        for axis in dimensions(value)
    ]


def dtype(value: onnx.ValueInfoProto, is_output: bool = False) -> str:
    """Returns NumPy's name of the element type. Raises ConfigurationError for what is no tensor."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        words = str(kind).removesuffix("_type").replace("_", " ")
        has_map = "map_type" in str(value.type.sequence_type)
        cure = ZIPMAP_CURE if has_map else OUTPUT_CURE * is_output
        raise ConfigurationError(
            f"{value.name} is not a tensor, but has the type {words}, which is not supported{cure}"
        )
    number = value.type.tensor_type.elem_type
    if number not in TYPES:
        words = TensorProto.DataType.Name(number)
        cure = STRING_CURE if is_output else TEXT_CURE
        cure = cure if number == TensorProto.STRING else ""
        raise ConfigurationError(f"{value.name} has the type {words}, which is not supported{cure}")
    return str(helper.tensor_dtype_to_np_dtype(number))

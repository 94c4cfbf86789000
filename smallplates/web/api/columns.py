"""Columns: the values of one input or output for a whole batch.

The codecs of the Open Inference Protocol (JSON and protobuf) and of TensorFlow Serving decode requests
to columns and encode answers from columns, with the code they share here. A column's values are an array
of numbers [N, *shape], or a list of texts or bytes in row-major order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from smallplates.errors import InvalidRequestError, InvalidTensorError
from smallplates.models.tensors import Array
from smallplates.tasks.base import Fields
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.datatypes import BYTES, DTYPES
from smallplates.web.api.fields import commas, element_of, field_value, without_texts
from smallplates.web.api.pipeline import Call
from smallplates.web.http.body import decode_json
from smallplates.web.inference.served_model import Answer, Input, check_count

MAX_DIMS = 8
MAX_CLASS_TEXTS = 1 << 18
"""Maximum number of texts in one output of the classification extension."""

OTHER_KINDS = {b"{": 'objects or {"b64": ...}', b'"': "text", b"n": "null", b"]": "empty lists"}
"""First byte of a value in JSON -> what is sent in place of numbers."""

Values = list[str] | list[bytes] | Array


@dataclass
class Column:
    """Values of one output, with the shape that the client sees."""

    name: str
    datatype: str
    shape: list[int]
    data: Array | list[bytes]


@dataclass
class WantedOutput:
    """An output that the client asks for."""

    name: str
    classes: int = 0
    """How many of the best classes to return as text; 0 returns the column itself."""

    binary: bool = False
    """Whether to send it as binary data after the JSON."""


@dataclass
class ColumnCall(Call):
    """A call with columns of `count` batch elements, and the requested outputs."""

    entry: CatalogEntry = field(kw_only=True)
    count: int = field(kw_only=True)
    outputs: list[WantedOutput] = field(default_factory=list, kw_only=True)
    shape: list[int] = field(default_factory=list, kw_only=True)
    """Shape of the first input as the client sent it."""

    candidates: int = field(default=1, kw_only=True)
    """How many candidates to return for each batch element."""

    id: str = field(default="", kw_only=True)
    by_rows: bool = field(default=False, kw_only=True)
    """Whether the client sent rows and gets rows back."""

    @property
    def is_batched(self) -> bool:
        """Whether the client's shapes begin with the batch dimension."""
        return len(self.shape) > len(self.entry.inputs[0].dims)


def call_of(
    entry: CatalogEntry,
    count: int,
    values: Mapping[str, Values],
    candidates: int = 1,
    outputs: Sequence[WantedOutput] = (),
    **further: Any,  # fields of ColumnCall
) -> ColumnCall:
    """Returns a call with these columns, which have been checked."""
    call = ColumnCall(
        top_k=max(candidates, *(output.classes for output in outputs)) if outputs else candidates,
        entry=entry,
        count=count,
        candidates=candidates,
        outputs=[*outputs],
        **further,
    )
    if entry.takes_tensors:
        call.tensors = [np.asarray(values[spec.name]) for spec in entry.inputs]
    else:
        call.inputs = inputs_of(entry, count, values)
    return call


def inputs_of(entry: CatalogEntry, count: int, values: Mapping[str, Values]) -> list[Input]:
    """Returns the task's inputs, one per batch element."""
    fields = [
        (spec.field, values[spec.name]) for spec in entry.inputs if spec.field and spec.name in values
    ]

    def element(is_list: bool, column: Values, index: int) -> Any:
        if isinstance(column, list) and is_list:
            length = len(column) // count
            return column[index * length : (index + 1) * length]
        return column[index]

    def read(index: int) -> Fields:
        return {
            field.name: field_value(field, element(field.is_list, column, index))
            for field, column in fields
        }

    def size(index: int) -> int:
        return sum(len(element(field.is_list, column, index)) for field, column in fields)

    return [Input(size(index), partial(read, index)) for index in range(count)]


# checks of the columns' names, types and shapes


def check_inputs(entry: CatalogEntry, inputs: Sequence[tuple[str, str, list[int]]], most: int) -> int:
    """Checks names, types and shapes of all inputs; returns the number of batch elements.

    `inputs` has the name, datatype and shape of each input. The shapes must match the model's, either
    all with or all without a batch dimension of at most `most`; this keeps their products from
    overflowing. Raises InvalidRequestError, or InvalidTensorError for a size out of range.
    """
    names = [name for name, _, _ in inputs]
    optional = [spec.name for spec in entry.inputs if spec.is_optional]
    wanted = {spec.name: spec for spec in entry.inputs}
    if len(wanted) == 1 and len(names) != 1:
        raise InvalidRequestError(f"{entry.name} has one input, not {len(names)}")
    unknown = [name for name in names if name not in wanted]
    if unknown:
        raise InvalidRequestError(
            f"{entry.name} has no input {unknown[0][:80]!r}; its inputs are {', '.join(wanted)}"
        )
    missing = [name for name in wanted if name not in names and name not in optional]
    if missing or len(set(names)) < len(names):
        needed = ", ".join(name for name in wanted if name not in optional)
        further = f"; {', '.join(optional)} is optional" if optional else ""
        raise InvalidRequestError(f"{entry.name} takes {needed}, each once{further}")
    most = most if entry.is_batched else 0
    counts = {check_input(wanted[name], datatype, shape, most) for name, datatype, shape in inputs}
    if len(counts) > 1:
        raise InvalidRequestError("the inputs have different numbers of batch elements")
    return counts.pop()


def check_input(spec: ColumnSpec, datatype: str, shape: list[int], most: int) -> int:
    """Checks an input and returns its batch size; `most` is 0 for a model without a batch dimension.

    Raises InvalidRequestError, or InvalidTensorError for a size out of range.
    """
    name, dims = spec.name, list(spec.dims)
    if datatype != spec.datatype:
        raise InvalidRequestError(f"{name} must be {spec.datatype}, not {datatype[:20]!r}")
    if fits(spec.dims, shape):
        check_sizes(spec, shape)
        return 1
    if not most:
        raise InvalidRequestError(f"{name} must have the shape {dims}, not {shape}")
    if fits(spec.dims, shape[1:]) or (dims == [1] and len(shape) == 1):
        check_count(shape[0], most)
        check_sizes(spec, shape[1:])
        return shape[0]
    batched = ", ".join(str(size) for size in ["N", *dims])
    raise InvalidRequestError(f"{name} must have the shape [{batched}] or {dims}, not {shape}")


def fits(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns whether a batch element may have this shape; -1 in `dims` matches any size."""
    return len(shape) == len(dims) and all(
        wanted in (size, -1) for size, wanted in zip(shape, dims, strict=True)
    )


def check_sizes(spec: ColumnSpec, shape: Sequence[int]) -> None:
    """Checks a batch element's varying axes; only list fields of requests may be empty.

    Raises InvalidTensorError.
    """
    fewest = 0 if spec.field else 1
    for size, wanted, most, axis in zip(shape, spec.dims, spec.limits, spec.axes, strict=False):
        if wanted == -1 and not fewest <= size <= most:
            raise InvalidTensorError(
                f"{spec.name} has the size {size} along {axis}; {fewest} to {most} are accepted"
            )


def check_outputs(entry: CatalogEntry, wanted: list[WantedOutput], binary: bool) -> list[WantedOutput]:
    """Returns the outputs to return: `wanted`, or all if it is empty. Raises InvalidRequestError."""
    datatypes = {spec.name: spec.datatype for spec in entry.outputs}
    for output in wanted:
        if output.name not in datatypes:
            raise InvalidRequestError(
                f"{entry.name} has no output {output.name[:80]!r}; "
                f"its outputs are {', '.join(datatypes)}"
            )
        if output.classes and datatypes[output.name] == BYTES:
            numbers = [name for name, datatype in datatypes.items() if datatype != BYTES]
            raise InvalidRequestError(f"only numeric outputs can be classified: {', '.join(numbers)}")
    if len({output.name for output in wanted}) < len(wanted):
        raise InvalidRequestError("an output is named twice")
    return wanted or [WantedOutput(name, binary=binary) for name in datatypes]


# decoding JSON and bytes


def check_size(
    text: bytes | memoryview | msgspec.Raw, entry: CatalogEntry, most: int, others: int = 0
) -> None:
    """Refuses JSON with more commas than `most` inputs can have, before anything is built from it.

    Base64 has a comma after it and may have another in a data URL; `others` allows for commas outside of
    inputs. Raises InvalidRequestError.
    """
    if any(spec.is_text for spec in entry.inputs):
        text = without_texts(text)
    of_one = sum(2 if spec.datatype == BYTES else spec.largest for spec in entry.inputs)
    if commas(text) > of_one * most + others:
        raise InvalidRequestError(f"the request has too many inputs; the maximum is {most}")


@cache
def numbers(kind: str, depth: int) -> "msgspec.json.Decoder[Any]":
    """Returns a decoder for lists, nested `depth` deep, of numbers of a NumPy kind."""
    nested: Any = {"b": bool, "f": float}.get(kind, int)
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def json_array(raw: msgspec.Raw, depth: int, spec: ColumnSpec) -> Array:
    """Parses a column's numbers from lists nested `depth` deep. Raises InvalidRequestError."""
    dtype = DTYPES[spec.datatype]
    values = decode_json(numbers(dtype.kind, depth), raw, spec.name)
    try:
        with np.errstate(over="raise"):  # JSON has no infinity, so no number may overflow to it
            return np.array(values, dtype)
    except (OverflowError, FloatingPointError) as error:
        raise InvalidRequestError(
            f"{spec.name} has a number outside the range of {spec.datatype}"
        ) from error
    except ValueError as error:
        raise InvalidRequestError(f"{spec.name} has lists of different lengths") from error


def count_of(raw: msgspec.Raw, spec: ColumnSpec) -> int:
    """Counts the numbers in JSON lists before they are built.

    Raises InvalidRequestError for lists that begin with another kind of value.
    """
    first = bytes(memoryview(raw)[:256]).translate(None, b" \t\r\n[")[:1]
    if kind := OTHER_KINDS.get(first):
        raise InvalidRequestError(f"{spec.name} takes {spec.datatype} {[*spec.dims]}, not {kind}")
    return commas(raw) + 1


def depth_of(raw: msgspec.Raw) -> int:
    """Returns the nesting of JSON lists, from 1 to 9, by counting the opening brackets."""
    start = bytes(memoryview(raw)[:64]).translate(None, b" \t\r\n")
    return max(1, min(len(start) - len(start.lstrip(b"[")), MAX_DIMS + 1))


def raw_array(data: memoryview, spec: ColumnSpec, dims: Sequence[int], count: int) -> Array:
    """Views little-endian numbers as [count, *dims]. Raises InvalidRequestError for a wrong length."""
    shape, dtype = (count, *dims), DTYPES[spec.datatype]
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise InvalidRequestError(f"{spec.name} needs {needed} bytes, not {len(data)}")
    array: Array = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype).reshape(shape)
    return array.astype(bool) if dtype.kind == "b" else array


def item_shape(spec: ColumnSpec, shape: Sequence[int]) -> Sequence[int]:
    """Returns the shape of a batch element, given a shape with or without the batch dimension."""
    if spec.dims == (1,):  # here the shape [N] means N elements
        return spec.dims
    return shape[1:] if len(shape) > len(spec.dims) else shape


# encoding answers


def columns_of(call: ColumnCall, answer: Answer) -> list[Column]:
    """Returns the requested outputs in order, without those that are null in the answer.

    Raises InvalidRequestError or InvalidTensorError.
    """
    specs = {spec.name: (spec, index) for index, spec in enumerate(call.entry.outputs)}
    if call.tensors is None:
        given = [wanted for wanted in call.outputs if has_values(specs[wanted.name][0], answer)]
        return [field_column(specs[wanted.name][0], wanted, call, answer) for wanted in given]
    if any(wanted.classes or not wanted.binary for wanted in call.outputs):
        call.entry.model.check_finite(answer)
    return [tensor_column(*specs[wanted.name], wanted, call, answer) for wanted in call.outputs]


def has_values(spec: ColumnSpec, answer: Answer) -> bool:
    """Returns whether the answer has values for an optional field, which may be null or left out.

    Raises InvalidRequestError if only some batch elements have one, because tensors have no null.
    """
    if spec.field is None or spec.field.required or spec.field.is_json:
        return True
    name = spec.field.name
    found = {best.get(name) is not None for candidates in answer.candidates for best in candidates}
    if len(found) > 1:
        raise InvalidRequestError(
            f"{spec.name} is null for some of the inputs: send each input in its own request"
        )
    return found != {False}


def field_column(spec: ColumnSpec, wanted: WantedOutput, call: ColumnCall, answer: Answer) -> Column:
    """Returns the column for a field of the answer, or the best classes as text.

    The shape is that of the input for one candidate per batch element, else [N, candidates].
    """
    field, labels = spec.field, answer.task.labels
    assert field is not None  # noqa: S101 the entry is for requests
    count = len(answer.candidates)
    if wanted.classes:
        if not labels:
            raise InvalidRequestError(f"{spec.name} has no classes")
        texts = [
            class_text(candidate[field.name], candidate["index"], labels[candidate["index"]])
            for candidates in answer.candidates
            for candidate in candidates[: wanted.classes]
        ]
        return Column(spec.name, BYTES, [count, len(texts) // count], texts)
    best = [candidates[: call.candidates] for candidates in answer.candidates]
    values: list[Any] = [candidate.get(field.name) for candidates in best for candidate in candidates]
    if len({len(candidates) for candidates in best}) > 1:
        raise InvalidRequestError(
            f"the inputs have different numbers of {spec.name}: send each in its own request"
        )
    if field.is_list:
        return list_column(spec, values, call, wanted.binary)
    single = call.shape if call.entry.inputs[0].dims == (1,) else [call.count, 1]
    shape = single if call.candidates == 1 else [count, len(values) // count]
    if spec.datatype == BYTES:
        texts = [element_of(field, value, wanted.binary) for value in values]
        return Column(spec.name, BYTES, shape, texts)
    return Column(spec.name, spec.datatype, shape, number_array(spec, values))


def list_column(spec: ColumnSpec, values: list[list[Any]], call: ColumnCall, binary: bool) -> Column:
    """Returns the column for a list field. Raises InvalidRequestError if the lengths differ."""
    if len({len(value) for value in values}) > 1:
        raise InvalidRequestError(
            f"{spec.name} differs in length between the answers: send each input in its own request"
        )
    data: Array | list[bytes]
    if spec.datatype == BYTES and spec.field:
        data = [element_of(spec.field, each, binary) for value in values for each in value]
    else:
        data = number_array(spec, values)
    shape = [len(values), len(values[0])] if call.is_batched else [len(values[0])]
    return Column(spec.name, spec.datatype, shape, data)


def number_array(spec: ColumnSpec, values: Sequence[Any]) -> Array:
    """Returns numbers of the answer as an array. Raises InvalidRequestError for too large a number."""
    try:
        return np.array(values, DTYPES[spec.datatype])
    except OverflowError as error:
        raise InvalidRequestError(
            f"{spec.name} is outside the range of {spec.datatype}; only POST /predict can return it"
        ) from error


def tensor_column(
    spec: ColumnSpec, index: int, wanted: WantedOutput, call: ColumnCall, answer: Answer
) -> Column:
    """Returns the column for an output of the network, [N, *shape], or its largest numbers as text.

    Like in Triton, the numbers of all axes count as classes. Without labels they only have an index.
    """
    array, labels = answer.arrays[index], answer.task.labels
    leading = [len(array)] if call.is_batched else []
    if not wanted.classes:
        return Column(spec.name, spec.datatype, [*leading, *array.shape[1:]], array)
    rows = array.reshape(len(array), -1)
    width = rows.shape[1]
    if len(rows) * min(width, wanted.classes) > MAX_CLASS_TEXTS:
        raise InvalidRequestError(f"classification would list more than {MAX_CLASS_TEXTS} classes")
    ascending = np.argsort(rows[:, ::-1], axis=1, kind="stable")  # the first of equal numbers is last
    order = (width - 1 - ascending)[:, ::-1][:, : wanted.classes]
    best = zip(np.take_along_axis(rows, order, 1).ravel().tolist(), order.ravel().tolist(), strict=True)
    texts = [
        class_text(value, place, labels[place] if len(labels) == width else None)
        for value, place in best
    ]
    return Column(spec.name, BYTES, [*leading, order.shape[1]], texts)


def class_text(value: float, index: int, label: str | None) -> bytes:
    """Formats `value:index:label`, as the protocol's classification extension specifies."""
    number = f"{value:f}" if isinstance(value, float) else str(int(value))
    return f"{number}:{index}{'' if label is None else f':{label}'}".encode()

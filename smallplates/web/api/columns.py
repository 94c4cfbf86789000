"""Columns: the values of one input or output for a whole batch.

The codecs of the Open Inference Protocol (JSON and protobuf) and of TensorFlow Serving decode requests
to columns and encode answers from columns, with the code they share here. A column's values are an array
of numbers [N, *shape], or a list of texts or bytes in row-major order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import msgspec
import numpy as np

from smallplates.errors import InvalidJsonError, InvalidRequestError, InvalidTensorError
from smallplates.models.tensors import Array
from smallplates.tasks.base import Field, Fields
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.datatypes import BYTES, DTYPES, fits
from smallplates.web.api.fields import MAX_ELEMENTS, commas, element_of, field_value, without_texts
from smallplates.web.api.pipeline import Call
from smallplates.web.http.body import PART, decode_json
from smallplates.web.inference.served_model import Answer, Input, check_count

MAX_DIMS = 8
MAX_CLASS_TEXTS = 1 << 18
"""Maximum number of texts in one output of the classification extension."""

OTHER_KINDS = {b"{": 'objects or {"b64": ...}', b'"': "text", b"n": "null", b"]": "empty lists"}
"""First byte of a value in JSON -> what is sent in place of numbers."""

NOT_FINITE = (b"NaN", b"Infinity")
"""Numbers that JSON lacks, but that Python and other servers' clients write."""

Float = float | Literal["NaN", "Infinity", "-Infinity"]
Data = list[str] | list[bytes] | Array


@dataclass
class Output:
    """An output that the client asks for."""

    spec: ColumnSpec
    classes: int = 0  # how many of the best classes to return as text; 0 returns the column itself
    binary: bool = False  # whether to send it as binary data after the JSON


@dataclass
class Column:
    """An output in an answer, with the shape that the client sees."""

    spec: ColumnSpec
    shape: list[int]
    data: Array | list[bytes]
    binary: bool

    @property
    def datatype(self) -> str:
        """Name in the Open Inference Protocol; classes of numbers are texts."""
        return BYTES if isinstance(self.data, list) else self.spec.datatype


@dataclass(kw_only=True)
class ColumnCall(Call):
    """A call with columns of `count` batch elements, and the requested outputs."""

    entry: CatalogEntry
    count: int
    outputs: list[Output] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)  # see `first_shape`
    candidates: int = 1  # for each batch element
    id: str = ""
    by_rows: bool = False  # whether the client sent rows and gets rows back

    @property
    def is_batched(self) -> bool:
        """Whether the client's shapes begin with the batch dimension, as [N] may."""
        return self.count > 1 or len(self.shape) > len(self.entry.inputs[0].dims)


def call_of(
    entry: CatalogEntry,
    count: int,
    data: Mapping[str, Data],
    **further: Any,  # fields of ColumnCall
) -> ColumnCall:
    """Returns a call with these inputs, which have been checked."""
    call = ColumnCall(entry=entry, count=count, **further)
    call.top_k = max(call.candidates, *(output.classes for output in call.outputs), 1)
    if entry.takes_tensors:
        call.tensors = [np.asarray(data[spec.name], DTYPES[spec.datatype]) for spec in entry.inputs]
    else:
        call.inputs = inputs_of(entry, count, data)
    return call


def inputs_of(entry: CatalogEntry, count: int, data: Mapping[str, Data]) -> list[Input]:
    """Returns the task's inputs, one per batch element."""
    columns: list[tuple[Field, Sequence[Any]]] = []
    for spec in entry.inputs:
        if spec.field and spec.name in data:
            column: Any = data[spec.name]
            if spec.field.is_list and isinstance(column, list):  # all elements of all lists
                size = len(column) // count
                column = [column[index * size : (index + 1) * size] for index in range(count)]
            columns.append((spec.field, column))

    def read(index: int) -> Fields:
        return {field.name: field_value(field, column[index]) for field, column in columns}

    return [
        Input(sum(len(column[index]) for _, column in columns), partial(read, index))
        for index in range(count)
    ]


# checks of the columns' names, types and shapes


def check_inputs(entry: CatalogEntry, inputs: Sequence[Any], most: int) -> int:
    """Checks names, types and shapes of all inputs; returns the number of batch elements.

    `inputs` have a `name`, `datatype` and `shape` each. The shapes must be the model's, either all with
    or all without a batch dimension of at most `most`. The sizes of varying axes are the business of
    `Signature.items`. Raises InvalidRequestError.
    """
    specs = {spec.name: spec for spec in entry.inputs}
    names = [tensor.name for tensor in inputs]
    if unknown := [name for name in names if name not in specs]:
        raise InvalidRequestError(
            f"{entry.name} has no input {unknown[0][:80]!r}; its inputs are {', '.join(specs)}"
        )
    mandatory = [name for name, spec in specs.items() if not spec.is_optional]
    if len(set(names)) < len(names) or not set(mandatory) <= set(names):
        optional = [name for name in specs if name not in mandatory]
        further = f"; {', '.join(optional)} is optional" if optional else ""
        raise InvalidRequestError(f"{entry.name} takes {', '.join(mandatory)}, each once{further}")
    most = most if entry.is_batched else 0
    counts = {check_input(specs[each.name], each.datatype, each.shape, most) for each in inputs}
    if len(counts) != 1:
        raise InvalidRequestError("the inputs have different numbers of batch elements")
    return counts.pop()


def check_input(spec: ColumnSpec, datatype: str, shape: Sequence[int], most: int) -> int:
    """Checks an input and returns its batch size; `most` is 0 for a model without a batch dimension.

    Raises InvalidRequestError.
    """
    name, dims, shape = spec.name, list(spec.dims), list(shape[: MAX_DIMS + 1])
    if not fits(datatype, spec.datatype):
        raise InvalidRequestError(f"{name} must be {spec.datatype}, not {datatype[:20]!r}")
    if spec.dims == (-1,) and spec.datatype == BYTES and math.prod(shape) > MAX_ELEMENTS:
        raise InvalidRequestError(f"{name} may have up to {MAX_ELEMENTS} elements in all, not {shape}")
    if spec.fits(shape):
        return 1
    if most and (spec.fits(shape[1:]) or (dims == [1] and len(shape) == 1)):
        check_count(shape[0], most)
        return shape[0]
    with_batch = f"[{', '.join(str(size) for size in ['N', *dims])}] or " if most else ""
    empty = "; -1 stands for a size of 1 or more" if -1 in dims and 0 in shape else ""
    raise InvalidRequestError(f"{name} must have the shape {with_batch}{dims}, not {shape}{empty}")


def first_shape(entry: CatalogEntry, inputs: Sequence[Any]) -> list[int]:
    """Returns the shape, as it was sent, of the first of the model's inputs that the client sent."""
    shapes = {each.name: each.shape for each in inputs}
    return [*next(shapes[spec.name] for spec in entry.inputs if spec.name in shapes)]


def output_of(entry: CatalogEntry, name: str) -> ColumnSpec:
    """Returns the output of this name. Raises InvalidRequestError."""
    for spec in entry.outputs:
        if spec.name == name:
            return spec
    names = ", ".join(spec.name for spec in entry.outputs)
    raise InvalidRequestError(f"{entry.name} has no output {name[:80]!r}; its outputs are {names}")


def columns_sent(entry: CatalogEntry, inputs: Sequence[Any]) -> dict[str, ColumnSpec]:
    """Returns the column of each input by name, with the datatype that the client sent."""
    specs = {spec.name: spec for spec in entry.inputs}
    return {each.name: replace(specs[each.name], datatype=each.datatype) for each in inputs}


# decoding JSON and bytes


def check_size(
    text: bytes | memoryview | msgspec.Raw, entry: CatalogEntry, most: int, others: int = 0
) -> None:
    """Refuses JSON with more commas, objects or keys than `most` inputs can have, before any is built.

    Base64 has a comma after it, and may have one and a colon more in a data URL. `others` allows for
    what is outside of the inputs. Raises InvalidRequestError.
    """
    is_text = any(spec.is_text for spec in entry.inputs)
    text = without_texts(text) if is_text else bytes(text)
    of_one = sum(2 if spec.datatype == BYTES else spec.largest for spec in entry.inputs)
    names = (1 + 4 * len(entry.inputs)) * (most + 1) + others  # {"name": {"b64": "data:..."}}
    separators = text.count(b",")
    too_many = separators > of_one * most + others
    if not too_many and separators > names // 2:  # where few are found, this is faster than counting
        too_many = len(text) - len(text.replace(b"{", b"").replace(b":", b"")) > names
    if too_many:
        raise InvalidRequestError(f"the request has too many inputs; the maximum is {most}")


def decode_tensors(decoder: "msgspec.json.Decoder[Any]", text: bytes | memoryview) -> Any:
    """Decodes JSON whose numbers may be NaN or infinite: these become texts. Raises RequestError."""
    try:
        return decode_json(decoder, text)
    except InvalidJsonError:
        quoted = bytes(text)
        for name in NOT_FINITE:
            quoted = quoted.replace(name, b'"%b"' % name)  # inside of a text, this is not JSON, either
        if len(quoted) == len(text):
            raise
    return decode_json(decoder, quoted.replace(b'-"Infinity"', b'"-Infinity"'))


@cache
def numbers(kind: str, depth: int) -> "msgspec.json.Decoder[Any]":
    """Returns a decoder for lists, nested `depth` deep, of numbers of a NumPy kind."""
    nested: Any = {"b": bool, "f": Float}.get(kind, int)
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def json_array(raw: msgspec.Raw, depth: int, spec: ColumnSpec) -> Array:
    """Parses a column's numbers from lists nested `depth` deep. Raises InvalidRequestError."""
    dtype = DTYPES[spec.datatype]
    values = decode_json(numbers(dtype.kind, depth), raw, spec.name)
    try:
        with np.errstate(over="raise"):  # an infinity is written as such
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
    first = bytes(memoryview(raw)[:256]).translate(None, b" \t\r\n[")
    if (kind := OTHER_KINDS.get(first[:1])) and not first.lstrip(b'"-').startswith(NOT_FINITE):
        raise InvalidRequestError(f"{spec.name} takes {spec.datatype} {[*spec.dims]}, not {kind}")
    return commas(raw) + 1


def depth_of(raw: msgspec.Raw) -> int:
    """Returns the nesting of JSON lists, from 1 to 9, by counting the opening brackets."""
    start = bytes(memoryview(raw)[:64]).translate(None, b" \t\r\n")
    return max(1, min(len(start) - len(start.lstrip(b"[")), MAX_DIMS + 1))


def raw_array(data: memoryview, spec: ColumnSpec, dims: Sequence[int], count: int) -> Array:
    """Views little-endian numbers as [count, *dims]. Raises InvalidRequestError for a wrong length."""
    shape, dtype = (count, *dims), DTYPES[spec.datatype]
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise InvalidRequestError(f"{spec.name} needs {size} bytes, not {len(data)}")
    array: Array = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype).reshape(shape)
    return array.astype(bool) if dtype.kind == "b" else array


def number_array(values: Iterable[float], spec: ColumnSpec, dims: Sequence[int], count: int) -> Array:
    """Builds [count, *dims] from protobuf's numbers, without a list in between.

    Raises InvalidRequestError for a number outside the type's range.
    """
    array, rest = np.empty((count, *dims), DTYPES[spec.datatype]), iter(values)
    flat = array.reshape(-1)
    try:
        for start in range(0, flat.size, PART):  # other threads have their turn in between
            part = flat[start : start + PART]
            part[:] = np.fromiter(rest, flat.dtype, part.size)
    except OverflowError as error:
        raise InvalidRequestError(
            f"{spec.name} has a number outside the range of {spec.datatype}"
        ) from error
    return array


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
    outputs = call.outputs
    if call.tensors is None:
        return [
            field_column(output, call, answer) for output in outputs if has_values(output.spec, answer)
        ]
    names = [spec.name for spec in call.entry.outputs]
    arrays = dict(zip(names, answer.arrays, strict=True))
    for output in outputs:
        if output.classes or not output.binary:
            check_finite(output.spec.name, arrays[output.spec.name])
    return [
        tensor_column(output, arrays[output.spec.name], call.is_batched, answer.task.labels)
        for output in outputs
    ]


def check_finite(name: str, array: Array) -> None:
    """Raises InvalidTensorError for infinities and NaN in [N, ...], which JSON cannot represent."""
    if not np.isfinite(array).all():
        finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        raise InvalidTensorError(f"the {name} of element {finite.argmin()} is not finite")


def has_values(spec: ColumnSpec, answer: Answer) -> bool:
    """Returns whether the answer has values for an optional field, which may be null or left out.

    Raises InvalidRequestError if only some batch elements have one, because tensors have no null.
    """
    if spec.field is None or spec.field.required or spec.field.is_json:
        return True
    name = spec.field.name
    has_value = {best.get(name) is not None for candidates in answer.candidates for best in candidates}
    if len(has_value) > 1:
        raise InvalidRequestError(
            f"{spec.name} is null for some of the inputs: send each input in its own request"
        )
    return has_value != {False}


def field_column(output: Output, call: ColumnCall, answer: Answer) -> Column:
    """Returns the column for a field of the answer, or the best classes as text.

    The shape is that of the input for one candidate per batch element, else [N, candidates].
    """
    spec, count = output.spec, len(answer.candidates)
    assert spec.field is not None  # noqa: S101 the entry is for requests
    best = [candidates[: output.classes or call.candidates] for candidates in answer.candidates]
    values: list[Any] = [candidate.get(spec.field.name) for each in best for candidate in each]
    if output.classes:
        if not answer.task.labels:
            raise InvalidRequestError(f"{spec.name} has no classes")
        classes = [(candidate["index"], candidate["label"]) for each in best for candidate in each]
        texts = [class_text(value, *one) for value, one in zip(values, classes, strict=True)]
        return Column(spec, [count, len(texts) // count], texts, output.binary)
    same_length("inputs have different numbers", best, spec)
    shape = call.shape if call.entry.inputs[0].dims == (1,) else [call.count, 1]
    if call.candidates > 1:
        shape = [count, len(values) // count]
    if spec.field.is_list:
        same_length("answers have different lengths", values, spec)
        shape = [len(values), len(values[0])] if call.is_batched else [len(values[0])]
        values = [each for value in values for each in value]
    return Column(spec, shape, elements(spec, values, output.binary), output.binary)


def same_length(problem: str, lists: Sequence[Sequence[Any]], spec: ColumnSpec) -> None:
    """Raises InvalidRequestError with the `problem` if lists differ in length; tensors have no gaps."""
    if len({len(each) for each in lists}) > 1:
        raise InvalidRequestError(f"the {problem} of {spec.name}: send each in its own request")


def elements(spec: ColumnSpec, values: Sequence[Any], binary: bool) -> Array | list[bytes]:
    """Returns a field's values as a column's data. Raises InvalidRequestError for too large a number."""
    if spec.datatype == BYTES and spec.field:
        return [element_of(spec.field, value, binary) for value in values]
    try:
        return np.array(values, DTYPES[spec.datatype])
    except OverflowError as error:
        raise InvalidRequestError(
            f"{spec.name} is outside the range of {spec.datatype}; only POST /predict can return it"
        ) from error


def tensor_column(output: Output, array: Array, is_batched: bool, labels: Sequence[str]) -> Column:
    """Returns the column for an output of the network, [N, *shape], or its largest numbers as text.

    Like in Triton, the numbers of all axes count as classes. Without labels they only have an index.
    """
    spec, leading = output.spec, [len(array)] if is_batched else []
    if not output.classes:
        return Column(spec, [*leading, *array.shape[1:]], array, output.binary)
    rows = array.reshape(len(array), -1)
    width = rows.shape[1]
    if len(rows) * min(width, output.classes) > MAX_CLASS_TEXTS:
        raise InvalidRequestError(f"classification would list more than {MAX_CLASS_TEXTS} classes")
    ascending = np.argsort(rows[:, ::-1], axis=1, kind="stable")  # the first of equal numbers is last
    order = (width - 1 - ascending)[:, ::-1][:, : output.classes]
    best = zip(np.take_along_axis(rows, order, 1).ravel().tolist(), order.ravel().tolist(), strict=True)
    texts = [
        class_text(value, place, labels[place] if len(labels) == width else None)
        for value, place in best
    ]
    return Column(spec, [*leading, order.shape[1]], texts, output.binary)


def class_text(value: float, index: int, label: str | None) -> bytes:
    """Formats `value:index:label`, as the protocol's classification extension specifies."""
    number = f"{value:f}" if isinstance(value, float) else str(int(value))
    return f"{number}:{index}{'' if label is None else f':{label}'}".encode()

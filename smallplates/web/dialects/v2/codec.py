"""Codec for the Open Inference Protocol's HTTP bodies: JSON, optionally followed by binary tensors.

Tensors are views of the body or the result of a single decoder call; no loop runs over numbers.
"""

import math
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np

from smallplates.base64 import from_base64
from smallplates.errors import InvalidRequestError
from smallplates.models.tensors import Array
from smallplates.web.api import columns
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import Column, ColumnCall, Data, Output
from smallplates.web.api.datatypes import BYTES, DTYPES
from smallplates.web.api.fields import commas, value_of, without_texts
from smallplates.web.http.body import decode_json
from smallplates.web.inference.served_model import Answer

HEADER = "Inference-Header-Content-Length"
MAX_TENSORS = 1024
LENGTH = struct.Struct("<I")

OTHER_COMMAS = 16 * 1024  # commas in a request that do not separate tensor elements
MAX_PARAMETERS_BYTES = 8192  # as JSON; parsed objects take many times their bytes
RESERVED = "triton_"
SHARED_MEMORY = "shared memory is not supported: send the data in the request"
MAX_CLASSES = 2**31 - 1
Parameters = dict[str, Any]  # JSON, or gRPC's scalars; those that no one reads may be anything
Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class InputTensor(msgspec.Struct):
    """An input in the JSON; `data` is decoded when its type is known."""

    name: str
    datatype: str
    shape: Annotated[list[Dimension], msgspec.Meta(max_length=columns.MAX_DIMS)]
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class RequestedOutput(msgspec.Struct):
    """An output in the JSON."""

    name: str
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class InferJson(msgspec.Struct):
    """The JSON part of a request; keys that the protocol does not have are skipped.

    Clients that build it from a class send null for what they leave out.
    """

    inputs: Annotated[list[InputTensor], msgspec.Meta(min_length=1, max_length=MAX_TENSORS)]
    id: str | None = None
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    outputs: Annotated[list[RequestedOutput], msgspec.Meta(max_length=MAX_TENSORS)] | None = None


REQUEST = msgspec.json.Decoder(InferJson)
SCHEMA = msgspec.json.schema(InferJson)
PARAMETERS = msgspec.json.Decoder(Parameters)
TEXTS = (msgspec.json.Decoder(list[str]), msgspec.json.Decoder(list[list[str]]))


def is_small(header: str | None) -> bool:
    """Returns whether, by its header, the JSON is so short that decoding it takes hardly any time."""
    return header is not None and len(header) < 5


def header_length(text: str | None, body_bytes: int) -> int | None:
    """Returns how many bytes of the body are JSON; None means all. Raises InvalidRequestError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= body_bytes):
        raise InvalidRequestError(f"{HEADER} must be a whole number up to the body's {body_bytes} bytes")
    return int(text)


def decode(body: bytes, header: str | None, entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a body with up to `most` inputs; `header` says how many bytes of it are JSON.

    If that is 0, the body is the only element of the only input. Raises InvalidJsonError or
    InvalidRequestError.
    """
    length = header_length(header, len(body))
    if length == 0:
        return raw_request(body, entry)
    text = body if length is None else memoryview(body)[:length]
    columns.check_size(text, entry, most, OTHER_COMMAS)
    request = columns.decode_tensors(REQUEST, text)
    tail = memoryview(b"" if length is None else body)[length or 0 :]
    read = partial(data_of, entry, request.inputs, tail)
    return call_of_request(request, entry, most, parameters_of, read)


def call_of_request(
    request: Any,  # InferJson, or protobuf's ModelInferRequest
    entry: CatalogEntry,
    most: int,
    parse: Callable[[Any], Parameters],
    read: Callable[[int], dict[str, Data]],
) -> ColumnCall:
    """Returns the call for a request with up to `most` inputs.

    `parse` returns the content of `parameters`; `read` takes the number of batch elements and returns
    each input's data, once names, types and shapes have been checked. Raises RequestError.
    """
    parameters = parse(request.parameters)
    count = columns.check_inputs(entry, request.inputs, most)
    return columns.call_of(
        entry,
        count,
        read(count),
        shape=columns.first_shape(entry, request.inputs),
        outputs=outputs_of(entry, request.outputs or (), parse, parameters),
        id=request.id or "",
        timeout_us=whole_number(parameters, "timeout"),
        candidates=whole_number(parameters, "top_k", MAX_CLASSES) or 1,
    )


def outputs_of(
    entry: CatalogEntry,
    requests: Sequence[Any],
    parse: Callable[[Any], Parameters],
    parameters: Parameters,
) -> list[Output]:
    """Returns the requested outputs, or all if there are none. Raises InvalidRequestError.

    `parameters` are the request's, which say what holds for outputs without parameters of their own.
    """
    binary = flag(parameters, "binary_data_output", False)
    outputs = {}
    for each in requests:
        spec = columns.output_of(entry, each.name)
        own = parse(each.parameters)
        classes = whole_number(own, "classification", MAX_CLASSES)
        if classes and spec.datatype == BYTES:
            numbers = ", ".join(spec.name for spec in entry.outputs if spec.datatype != BYTES)
            raise InvalidRequestError(f"only numeric outputs can be classified: {numbers}")
        outputs[spec.name] = Output(spec, classes, flag(own, "binary_data", binary))
    if len(outputs) < len(requests):
        raise InvalidRequestError("an output is named twice")
    return [*outputs.values()] or [Output(spec, binary=binary) for spec in entry.outputs]


def raw_request(body: bytes, entry: CatalogEntry) -> ColumnCall:
    """Takes the whole body as one input: a file, a text, or the bytes of a tensor of fixed shape."""
    spec = entry.default_input
    if spec is None or -1 in spec.dims:
        raise InvalidRequestError(f"{entry.name} needs JSON before its tensors")
    if not body:
        raise InvalidRequestError("the body is empty")
    is_bytes = spec.datatype == BYTES
    data: Data = [body] if is_bytes else columns.raw_array(memoryview(body), spec, spec.dims, 1)
    outputs = [Output(output, binary=True) for output in entry.outputs]
    return columns.call_of(entry, 1, {spec.name: data}, shape=[*spec.dims], outputs=outputs)


def data_of(
    entry: CatalogEntry, inputs: list[InputTensor], tail: memoryview, count: int
) -> dict[str, Data]:
    """Returns every input's data, from its JSON or from its part of the bytes after the JSON."""
    specs = columns.columns_sent(entry, inputs)
    data: dict[str, Data] = {}
    left = tail
    for tensor in inputs:
        spec, parameters = specs[tensor.name], parameters_of(tensor.parameters)
        raw = value_of(tensor.data)
        if "binary_data_size" not in parameters:
            if raw is None:
                raise InvalidRequestError(f"{tensor.name} has neither data nor binary_data_size")
            read = json_texts if spec.datatype == BYTES else json_numbers
            values: Data = read(raw, spec, tensor.shape, count)
            data[tensor.name] = values if spec.is_bytes else decoded(values, parameters)
            continue
        if raw:
            raise InvalidRequestError(f"{tensor.name} has both data and binary_data_size")
        size = whole_number(parameters, "binary_data_size", 2**40)
        if size > len(left):
            raise InvalidRequestError(
                f"{tensor.name} has binary_data_size {size}, but {len(left)} bytes follow the JSON"
            )
        values = binary_data(left[:size], spec, tensor.shape, count)
        data[tensor.name] = decoded(values, parameters)
        left = left[size:]
    if left:
        raise InvalidRequestError(f"{len(left)} bytes follow the JSON, but no input claims them")
    return data


def decoded(data: Data, parameters: Parameters) -> Data:
    """Decodes elements that are base64 by MLServer's parameter `content_type`.

    Texts in JSON for a field of bytes always are. Raises InvalidBase64Error.
    """
    if parameters.get("content_type") != "base64" or not isinstance(data, list):
        return data
    return [from_base64(part if isinstance(part, str) else part.decode("latin-1")) for part in data]


def binary_data(data: memoryview, spec: ColumnSpec, shape: Sequence[int], count: int) -> Data:
    """Returns an input's data from binary data."""
    if spec.datatype == BYTES:
        return binary_elements(data, math.prod(shape), spec.name)
    return columns.raw_array(data, spec, columns.item_shape(spec, shape), count)


def parameters_of(raw: msgspec.Raw | msgspec.UnsetType) -> Parameters:
    """Parses a `parameters` object. Raises InvalidRequestError."""
    if (text := value_of(raw)) is None:
        return {}
    if len(memoryview(text)) > MAX_PARAMETERS_BYTES:
        raise InvalidRequestError(f"parameters may have up to {MAX_PARAMETERS_BYTES} bytes")
    return without_nulls(decode_json(PARAMETERS, text))


def without_nulls(parameters: Parameters) -> Parameters:
    """Returns the parameters that have a value.

    Raises InvalidRequestError for names that Triton reserves, and for shared memory.
    """
    for name in parameters:
        if name.startswith(RESERVED):
            raise InvalidRequestError(f"parameters that begin with {RESERVED} are reserved: {name[:80]}")
        if name.startswith("shared_memory"):
            raise InvalidRequestError(SHARED_MEMORY)
    return {name: value for name, value in parameters.items() if value is not None}


def whole_number(parameters: Parameters, name: str, largest: int | None = None) -> int:
    """Returns a parameter from 0 to `largest`, or 0 if it is absent. Raises InvalidRequestError.

    Without `largest`, there is no upper limit.
    """
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= (largest or value):
        limit = "up" if largest is None else f"to {largest}"
        raise InvalidRequestError(f"{name} must be a whole number from 0 {limit}")
    return value


def flag(parameters: Parameters, name: str, default: bool) -> bool:
    """Returns a boolean parameter, or `default` if it is absent. Raises InvalidRequestError."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false")
    return value


def binary_elements(data: memoryview, count: int, name: str) -> list[bytes]:
    """Splits data into `count` elements, each a little-endian uint32 length and that many bytes."""
    elements = []
    for index in range(count):
        if len(data) < LENGTH.size:
            raise InvalidRequestError(f"the data of {name} end before element {index}")
        (size,) = LENGTH.unpack_from(data)
        if size > len(data) - LENGTH.size:
            raise InvalidRequestError(f"element {index} of {name} has {size} bytes, more than follow")
        elements.append(bytes(data[LENGTH.size : LENGTH.size + size]))
        data = data[LENGTH.size + size :]
    if data:
        raise InvalidRequestError(f"{len(data)} bytes follow the last of the {count} elements of {name}")
    return elements


def json_texts(raw: msgspec.Raw, spec: ColumnSpec, shape: list[int], _: int) -> list[str]:
    """Parses texts, or bytes as base64, in a flat list or with one list per batch element."""
    depth, count = columns.depth_of(raw), math.prod(shape)
    if depth > 2:
        raise InvalidRequestError(f"the data of {spec.name} are nested more deeply than their shape")
    if commas(without_texts(raw) if spec.is_text else raw) > 2 * count:  # a data URL has a comma, too
        raise InvalidRequestError(f"{spec.name} has more than the {count} elements of its shape")
    rows = decode_json(TEXTS[depth - 1], raw, spec.name)
    texts: list[str] = rows if depth == 1 else [text for row in rows for text in row]
    if len(texts) != count:
        raise InvalidRequestError(f"{spec.name} has {len(texts)} elements, but its shape has {count}")
    return texts


def json_numbers(raw: msgspec.Raw, spec: ColumnSpec, shape: list[int], count: int) -> Array:
    """Parses numbers, flat or nested like the shape, to [count, *dims]."""
    depth, name = columns.depth_of(raw), spec.name
    if depth not in (1, len(shape)):
        raise InvalidRequestError(f"the data of {name} must be flat, or nested like the shape")
    # MLServer's clients write NaN as null; one letter is found in a fraction of the time
    if DTYPES[spec.datatype].kind == "f" and b"n" in (text := bytes(raw)):
        raw = msgspec.Raw(text.replace(b"null", b'"NaN"'))
    needed = math.prod(shape)
    if needed and (sent := columns.count_of(raw, spec)) != needed:
        raise InvalidRequestError(f"{name} has {sent} numbers, but its shape has {needed}")
    array = columns.json_array(raw, depth, spec)
    expected = tuple(shape) if depth > 1 else (needed,)
    if array.shape != expected:
        raise InvalidRequestError(
            f"{name} must have the shape {list(expected)}, not {list(array.shape)}"
        )
    return array.reshape(count, *columns.item_shape(spec, shape))


def encode(call: ColumnCall, answer: Answer) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """Returns an answer's content, and the binary tensors that follow its JSON."""
    outputs, tails = [], []
    for column in columns.columns_of(call, answer):
        output: dict[str, Any] = {"name": column.spec.name, "datatype": column.datatype}
        output["shape"] = column.shape
        if column.binary:
            tails.append(pack(column))
            output["parameters"] = {"binary_data_size": len(tails[-1])}
        elif isinstance(column.data, list):
            output["data"] = [text.decode() for text in column.data]
        else:
            output["data"] = np.ascontiguousarray(column.data).ravel()
        outputs.append(output)
    content: dict[str, Any] = {"id": call.id} if call.id else {}
    content |= {"model_name": call.entry.name, "model_version": call.entry.version}
    return content | {"outputs": outputs}, tails


def pack(column: Column) -> bytes | memoryview:
    """Returns an output as binary data."""
    if isinstance(column.data, list):
        return b"".join(LENGTH.pack(len(text)) + text for text in column.data)
    return column.data.astype(DTYPES[column.datatype], copy=False).reshape(-1).view(np.uint8).data

"""What MLServer's clients send: elements marked as base64, smaller types than the model's, null."""

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from smallplates.errors import InvalidBase64Error, InvalidRequestError, RequestError
from smallplates.tasks.base import Field
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.datatypes import DATATYPES, DTYPES
from smallplates.web.dialects.v2 import codec, grpc_messages
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from tests.unit.web.api.entries import MOST, requests, tensors

Decode = Callable[[CatalogEntry], ColumnCall]

TEXT = requests(ColumnSpec("i", "BYTES", (1,), field=Field("text", "BYTES")))
FILE = requests(ColumnSpec("i", "BYTES", (1,), field=Field("file", "BYTES", is_bytes=True)))
NUMBERS = requests(ColumnSpec("i", "FP64", (-1,), (9,), Field("numbers", "FP64", is_list=True)))
ELEMENTS = ["soup \u2603".encode(), b"ab", b"YWJj"]
BASE64 = [base64.b64encode(element) for element in ELEMENTS]


def in_json(body: dict[str, Any], tail: bytes = b"") -> Decode:
    """Decodes a body of HTTP, with binary data after it if there are any."""
    head = json.dumps(body).encode()
    length = str(len(head)) if tail else None
    return lambda entry: codec.decode(head + tail, length, entry, MOST)


def in_grpc(**request: Any) -> Decode:
    return partial(grpc_messages.decode, pb.ModelInferRequest(**request), most=MOST)


def texts(elements: list[bytes], content_type: str = "base64") -> list[Decode]:
    """The same elements in JSON, in binary data, and as raw and typed contents of gRPC."""
    tensor: dict[str, Any] = {"name": "i", "datatype": "BYTES", "shape": [len(elements)]}
    tail = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    marked = {"parameters": {"content_type": content_type}, "data": [each.decode() for each in elements]}
    sized = {"parameters": {"content_type": content_type, "binary_data_size": len(tail)}}
    hint = {"parameters": {"content_type": {"string_param": content_type}}}
    return [
        in_json({"inputs": [tensor | marked]}),
        in_json({"inputs": [tensor | sized]}, tail),
        in_grpc(inputs=[tensor | hint], raw_input_contents=[tail]),
        in_grpc(inputs=[tensor | hint | {"contents": {"bytes_contents": elements}}]),
    ]


def values(call: ColumnCall) -> list[Any]:
    return [value for source in call.inputs for value in source.read().values()]


def test_texts_marked_as_base64_are_decoded() -> None:
    for decode in texts(BASE64):
        assert values(decode(TEXT)) == [element.decode() for element in ELEMENTS]
    for decode in texts(BASE64, "str"):
        assert values(decode(TEXT)) == [element.decode() for element in BASE64]


def test_bytes_marked_as_base64_are_decoded_once() -> None:
    for decode in texts(BASE64):
        assert values(decode(FILE)) == ELEMENTS
    from_json, *others = [values(decode(FILE)) for decode in texts(BASE64, "str")]
    assert from_json == ELEMENTS
    assert others == [BASE64] * 3


@pytest.mark.parametrize("entry", [TEXT, FILE], ids=["text", "file"])
@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("element", [b"no base64!", b"a", b"%%%%"])
def test_what_is_marked_but_is_not_base64_is_refused(
    entry: CatalogEntry, form: int, element: bytes
) -> None:
    decode = texts([b"YWJj", element])[form]
    with pytest.raises(InvalidBase64Error):
        values(decode(entry))


SMALLER = [
    (kind, larger)
    for kind, sent in DTYPES.items()
    for larger, dtype in DTYPES.items()
    if sent.kind == dtype.kind and sent.itemsize <= dtype.itemsize
]


def numbers(kind: str, data: list[Any]) -> list[Decode]:
    """The same numbers in JSON, in binary data, and as raw and typed contents of gRPC."""
    tensor: dict[str, Any] = {"name": "i", "datatype": kind, "shape": [1, len(data)]}
    tail = np.array(data, DTYPES[kind]).tobytes()
    decoders = [
        in_json({"inputs": [tensor | {"data": data}]}),
        in_json({"inputs": [tensor | {"parameters": {"binary_data_size": len(tail)}}]}, tail),
        in_grpc(inputs=[tensor], raw_input_contents=[tail]),
    ]
    if contents := DATATYPES[kind].contents:
        decoders.append(in_grpc(inputs=[tensor | {"contents": {contents: data}}]))
    return decoders


@pytest.mark.parametrize(("kind", "larger"), SMALLER)
def test_a_smaller_type_of_the_same_kind_is_accepted(kind: str, larger: str) -> None:
    sent = DTYPES[kind]
    data: dict[str, list[Any]] = {"b": [True, False], "f": [0.1, -2.5]}
    whole = data.get(sent.kind, [0, 127])
    for decode in numbers(kind, whole):
        call = decode(tensors(larger, (2,)))
        assert call.tensors is not None
        assert call.tensors[0].dtype == DTYPES[larger]
        assert call.tensors[0].tolist() == [np.array(whole, sent).tolist()]  # no value changes


def test_a_field_takes_it_as_well() -> None:
    for decode in numbers("FP32", [0.1, 2.0]):
        assert values(decode(NUMBERS)) == [[float(np.float32(0.1)), 2.0]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(kind, other) for kind in DTYPES for other in DTYPES if (kind, other) not in SMALLER],
)
def test_other_types_are_refused(kind: str, expected: str) -> None:
    for decode in numbers(kind, [True, True] if kind == "BOOL" else [1, 1]):
        with pytest.raises(InvalidRequestError, match=f"i must be {expected}, not '{kind}'"):
            decode(tensors(expected, (2,)))


def test_the_range_is_that_of_the_type_sent() -> None:
    body = {"inputs": [{"name": "i", "datatype": "INT8", "shape": [1, 1], "data": [300]}]}
    with pytest.raises(InvalidRequestError, match="outside the range of INT8"):
        in_json(body)(tensors("INT64", (1,)))


@pytest.mark.parametrize("data", [[0.5, None, 2.0], [[None, 1.0, None]]], ids=["flat", "nested"])
@pytest.mark.parametrize("kind", ["FP32", "FP64"])
def test_null_among_floats_is_nan(kind: str, data: list[Any]) -> None:
    body = {"inputs": [{"name": "i", "datatype": kind, "shape": [1, 3], "data": data}]}
    call = in_json(body)(tensors(kind, (3,)))
    assert call.tensors is not None
    np.testing.assert_array_equal(call.tensors[0].ravel(), np.array(data, float).ravel())


@pytest.mark.parametrize(
    ("kind", "data"),
    [("INT64", "[1, null]"), ("BOOL", "[null, true]"), ("FP32", "[1null, 2]"), ("FP32", "[nulll, 1]")],
)
def test_null_is_no_other_number(kind: str, data: str) -> None:
    tensor = f'"name": "i", "datatype": "{kind}", "shape": [1, 2], "data": {data}'
    with pytest.raises(RequestError):
        codec.decode(f'{{"inputs": [{{{tensor}}}]}}'.encode(), None, tensors(kind, (2,)), MOST)


def test_empty_contents_beside_raw_ones_count_as_none() -> None:
    """MLServer's own converter sends them."""
    tensor = {"name": "i", "datatype": "FP64", "shape": [1, 2], "contents": {}}
    raw = {"raw_input_contents": [np.ones(2).tobytes()]}
    request = pb.ModelInferRequest(inputs=[tensor], **raw)
    assert request.inputs[0].HasField("contents")
    assert grpc_messages.decode(request, tensors("FP64", (2,)), MOST).tensors is not None
    with pytest.raises(InvalidRequestError, match="either one raw content or typed contents"):
        in_grpc(inputs=[tensor | {"contents": {"fp64_contents": [1, 1]}}], **raw)(tensors("FP64", (2,)))

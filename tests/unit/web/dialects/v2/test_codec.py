"""The codecs of v2: what a request says, and how answers are written in JSON and gRPC."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallplates.base64 import to_bytes
from smallplates.engine.statistics import Timings
from smallplates.errors import InvalidRequestError, RequestError, ServingError
from smallplates.tasks.base import Field
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import Output, call_of
from smallplates.web.dialects import tfserving
from smallplates.web.dialects.v2 import grpc_messages
from smallplates.web.dialects.v2.codec import decode, encode
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.http.body import dump_json
from smallplates.web.inference.served_model import Answer, Input, RequestOptions
from tests.unit.web.api.entries import ARRAY, MOST, PHOTO, TEXTS, tensors


@pytest.mark.parametrize("microseconds", [0, 1, 2**53 + 1, 2**64, 10**100])
def test_any_time_limit_is_read(microseconds: int) -> None:
    tensor = {"name": "i", "datatype": "BYTES", "shape": [1], "data": ["aGk="]}
    request = {"inputs": [tensor], "parameters": {"timeout": microseconds}}
    call = decode(json.dumps(request).encode(), None, PHOTO, MOST)
    assert call.timeout_us == microseconds
    limited = RequestOptions(5000).within(call.timeout_us)
    assert limited.timeout_ms == (1 if microseconds == 1 else 5000)


def image_of(element: bytes) -> bytes | type[Exception]:
    try:
        return to_bytes(element)
    except ServingError as error:
        return type(error)


def image_in(source: Input) -> bytes | type[Exception]:
    try:
        return bytes(source.read()["image"])
    except ServingError as error:
        return type(error)


@settings(max_examples=100)
@given(elements=st.lists(st.binary(max_size=20), min_size=1, max_size=MOST), cut=st.integers(0, 30))
def test_elements_come_back_whole_or_not_at_all(elements: list[bytes], cut: int) -> None:
    data = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    tail = data[: max(0, len(data) - cut)]
    tensor = {"name": "i", "datatype": "BYTES", "shape": [len(elements), 1]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(tail)}}]}).encode()
    try:
        question = decode(head + tail, str(len(head)), PHOTO, MOST)
    except ServingError:
        assert cut
    else:
        assert [source.size for source in question.inputs] == [len(element) for element in elements]
        assert [image_in(source) for source in question.inputs] == [*map(image_of, elements)]


NULLS: list[dict[str, Any]] = [
    {"id": None},
    {"parameters": None},
    {"parameters": {"timeout": None, "top_k": None, "binary_data_output": None, "x": None}},
    {"outputs": None},
    {"outputs": [{"name": "o", "parameters": None}]},
    {"outputs": [{"name": "o", "parameters": {"classification": None, "binary_data": None}}]},
    {"id": None, "parameters": None, "outputs": None},
]


@pytest.mark.parametrize("more", NULLS)
@pytest.mark.parametrize(
    "of_input", [{}, {"parameters": None}, {"parameters": {"binary_data_size": None}}]
)
def test_null_means_left_out(more: dict[str, Any], of_input: dict[str, Any]) -> None:
    tensor = {"name": "i", "datatype": "FP32", "shape": [3, 2, 2], "data": [0.5] * 12}
    call = decode(json.dumps({"inputs": [tensor | of_input], **more}).encode(), None, ARRAY, MOST)
    assert (call.id, call.timeout_us, call.candidates) == ("", 0, 1)
    assert call.outputs == [Output(ARRAY.outputs[0])]
    answer = Answer(Mock(), [], [np.ones((1, 2), np.float32)], Timings(0, 0, 0))
    body = dump_json(encode(call, answer)[0])
    assert json.loads(body)["outputs"][0]["data"] == [1, 1]
    assert b"null" not in body


def test_parameters_for_another_server_are_ignored() -> None:
    """MLServer's clients send such ones."""
    hints = {"parameters": {"content_type": "np", "headers": {"a": "b"}, "x": [[1], None, 0.5]}}
    tensor = {"name": "i", "datatype": "FP32", "shape": [1, 3, 2, 2], "data": [0.5] * 12, **hints}
    request = {"inputs": [tensor], "outputs": [{"name": "o", **hints}], **hints}
    call = decode(json.dumps(request).encode(), None, ARRAY, MOST)
    assert call.outputs == [Output(ARRAY.outputs[0])]
    request["parameters"] = {"top_k": [2]}
    with pytest.raises(InvalidRequestError, match="top_k"):
        decode(json.dumps(request).encode(), None, ARRAY, MOST)


def test_data_may_be_null_before_binary_data() -> None:
    tensor = {"name": "i", "datatype": "FP32", "shape": [1, 3, 2, 2], "data": None}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 48}}]}).encode()
    call = decode(head + bytes(48), str(len(head)), ARRAY, MOST)
    assert call.tensors is not None
    assert not call.tensors[0].any()
    with pytest.raises(InvalidRequestError, match="neither data nor binary_data_size"):
        decode(json.dumps({"inputs": [tensor]}).encode(), None, ARRAY, MOST)


@pytest.mark.parametrize(("shape", "explained"), [([1, 3, 0], True), ([1, 2, 4], False)])
def test_an_axis_without_elements_is_explained(shape: list[int], explained: bool) -> None:
    tensor = {"name": "i", "datatype": "FP32", "shape": shape, "data": []}
    with pytest.raises(InvalidRequestError, match=r"\[N, 3, -1\] or \[3, -1\], not") as caught:
        decode(json.dumps({"inputs": [tensor]}).encode(), None, tensors("FP32", (3, -1), (3, 9)), MOST)
    assert ("a size of 1 or more" in caught.value.detail) == explained


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize(
    "shape", [[-1, -1], [-1, 2, 2], [1, -1, -1], [1, -1, 1], [1, -2, -2], [1, 0, -5], [1, 2**62, 2**62]]
)
def test_grpc_s_sizes_may_be_neither_negative_nor_huge(shape: list[int], is_raw: bool) -> None:
    request = pb.ModelInferRequest(model_name="model")
    tensor = request.inputs.add(name="i", datatype="FP32", shape=shape)
    if is_raw:
        request.raw_input_contents.append(bytes(4))
    else:
        tensor.contents.fp32_contents.append(0)
    with pytest.raises(InvalidRequestError, match=r"^i |SERVING_MAX_REQUEST_ITEMS"):
        grpc_messages.decode(request, tensors("FP32", (-1, -1), (8, 8)), MOST)


def test_numbers_are_a_view_of_the_body() -> None:
    values = np.arange(24, dtype="<f4")
    tensor = {"name": "i", "datatype": "FP32", "shape": [2, 3, 2, 2]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 96}}]}).encode()
    question = decode(head + values.tobytes(), str(len(head)), ARRAY, MOST)
    assert question.tensors is not None
    (data,) = question.tensors
    assert data.ravel().tolist() == values.tolist()
    assert not data.flags.owndata


@pytest.mark.parametrize("kind", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("first", [np.nan, np.inf, -np.inf, 1.0])
def test_numbers_that_json_lacks_are_read_as_python_writes_them(kind: str, first: float) -> None:
    values, model = [[first, np.nan, -np.inf], [2.0, np.inf, np.nan]], tensors(kind, (3,))
    tensor = {"name": "i", "datatype": kind, "shape": [2, 3], "data": values}
    rows = {"instances": values}
    for call in (
        decode(json.dumps({"inputs": [tensor]}).encode(), None, model, MOST),
        tfserving.decode(json.dumps(rows, indent=1).encode(), model, MOST),
    ):
        assert call.tensors is not None
        np.testing.assert_array_equal(call.tensors[0], np.array(values))


@pytest.mark.parametrize("kind", ["INT64", "BOOL"])
@pytest.mark.parametrize("row", ["[NaN]", '["NaN"]', "[-Infinity]", "[nan]", "[1, NaN"])
def test_other_types_have_no_such_numbers(kind: str, row: str) -> None:
    with pytest.raises(RequestError, match=r"not JSON|does not match the schema"):
        tfserving.decode(b'{"instances": [%b]}' % row.encode(), tensors(kind, (1,)), MOST)


@pytest.mark.parametrize("model", [PHOTO, ARRAY])
@pytest.mark.parametrize("text", ['{"inputs": [%s]}', '{"outputs": [%s]}', '{"id": [%s]}'])
def test_a_flood_of_small_things_is_refused_before_they_are_built(
    model: CatalogEntry, text: str
) -> None:
    body = (text % ("{}," * 20_000 + "{}")).encode()
    with pytest.raises(InvalidRequestError, match="too many inputs; the maximum is 4"):
        decode(body, None, model, MOST)
    with pytest.raises(InvalidRequestError, match="too many inputs; the maximum is 4"):
        decode(body + b"binary", str(len(body)), model, MOST)


def classes_of(array: Any, count: int, labels: list[str], batched: bool = True) -> tuple[Any, Any]:
    """The `count` best classes of an output [N, *shape], as shape and texts; JSON and gRPC agree."""
    task: Any = SimpleNamespace(labels=labels)
    answer = Answer(task, [], [np.asarray(array)], Timings(0, 0, 0))
    shape = [len(array), 3, 2, 2] if batched else [3, 2, 2]
    values = {"i": np.zeros((len(array), 3, 2, 2), np.float32)}
    wanted = [Output(ARRAY.outputs[0], classes=count)]
    call = call_of(ARRAY, len(array), values, outputs=wanted, shape=shape)
    (output,) = json.loads(dump_json(encode(call, answer)[0]))["outputs"]
    message = pb.ModelInferResponse.FromString(b"".join(grpc_messages.encode(call, answer)))
    elements = [text.encode() for text in output["data"]]
    assert message.raw_output_contents[0] == b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    assert [*message.outputs[0].shape] == output["shape"]
    assert message.outputs[0].datatype == output["datatype"] == "BYTES"
    return output["shape"], output["data"]


ROW = [0.090031, 0.665241, 0.244728]
LABELS = ["old a", "old b", "old c"]
ALL = 2**31 - 1
CLASSES: list[tuple[str, list[Any], int, list[str], list[int], list[str]]] = [
    ("f4", [ROW], 2, [], [1, 2], ["0.665241:1", "0.244728:2"]),
    ("f4", [ROW], 2, LABELS, [1, 2], ["0.665241:1:old b", "0.244728:2:old c"]),
    ("f4", [ROW], 2, LABELS[:2], [1, 2], ["0.665241:1", "0.244728:2"]),
    ("f4", [ROW], ALL, [], [1, 3], ["0.665241:1", "0.244728:2", "0.090031:0"]),
    ("f4", [ROW, [-3, -1, -2]], 1, [], [2, 1], ["0.665241:1", "-1.000000:1"]),
    ("f8", [[0.5, 0.5, 0.5]], 2, [], [1, 2], ["0.500000:0", "0.500000:1"]),
    ("u1", [[0, 255, 3]], 3, [], [1, 3], ["255:1", "3:2", "0:0"]),
    ("i8", [[-(2**63), 2**63 - 1, 0]], 2, [], [1, 2], [f"{2**63 - 1}:1", "0:2"]),
    ("?", [[False, True, True]], 3, [], [1, 3], ["1:1", "1:2", "0:0"]),
    ("f2", [[1, 2]], 1, [], [1, 1], ["2.000000:1"]),
    ("f4", [0.25, 0.75], 5, [], [2, 1], ["0.250000:0", "0.750000:0"]),
    ("f4", [[[1, 2], [4, 3]]], 2, [], [1, 2], ["4.000000:2", "3.000000:3"]),
]
"""Type and values of an output, how many classes, labels of the version that computed it, the answer."""


@pytest.mark.parametrize(
    ("dtype", "values", "count", "labels", "shape", "texts"), CLASSES, ids=range(len(CLASSES))
)
def test_the_largest_numbers_with_their_index_and_label(
    dtype: str, values: list[Any], count: int, labels: list[str], shape: list[int], texts: list[str]
) -> None:
    assert classes_of(np.array(values, dtype), count, labels) == (shape, texts)


def test_classes_of_a_request_without_the_batch_dimension() -> None:
    assert classes_of(np.array([ROW], "f4"), 1, [], batched=False) == ([1], ["0.665241:1"])


@pytest.mark.parametrize(("sent", "count", "leading"), [([1], 1, []), ([1, 1], 1, [1]), ([3], 3, [3])])
@pytest.mark.parametrize("is_text", [False, True])
def test_an_output_has_the_numbers_of_its_shape(
    sent: list[int], count: int, leading: list[int], is_text: bool
) -> None:
    rows = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    vector = Field("vector", "FP32", is_list=True)
    output = ColumnSpec("o", "FP32", (-1,), field=vector if is_text else None)
    entry = replace(TEXTS if is_text else tensors("FP32", (1,)), outputs=(output,))
    candidates: Any = [[{"vector": row.tolist()}] for row in rows] if is_text else []
    answer = Answer(Mock(), candidates, [rows], Timings(0, 0, 0))
    data: Any = {"i": np.zeros((count, 1)), "TEXT": ["soup"] * count}
    call = call_of(entry, count, data, outputs=[Output(output)], shape=sent)
    (found,) = json.loads(dump_json(encode(call, answer)[0]))["outputs"]
    assert (found["shape"], found["data"]) == ([*leading, 2], rows.ravel().tolist())
    message = pb.ModelInferResponse.FromString(b"".join(grpc_messages.encode(call, answer)))
    assert [*message.outputs[0].shape] == found["shape"]


def test_a_large_output_is_not_listed_as_texts() -> None:
    large = np.zeros((1, 600, 600), np.float32)
    assert classes_of(large, 3, [])[0] == [1, 3]
    with pytest.raises(InvalidRequestError, match="262144"):
        classes_of(large, 2**31 - 1, [])

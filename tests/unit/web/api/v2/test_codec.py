"""The parser of the Open Inference Protocol: whatever comes, it is a question or a ServingError."""

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallplates.base64 import to_bytes
from smallplates.engine.statistics import Timings
from smallplates.errors import InvalidRequestError, ServingError
from smallplates.tasks.base import Field
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import Output, call_of, columns_of
from smallplates.web.api.v2 import grpc_messages
from smallplates.web.api.v2.codec import decode, encode
from smallplates.web.inference.served_model import Answer, Input, RequestOptions

PHOTO = CatalogEntry(
    "photo",
    "1",
    False,
    0,
    (ColumnSpec("i", "BYTES", (1,), field=Field("image", "BYTES", is_bytes=True, is_image=True)),),
    (ColumnSpec("o", "FP32", (1,)),),
    Mock(),
)
ARRAY = CatalogEntry(
    "tensor",
    "1",
    True,
    1,
    (ColumnSpec("i", "FP32", (3, 2, 2)),),
    (ColumnSpec("o", "FP32", (2,)),),
    Mock(),
)
MOST = 4

SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANY = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
NUMBERS = st.lists(st.floats() | st.integers(), min_size=0, max_size=24)
PARAMETERS = st.dictionaries(
    st.sampled_from(["binary_data_size", "classification", "binary_data", "timeout", "triton_x", "x"]),
    SCALAR,
    max_size=2,
)
INPUT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["i", "j"]),
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8"]),
        "shape": st.sampled_from([[1], [1, 1], [3, 2, 2], [2, 3, 2, 2], [1, 3, 2, 2]])
        | st.lists(st.integers(), max_size=9),
    },
    optional={
        "data": NUMBERS | st.lists(st.text(max_size=3), max_size=3) | ANY,
        "parameters": PARAMETERS,
    },
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(INPUT, max_size=3)},
    optional={
        "id": SCALAR,
        "parameters": PARAMETERS | ANY,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.just("o")}, optional={"parameters": PARAMETERS})
        ),
    },
)


def check_question(body: bytes, length: str | None, model: CatalogEntry) -> None:
    """Parses, or refuses with an error that has a status below 500."""
    try:
        question = decode(body, length, model, MOST)
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    data = question.tensors[0] if question.tensors else question.inputs
    assert 1 <= len(data) == question.count <= MOST
    if model.takes_tensors:
        assert isinstance(data, np.ndarray)
        assert data.dtype == np.float32
        assert data.shape[1:] == model.inputs[0].dims


@pytest.mark.parametrize("model", [PHOTO, ARRAY], ids=["photo", "tensor"])
@settings(max_examples=300, deadline=None)
@given(request=REQUEST, tail=st.binary(max_size=100), length=st.none() | st.integers(-3, 3))
def test_requests_that_are_nearly_right(
    model: CatalogEntry, request: dict[str, Any], tail: bytes, length: int | None
) -> None:
    head = json.dumps(request).encode()
    check_question(head + tail, None if length is None else str(len(head) + length), model)
    check_question(head, None, model)


@pytest.mark.parametrize("microseconds", [0, 1, 2**53 + 1, 2**64, 10**100])
def test_any_time_limit_is_read(microseconds: int) -> None:
    tensor = {"name": "i", "datatype": "BYTES", "shape": [1], "data": ["aGk="]}
    request = {"inputs": [tensor], "parameters": {"timeout": microseconds}}
    call = decode(json.dumps(request).encode(), None, PHOTO, MOST)
    assert call.timeout_us == microseconds
    limited = RequestOptions(5000).within(call.timeout_us)
    assert limited.timeout_ms == (1 if microseconds == 1 else 5000)


@pytest.mark.parametrize("model", [PHOTO, ARRAY], ids=["photo", "tensor"])
@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200), length=st.none() | st.text(max_size=4))
def test_bodies_of_any_bytes(model: CatalogEntry, body: bytes, length: str | None) -> None:
    check_question(body, length, model)


def image_of(element: bytes) -> bytes | type[Exception]:
    """The image that an element is, or the error's type."""
    try:
        return to_bytes(element)
    except ServingError as error:
        return type(error)


def image_in(source: Input) -> bytes | type[Exception]:
    """The image of an input, or the error's type."""
    try:
        return bytes(source.read()["image"])
    except ServingError as error:
        return type(error)


@settings(max_examples=100, deadline=None)
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
    body, _ = encode(call, answer)
    assert json.loads(body)["outputs"][0]["data"] == [1, 1]
    assert b"null" not in body


def test_data_may_be_null_before_binary_data() -> None:
    tensor = {"name": "i", "datatype": "FP32", "shape": [1, 3, 2, 2], "data": None}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 48}}]}).encode()
    call = decode(head + bytes(48), str(len(head)), ARRAY, MOST)
    assert call.tensors is not None
    assert not call.tensors[0].any()
    with pytest.raises(InvalidRequestError, match="neither data nor binary_data_size"):
        decode(json.dumps({"inputs": [tensor]}).encode(), None, ARRAY, MOST)


def test_numbers_are_a_view_of_the_body() -> None:
    values = np.arange(24, dtype="<f4")
    tensor = {"name": "i", "datatype": "FP32", "shape": [2, 3, 2, 2]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 96}}]}).encode()
    question = decode(head + values.tobytes(), str(len(head)), ARRAY, MOST)
    assert question.tensors is not None
    (data,) = question.tensors
    assert data.ravel().tolist() == values.tolist()
    assert not data.flags.owndata


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300))
def test_an_element_is_a_file_or_base64(data: bytes) -> None:
    try:
        decoded = to_bytes(data)
    except ServingError as error:
        assert error.status == 400  # noqa: PT017 text that is not base64
    else:
        assert isinstance(decoded, bytes)


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


def test_classes_are_named_by_the_version_that_computed_them() -> None:
    """The answer's task is that version's; the one in service may have other labels by then."""
    task: Any = SimpleNamespace(labels=["old a", "old b"])
    answer = Answer(task, [], [np.array([[0, 1]], np.float32)], Timings(0, 0, 0))
    values = {"i": np.zeros((1, 3, 2, 2), np.float32)}
    call = call_of(ARRAY, 1, values, outputs=[Output(ARRAY.outputs[0], classes=2)], shape=[1, 3, 2, 2])
    (column,) = columns_of(call, answer)
    assert column.data == [b"1.000000:1:old b", b"0.000000:0:old a"]


def classes_of(array: Any, count: int, labels: list[str], batched: bool = True) -> tuple[Any, Any]:
    """The `count` best classes of an output [N, *shape], as shape and texts; JSON and gRPC agree."""
    task: Any = SimpleNamespace(labels=labels)
    answer = Answer(task, [], [np.asarray(array)], Timings(0, 0, 0))
    shape = [len(array), 3, 2, 2] if batched else [3, 2, 2]
    values = {"i": np.zeros((len(array), 3, 2, 2), np.float32)}
    wanted = [Output(ARRAY.outputs[0], classes=count)]
    call = call_of(ARRAY, len(array), values, outputs=wanted, shape=shape)
    (output,) = json.loads(encode(call, answer)[0])["outputs"]
    message = grpc_messages.encode(call, answer)
    elements = [text.encode() for text in output["data"]]
    assert message.raw_output_contents[0] == b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    assert [*message.outputs[0].shape] == output["shape"]
    assert message.outputs[0].datatype == output["datatype"] == "BYTES"
    return output["shape"], output["data"]


ROW = [0.090031, 0.665241, 0.244728]


@pytest.mark.parametrize(
    ("array", "count", "labels", "shape", "texts"),
    [
        (np.array(dtype="float32", object=[ROW]), 2, [], [1, 2], ["0.665241:1", "0.244728:2"]),
        (
            np.array(dtype="float32", object=[ROW]),
            2,
            ["a", "b", "c"],
            [1, 2],
            ["0.665241:1:b", "0.244728:2:c"],
        ),
        (np.array(dtype="float32", object=[ROW]), 2, ["a", "b"], [1, 2], ["0.665241:1", "0.244728:2"]),
        (
            np.array(dtype="float32", object=[ROW]),
            2**31 - 1,
            [],
            [1, 3],
            ["0.665241:1", "0.244728:2", "0.090031:0"],
        ),
        (
            np.array(dtype="float32", object=[ROW, [-3, -1, -2]]),
            1,
            [],
            [2, 1],
            ["0.665241:1", "-1.000000:1"],
        ),
        (
            np.array(dtype="float64", object=[[0.5, 0.5, 0.5]]),
            2,
            [],
            [1, 2],
            ["0.500000:0", "0.500000:1"],
        ),
        (np.array(dtype="uint8", object=[[0, 255, 3]]), 3, [], [1, 3], ["255:1", "3:2", "0:0"]),
        (
            np.array(dtype="int64", object=[[-(2**63), 2**63 - 1, 0]]),
            2,
            [],
            [1, 2],
            [f"{2**63 - 1}:1", "0:2"],
        ),
        (np.array([[False, True, True]]), 3, [], [1, 3], ["1:1", "1:2", "0:0"]),
        (np.array(dtype="float16", object=[[1, 2]]), 1, [], [1, 1], ["2.000000:1"]),
        (np.array(dtype="float32", object=[0.25, 0.75]), 5, [], [2, 1], ["0.250000:0", "0.750000:0"]),
        (
            np.array(dtype="float32", object=[[[1, 2], [4, 3]]]),
            2,
            [],
            [1, 2],
            ["4.000000:2", "3.000000:3"],
        ),
    ],
    ids=range(12),
)
def test_the_largest_numbers_with_their_index_and_label(
    array: Any, count: int, labels: list[str], shape: list[int], texts: list[str]
) -> None:
    assert classes_of(array, count, labels) == (shape, texts)


def test_classes_of_a_request_without_the_batch_dimension() -> None:
    assert classes_of(np.array(dtype="float32", object=[ROW]), 1, [], batched=False) == (
        [1],
        ["0.665241:1"],
    )


def test_a_large_output_is_not_listed_as_texts() -> None:
    large = np.zeros((1, 600, 600), np.float32)
    assert classes_of(large, 3, [])[0] == [1, 3]
    with pytest.raises(InvalidRequestError, match="262144"):
        classes_of(large, 2**31 - 1, [])

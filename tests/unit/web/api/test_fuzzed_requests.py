"""Parsers of the protocols with tensors, and of forms: whatever comes, a request or a refusal."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from smallplates.errors import PayloadTooLargeError, ServingError
from smallplates.web.api.catalog import CatalogEntry
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.fields import fields_from_body
from smallplates.web.dialects import tfserving, tfserving_grpc, torchserve
from smallplates.web.dialects.v2 import codec, grpc_messages
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.grpc.generated import tf_serving_pb2 as tf
from smallplates.web.http import body
from tests.unit.web.api.entries import ENTRIES, MOST, tensors
from tests.unit.web.api.test_fields import Images

FLOATS = st.floats(width=32)
SCALAR = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | st.text(max_size=5)
ANY = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
PARAMETER_NAMES = [
    *("binary_data_size", "classification", "binary_data", "timeout"),
    *("triton_x", "shared_memory_region", "x"),
]
PARAMETERS = st.dictionaries(st.sampled_from(PARAMETER_NAMES), ANY, max_size=2)
SHAPES = [[1], [2, 1], [1, 1], [3, 2, 2], [1, 3, 2, 2], [2, 3, 2, 2], [2**62, 4], [-1, -12]]
RIGHT: list[dict[str, Any]] = [
    {"name": "i", "datatype": "BYTES", "shape": [1], "data": ["aGk="]},
    {"name": "TEXT", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]},
    {"name": "i", "datatype": "FP32", "shape": [3, 2, 2], "data": [0.5] * 12},
    {"name": "i", "datatype": "FP32", "shape": [2, 3, 2, 2], "data": [0.5] * 24},
]
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["i", "TEXT", "PAIR", "j"]),
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8"]),
        "shape": st.sampled_from(SHAPES) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9),
        "data": st.lists(FLOATS | st.integers(), max_size=24) | st.lists(st.text(max_size=3)) | ANY,
        "parameters": PARAMETERS,
    },
)
INPUT = st.builds(lambda right, changes: right | changes, st.sampled_from(RIGHT), st.just({}) | CHANGES)
OUTPUT = st.fixed_dictionaries(
    {"name": st.sampled_from(["o", "p"])}, optional={"parameters": PARAMETERS}
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(INPUT, min_size=1, max_size=1) | st.lists(INPUT, max_size=3)},
    optional={
        "id": st.text(max_size=5) | SCALAR,
        "parameters": st.just({}) | PARAMETERS | ANY,
        "outputs": st.lists(OUTPUT, max_size=2),
    },
)
RAW = st.sampled_from([bytes(48), bytes(96), b"\1\0\0\0a", b"\xff\xff\xff\xffa", b""]) | st.binary()


def parameters_of(values: Any) -> dict[str, pb.InferParameter]:
    """The parameters that gRPC can carry."""
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
    return {
        name: pb.InferParameter(**({kinds[type(value)]: value} if type(value) in kinds else {}))
        for name, value in (values.items() if isinstance(values, dict) else ())
    }


def message_of(request: dict[str, Any], raw: list[bytes]) -> pb.ModelInferRequest:
    """The same in gRPC: its numbers and texts are typed contents."""
    message = pb.ModelInferRequest(
        parameters=parameters_of(request.get("parameters")), raw_input_contents=raw
    )
    for each in request.get("outputs", ()):
        message.outputs.add(name=each["name"], parameters=parameters_of(each.get("parameters")))
    for each in request["inputs"]:
        about = {name: each[name] for name in ("name", "datatype", "shape")}
        tensor = message.inputs.add(**about, parameters=parameters_of(each.get("parameters")))
        for value in data if isinstance(data := each.get("data"), list) else ():
            if isinstance(value, str):
                tensor.contents.bytes_contents.append(value.encode())
            elif isinstance(value, float):
                tensor.contents.fp32_contents.append(value)
    return message


def check(entry: CatalogEntry, decode: Callable[[], ColumnCall]) -> None:
    """It is read, as many elements as a request may have, or refused with a status below 500."""
    try:
        call = decode()
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    assert 1 <= call.count <= (MOST if entry.is_batched else 1)
    columns: list[Any] = [*call.tensors] if call.tensors else [call.inputs]
    assert {len(column) for column in columns} == {call.count}
    if entry.takes_tensors:
        assert call.tensors is not None
        assert call.tensors[0].dtype == np.float32
        assert call.tensors[0].shape[1:] == entry.inputs[0].dims


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=200)
@given(request=REQUEST, tail=st.binary(max_size=100), length=st.none() | st.integers(-3, 3))
def test_json(entry: CatalogEntry, request: dict[str, Any], tail: bytes, length: int | None) -> None:
    head = json.dumps(request).encode()
    header = None if length is None else str(len(head) + length)
    for content, says in ((head + tail, header), (head, None), (tail, header)):
        check(entry, lambda c=content, h=says: codec.decode(c, h, entry, MOST))  # type: ignore[misc]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=200)
@given(content=st.binary(max_size=200), header=st.none() | st.text(max_size=4))
def test_any_bytes(entry: CatalogEntry, content: bytes, header: str | None) -> None:
    check(entry, lambda: codec.decode(content, header, entry, MOST))
    check(entry, lambda: tfserving.decode(content, entry, MOST))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=200)
@given(
    request=REQUEST,
    raw=st.just([]) | st.lists(RAW, max_size=2),
    cut=st.just(0) | st.integers(0, 40),
    junk=st.just(b"") | st.binary(max_size=8),
)
def test_grpc(
    entry: CatalogEntry, request: dict[str, Any], raw: list[bytes], cut: int, junk: bytes
) -> None:
    data = message_of(request, raw).SerializeToString()
    with contextlib.suppress(DecodeError):
        message = pb.ModelInferRequest.FromString(data[: max(0, len(data) - cut)] + junk)
        check(entry, lambda: grpc_messages.decode(message, entry, MOST))


TYPES = ["DT_FLOAT", "DT_STRING", "DT_HALF", "DT_INT8", "DT_INVALID", 77]
SENT = st.fixed_dictionaries(
    {"dtype": st.sampled_from(TYPES[:2]) | st.sampled_from(TYPES)},
    optional={
        "tensor_shape": st.fixed_dictionaries(
            {"dim": st.sampled_from(SHAPES) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)},
            optional={"unknown_rank": st.booleans()},
        ),
        "tensor_content": RAW,
        "float_val": st.lists(FLOATS, max_size=24),
        "int_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "half_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "string_val": st.lists(RAW, max_size=4),
    },
)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=200)
@given(
    inputs=st.dictionaries(st.sampled_from(["i", "TEXT", "PAIR", "j"]), SENT, max_size=3),
    filtered=st.just([]) | st.lists(st.sampled_from(["o", "p"]), max_size=2),
    cut=st.just(0) | st.integers(0, 40),
    junk=st.just(b"") | st.binary(max_size=8),
)
def test_tensorflow_serving_over_grpc(
    entry: CatalogEntry, inputs: dict[str, Any], filtered: list[str], cut: int, junk: bytes
) -> None:
    message = tf.PredictRequest(output_filter=filtered)
    for name, sent in inputs.items():
        sizes = [{"size": size} for size in sent.get("tensor_shape", {}).get("dim", ())]
        tensor = sent | {"tensor_shape": {**sent.get("tensor_shape", {}), "dim": sizes}}
        message.inputs[name].CopyFrom(tf.TensorProto(**tensor))
    data = message.SerializeToString()
    with contextlib.suppress(DecodeError):
        message = tf.PredictRequest.FromString(data[: max(0, len(data) - cut)] + junk)
        check(entry, lambda: tfserving_grpc.decode(message, tensors_of(message), entry, MOST))


def tensors_of(message: Any) -> list[tfserving_grpc.Tensor]:
    """The inputs of a message that a service may decode."""
    sent = [tfserving_grpc.tensor_of(*each) for each in message.inputs.items()]
    if sum(tensor.size for tensor in sent) > 1_000_000:
        raise PayloadTooLargeError("as the service")
    return sent


PLANE = st.lists(st.lists(FLOATS, min_size=2, max_size=2), min_size=2, max_size=2)
PICTURE = st.lists(PLANE, min_size=3, max_size=3)
TEXT = st.sampled_from(["", "AAAA", "no base64"])
VALUE = TEXT | st.builds(lambda text: {"b64": text}, TEXT) | PICTURE | ANY
KEYS = st.sampled_from(["i", "TEXT", "PAIR", "b64", "data"])
ROW = VALUE | st.dictionaries(KEYS, VALUE, min_size=1, max_size=2)
VALUES = st.lists(ROW, max_size=6) | st.builds(lambda v: {"i": v}, st.lists(VALUE)) | ANY


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=200)
@given(
    request=st.fixed_dictionaries(
        {}, optional={"instances": VALUES, "inputs": VALUES, "signature_name": st.text(max_size=3)}
    ),
    cut=st.just(0) | st.integers(0, 20),
)
def test_tensorflow_serving(entry: CatalogEntry, request: dict[str, Any], cut: int) -> None:
    data = json.dumps(request).encode()
    check(entry, lambda: tfserving.decode(data[: len(data) - cut], entry, MOST))


PART = st.builds(
    lambda head, content: head + b"\r\n\r\n" + content,
    st.sampled_from(
        [
            b'Content-Disposition: form-data; name="data"; filename="a"',
            b'content-disposition:form-data;name=body;filename=""',
            b'Content-Disposition: form-data; name="data"',
            b'Content-Disposition: form-data; name="other"; filename="a"',
            b"Content-Disposition: " + b"x" * 5000,
            b"",
        ]
    )
    | st.binary(max_size=30),
    st.binary(max_size=30),
)


@settings(max_examples=300)
@given(
    parts=st.lists(PART, max_size=20),
    boundary=st.sampled_from([b"B", b"", b"--", b"x" * 70, b"x" * 71]) | st.binary(max_size=4),
    end=st.sampled_from([b"--", b"--\r\n", b"", b"-"]),
    type_=st.sampled_from(["multipart/form-data; boundary=", "multipart/form-data;boundary", ""]),
)
def test_torchserve_forms(parts: list[bytes], boundary: bytes, end: bytes, type_: str) -> None:
    content = b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts)
    content += b"--" + boundary + end
    try:
        found = fields_from_body(
            Images(), content, type_ + boundary.decode("latin-1"), aliases=torchserve.FORM_FIELDS
        )["image"]
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    assert all(image in content for image in (found if isinstance(found, list) else [found]))


@given(content=st.binary(max_size=60).filter(lambda data: b"\r\n--B" not in b"\r\n" + data))
def test_a_file_of_a_form_comes_out_as_it_went_in(content: bytes) -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'
    form = head + content + b"\r\n--B--\r\n"
    (part,) = body.files_of(body.form_parts(form, b"B"), torchserve.FORM_FIELDS)
    assert (part.content, part.content_type) == (content, None)


@pytest.mark.parametrize("count", [body.MAX_PARTS, body.MAX_PARTS + 1, 2 * body.MAX_PARTS])
def test_parts_of_a_form_are_bounded(count: int) -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    form = part * count + b"--B--"
    words = "got 0" if count <= body.MAX_PARTS else f"more than {body.MAX_PARTS}"
    with pytest.raises(ServingError, match=words):
        body.files_of(body.form_parts(form, b"B"), ["image"])


@pytest.mark.parametrize("form", ['{"instances": [%s]}', '{"inputs": {%s}}'])
def test_a_flood_of_keys_and_objects_is_refused(form: str) -> None:
    item = '"%d":0' if "{%s}" in form else '{"%d":0}'
    content = (form % ",".join(item % number for number in range(40_000))).encode()
    entry = tensors("FP32", (1000, 1000))  # commas alone don't bound a model of so many numbers
    with pytest.raises(ServingError, match="too many inputs; the maximum is 4"):
        tfserving.decode(content, entry, MOST)

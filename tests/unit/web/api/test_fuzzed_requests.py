"""Parsers of gRPC, TensorFlow Serving and TorchServe: whatever comes, a request or a refusal."""

import contextlib
import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from smallplates.errors import ServingError
from smallplates.tasks.base import Field, Task
from smallplates.web.api import tfserving, torchserve
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.fields import fields_from_body
from smallplates.web.api.v2 import grpc_messages
from smallplates.web.api.v2.grpc_generated import open_inference_pb2 as pb
from smallplates.web.http import body

PHOTO = CatalogEntry(
    "photo",
    "1",
    False,
    0,
    (
        ColumnSpec(
            "INPUT_IMAGE", "BYTES", (1,), field=Field("image", "BYTES", is_bytes=True, is_image=True)
        ),
    ),
    (ColumnSpec("o", "FP32", (1,)),),
    Mock(),
)
NUMBERS = CatalogEntry(
    "tensor",
    "1",
    True,
    1,
    (ColumnSpec("input", "FP32", (3, 2, 2)),),
    (ColumnSpec("o", "FP32", (4,)),),
    Mock(),
)
UNBATCHED = replace(NUMBERS, is_batched=False)
TEXTS = CatalogEntry(
    "text",
    "1",
    False,
    0,
    (
        ColumnSpec("TEXT", "BYTES", (1,), field=Field("text", "BYTES")),
        ColumnSpec("PAIR", "BYTES", (1,), field=Field("pair", "BYTES", required=False)),
    ),
    (ColumnSpec("o", "FP32", (1,)),),
    Mock(),
)


class Images(Task):
    """A task of one file."""

    request = (Field("image", "BYTES", is_bytes=True, is_image=True),)
    media_types = ("image/",)
    form_fields = ("image", "file")

    def __init__(self) -> None:
        """There is no model."""


MODELS = st.sampled_from([PHOTO, NUMBERS, UNBATCHED])
MOST = 4

FLOATS = st.floats(width=32)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARAMETER = st.one_of(
    st.builds(pb.InferParameter, bool_param=st.booleans()),
    st.builds(pb.InferParameter, int64_param=INT64),
    st.builds(pb.InferParameter, string_param=st.text(max_size=5)),
    st.builds(pb.InferParameter),
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "classification", "triton_x", "shared_memory_region", "x"]),
    PARAMETER,
    max_size=2,
)
CONTENTS = st.builds(
    pb.InferTensorContents,
    fp32_contents=st.just([])
    | st.lists(FLOATS, min_size=12, max_size=12)
    | st.lists(FLOATS, max_size=3),
    bytes_contents=st.just([]) | st.lists(st.binary(max_size=5), max_size=3),
)
SHAPE = st.sampled_from([[1], [2, 1], [3, 2, 2], [1, 3, 2, 2], [2, 3, 2, 2], [2**62, 4], [-1, -12]])
INPUT = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["INPUT_IMAGE", "input", "x"]),
    datatype=st.sampled_from(["FP32", "BYTES", "INT64"]),
    shape=SHAPE | st.lists(INT64, max_size=10),
    parameters=PARAMETERS,
    contents=CONTENTS,
)
OUTPUT = st.builds(
    pb.ModelInferRequest.InferRequestedOutputTensor,
    name=st.sampled_from(["o", "p"]),
    parameters=PARAMETERS,
)
RAW = st.sampled_from([bytes(48), bytes(96), b"\1\0\0\0a", b"\xff\xff\xff\xffa", b""]) | st.binary()
REQUEST = st.builds(
    pb.ModelInferRequest,
    inputs=st.lists(INPUT, min_size=1, max_size=1) | st.lists(INPUT, max_size=2),
    outputs=st.lists(OUTPUT, max_size=2),
    parameters=PARAMETERS,
    raw_input_contents=st.lists(RAW, max_size=2),
)


def check_elements(data: Any, model: CatalogEntry) -> None:  # Any: pictures, or an array
    """As many as a request may have, of the model's own shape."""
    assert 1 <= len(data) <= (MOST if model.is_batched else 1)
    if model.takes_tensors:
        assert isinstance(data, np.ndarray)
        assert data.dtype == np.float32
        assert data.shape[1:] == model.inputs[0].dims


def check_infer(request: Any, model: CatalogEntry) -> None:  # Any: protobuf's
    """Read, or refused."""
    try:
        question = grpc_messages.decode(request, model, MOST)
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    assert int(np.prod(question.shape)) >= 1
    check_elements(question.tensors[0] if question.tensors else question.inputs, model)


@settings(max_examples=300, deadline=None)
@given(request=REQUEST, model=MODELS)
def test_grpc_messages_that_are_nearly_right(request: Any, model: CatalogEntry) -> None:
    check_infer(request, model)


@settings(max_examples=200, deadline=None)
@given(request=REQUEST, model=MODELS, cut=st.integers(0, 40), junk=st.binary(max_size=8))
def test_grpc_messages_that_break_off(request: Any, model: CatalogEntry, cut: int, junk: bytes) -> None:
    data = request.SerializeToString()
    with contextlib.suppress(DecodeError):
        check_infer(pb.ModelInferRequest.FromString(data[: max(0, len(data) - cut)] + junk), model)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
ROW = st.lists(FLOATS, min_size=2, max_size=2)
PLANE = st.lists(ROW, min_size=2, max_size=2)
PICTURE = st.lists(PLANE, min_size=3, max_size=3)
TEXT = st.sampled_from(["", "AAAA", "no base64"])
VALUE = TEXT | st.builds(lambda text: {"b64": text}, TEXT) | PICTURE | ANY
NAMES = st.sampled_from(["INPUT_IMAGE", "input", "TEXT", "PAIR", "b64", "data"])
NAMED = VALUE | st.dictionaries(NAMES, VALUE, min_size=1, max_size=2)
VALUES = st.lists(NAMED, max_size=6) | st.builds(lambda v: {"input": v}, st.lists(VALUE)) | ANY


@settings(max_examples=300, deadline=None)
@given(
    request=st.fixed_dictionaries(
        {}, optional={"instances": VALUES, "inputs": VALUES, "signature_name": st.text(max_size=3)}
    ),
    model=MODELS | st.just(TEXTS),
    cut=st.just(0) | st.integers(0, 20),
)
def test_tensorflow_serving(request: dict[str, Any], model: CatalogEntry, cut: int) -> None:
    data = json.dumps(request).encode()
    try:
        asked = tfserving.decode(data[: len(data) - cut], model, MOST)
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    columns: list[Any] = [*asked.tensors] if asked.tensors else [asked.inputs]
    for column in columns:
        assert len(column) == asked.count
        check_elements(column, model)


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


@settings(max_examples=300, deadline=None)
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
        image = fields_from_body(
            Images(), content, type_ + boundary.decode("latin-1"), aliases=torchserve.FORM_FIELDS
        )["image"]
    except ServingError as error:
        assert 400 <= error.status < 500  # noqa: PT017 most examples are refused
        return
    assert image in content


@given(content=st.binary(max_size=60).filter(lambda data: b"\r\n--B" not in b"\r\n" + data))
def test_a_file_of_a_form_comes_out_as_it_went_in(content: bytes) -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'
    form = head + content + b"\r\n--B--\r\n"
    part = body.only_file(body.form_parts(form, b"B"), torchserve.FORM_FIELDS)
    assert (part.content, part.content_type) == (content, None)


@pytest.mark.parametrize("count", [16, 17, 40])
def test_parts_of_a_form_are_bounded(count: int) -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    form = part * count + b"--B--"
    words = "got 0" if count <= body.MAX_PARTS else "more than 16"
    with pytest.raises(ServingError, match=words):
        body.only_file(body.form_parts(form, b"B"), ["image"])

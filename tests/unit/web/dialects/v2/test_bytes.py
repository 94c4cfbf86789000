"""Fields of bytes: as they are in binary data and over gRPC, as base64 in JSON; images may be either."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Base64Bytes, Base64UrlBytes, BaseModel, ConfigDict, create_model

from smallplates.engine.statistics import Timings
from smallplates.errors import InvalidBase64Error, InvalidRequestError
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import ImageClassification
from smallplates.tasks.python.web import PythonRequests
from smallplates.web.api.catalog import CatalogEntry, column_of_field
from smallplates.web.api.columns import ColumnCall
from smallplates.web.dialects import tfserving
from smallplates.web.dialects.v2 import codec, grpc_messages
from smallplates.web.grpc.calls import serialise
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.http.body import dump_json
from smallplates.web.inference.served_model import Answer
from tests import pictures
from tests.unit.web.api.entries import MOST, requests

PYTHONS_OWN = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
STANDARD = create_model("Standard", file=Base64Bytes)
SEVERAL = create_model("Several", file=list[Base64Bytes])
TYPES = {
    "standard": STANDARD,
    "url-safe": create_model("UrlSafe", file=Base64UrlBytes),
    "plain": create_model("Plain", __config__=PYTHONS_OWN, file=bytes),
    "optional": create_model("Optional", file=(Base64Bytes | None, None)),
    "several": SEVERAL,
}
CONTENTS = [b"abcd", b"YWJjZA==", b"data:,x", b"\xff\xfe\0\x01", b"\xfb\xef\xff", pictures.jpeg()]
each_type = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
each_content = pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))


def task_of(kind: type[BaseModel]) -> PythonRequests:
    """A Python task that takes and returns this type."""
    description = ModelDescription(name="own", version="1", task="own:Own", files={})
    model, settings = Model(Path(), description), Settings()
    schemas = {
        "request": kind.model_json_schema(),
        "answer": kind.model_json_schema(mode="serialization"),
    }
    signatures = PythonRequests.plan(model, settings)
    return PythonRequests(model, settings, signatures, schemas)


def entry_of(task: Any) -> CatalogEntry:
    """The task as the protocol's clients see it."""
    outputs = tuple(column_of_field(field, {}) for field in task.answer)
    return replace(requests(*(column_of_field(field, {}) for field in task.request)), outputs=outputs)


def framed(elements: list[bytes]) -> bytes:
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def calls_of(entry: CatalogEntry, name: str, elements: list[bytes]) -> list[ColumnCall]:
    """The same request in every form that carries bytes as they are."""
    is_list = entry.inputs[0].dims == (-1,)
    shape = [1, len(elements)] if is_list else [len(elements)]
    tensor: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": shape}
    tail, typed = framed(elements), {**tensor, "contents": {"bytes_contents": elements}}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(tail)}}]}).encode()
    raw_message = pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[tail])
    calls = [
        codec.decode(head + tail, str(len(head)), entry, MOST),
        grpc_messages.decode(raw_message, entry, MOST),
        grpc_messages.decode(pb.ModelInferRequest(inputs=[typed]), entry, MOST),
    ]
    if len(elements) == 1 and not is_list:
        calls.append(codec.decode(elements[0], "0", entry, 4))
    return calls


def received(kind: type[BaseModel], task: PythonRequests, call: ColumnCall) -> list[Any]:
    """What the class gets for each input."""
    values = []
    for source in call.inputs:
        ((data,),) = task.preprocess(source.read()).items
        values.append(dict(kind.model_validate_json(data.tobytes()))["file"])
    return values


@each_type
@each_content
def test_a_python_class_gets_bytes_as_they_are(kind: type[BaseModel], content: bytes) -> None:
    task = task_of(kind)
    for call in calls_of(entry_of(task), "FILE", [content]):
        assert received(kind, task, call) == [[content] if kind is SEVERAL else content]


def test_lists_and_batches_keep_their_order() -> None:
    for kind, expected in ((SEVERAL, [[b"abcd", b"\xff"]]), (STANDARD, [b"abcd", b"\xff"])):
        task = task_of(kind)
        for call in calls_of(entry_of(task), "FILE", [b"abcd", b"\xff"]):
            assert received(kind, task, call) == expected


@each_type
def test_json_carries_base64(kind: type[BaseModel]) -> None:
    task = task_of(kind)
    shape = [1, 1] if kind is SEVERAL else [1]
    tensor = {"name": "FILE", "datatype": "BYTES", "shape": shape}

    def call_of(text: str) -> ColumnCall:
        body = json.dumps({"inputs": [{**tensor, "data": [text]}]}).encode()
        return codec.decode(body, None, entry_of(task), 4)

    for text in ("YWJj", "YWJj\n", "data:text/plain;base64,YWJj"):
        assert received(kind, task, call_of(text)) == [[b"abc"] if kind is SEVERAL else b"abc"]
    with pytest.raises(InvalidBase64Error):
        received(kind, task, call_of("%%%"))


@each_type
@each_content
def test_answers_are_bytes_if_binary_and_base64_in_json(kind: type[BaseModel], content: bytes) -> None:
    task = task_of(kind)
    entry = entry_of(task)
    text = kind.model_construct(file=[content] if kind is SEVERAL else content).model_dump_json()
    answer: Any = Answer(task, [[json.loads(text)]], [], Timings(0, 0, 0))
    (call, _, by_grpc, *_) = calls_of(entry, "FILE", [b"x"])
    (output,) = codec.encode(call, answer)[0]["outputs"]
    assert base64.urlsafe_b64decode(output["data"][0].replace("+", "-").replace("/", "_")) == content
    encoded = b"".join(grpc_messages.encode(by_grpc, answer))
    response = pb.ModelInferResponse.FromString(encoded)
    assert response.raw_output_contents[0] == framed([content])
    assert serialise(response) == encoded
    in_stream = b"".join(grpc_messages.encode_in_stream(by_grpc, answer))
    response.parameters["triton_final_response"].bool_param = True
    assert pb.ModelStreamInferResponse.FromString(in_stream).infer_response == response
    call.outputs[0].binary = True
    assert codec.encode(call, answer)[1] == [framed([content])]


@pytest.mark.parametrize("content", [pictures.jpeg(), pictures.sixteen_bit_png()], ids=["jpeg", "png"])
def test_an_image_may_be_its_bytes_or_their_base64(content: bytes) -> None:
    entry = entry_of(ImageClassification)
    text = base64.b64encode(content)
    for element in (content, text, b"data:image/jpeg;base64," + text, base64.encodebytes(content)):
        for call in calls_of(entry, "IMAGE", [element]):
            assert [source.read()["image"] for source in call.inputs] == [content]


class Sparse(BaseModel):
    """An answer of which only the size is always there."""

    size: int
    note: str | None = None
    count: int | None = None
    score: float | None = None
    file: Base64Bytes | None = None
    tags: list[str] | None = None


FULL = {"size": 2, "note": "a", "count": 3, "score": 0.5, "file": "YWJj", "tags": ["b", "c"]}
NULL = dict.fromkeys(FULL) | {"size": 1}
ABSENT = {"size": 1}


def columns_by_name(task: PythonRequests, candidates: list[dict[str, Any]], *names: str) -> Any:
    """The outputs of an answer in JSON and, checked to be the same ones, in binary data and gRPC."""
    entry = entry_of(task)
    count = len(candidates)
    tensor = {"name": "SIZE", "datatype": "INT64", "shape": [count], "data": [1] * count}
    body = {"inputs": [tensor], "outputs": [{"name": name} for name in names]}
    call = codec.decode(json.dumps(body).encode(), None, entry, 4)
    answer: Any = Answer(task, [[candidate] for candidate in candidates], [], Timings(0, 0, 0))
    outputs = json.loads(dump_json(codec.encode(call, answer)[0]))["outputs"]
    found = {output["name"]: output for output in outputs}
    by_grpc = pb.ModelInferResponse.FromString(b"".join(grpc_messages.encode(call, answer)))
    assert [output.name for output in by_grpc.outputs] == [*found]
    assert len(by_grpc.raw_output_contents) == len(found)
    for output in call.outputs:
        output.binary = True
    encoded, tails = codec.encode(call, answer)
    assert [output["name"] for output in encoded["outputs"]] == [*found]
    assert len(tails) == len(found)
    return {name: output["data"] for name, output in found.items()}


@pytest.mark.parametrize("candidate", [NULL, ABSENT], ids=["null", "absent"])
def test_an_output_that_is_null_is_left_out(candidate: dict[str, Any]) -> None:
    task = task_of(Sparse)
    assert columns_by_name(task, [candidate]) == {"SIZE": [1]}
    assert columns_by_name(task, [candidate, candidate]) == {"SIZE": [1, 1]}
    for name in ("NOTE", "COUNT", "SCORE", "FILE", "TAGS"):
        assert columns_by_name(task, [candidate], name) == {}
        with pytest.raises(InvalidRequestError, match=f"{name} is null"):
            columns_by_name(task, [candidate, FULL], name)
    assert columns_by_name(task, [candidate, FULL], "SIZE") == {"SIZE": [1, 2]}


def test_an_optional_output_with_a_value_is_there() -> None:
    expected = {"SIZE": [2], "NOTE": ["a"], "COUNT": [3], "SCORE": [0.5], "FILE": ["YWJj"]}
    assert columns_by_name(task_of(Sparse), [FULL]) == {**expected, "TAGS": ["b", "c"]}


def test_tensorflow_serving_has_null() -> None:
    task = task_of(Sparse)
    call = tfserving.decode(b'{"instances": [{"SIZE": 1}, {"SIZE": 1}]}', entry_of(task), 4)
    for candidate in (NULL, ABSENT):
        answer: Any = Answer(task, [[candidate], [FULL]], [], Timings(0, 0, 0))
        rows = tfserving.encode(call, answer)["predictions"]
        assert [row["NOTE"] for row in rows] == [None, "a"]
        assert [row["TAGS"] for row in rows] == [None, ["b", "c"]]

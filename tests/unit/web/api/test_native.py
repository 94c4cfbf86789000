"""What `/predict` takes: `top_k` in three places, and nothing that it does not know."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from smallplates.errors import InvalidRequestError
from smallplates.tasks.base import Task
from smallplates.tasks.image_classification import ImageClassification
from smallplates.tasks.python.web import PythonRequests
from smallplates.tasks.question_answering import QuestionAnswering
from smallplates.tasks.text_classification import TextClassification
from smallplates.web.api.documentation import describe_predict
from smallplates.web.api.fields import fields_from_body
from smallplates.web.api.native import decode
from smallplates.web.api.pipeline import Call

CLASSES = 5


class WithoutModel(Task):
    """A task's declarations, without a model."""

    most_candidates = CLASSES

    def __init__(self) -> None:
        """There is no model."""


class Images(WithoutModel):
    """One file."""

    request, media_types = ImageClassification.request, ImageClassification.media_types
    form_fields, request_schema = ImageClassification.form_fields, ImageClassification.request_schema


class Texts(WithoutModel):
    """Texts, or lists of them."""

    request, media_types = TextClassification.request, TextClassification.media_types
    list_fields, request_schema = TextClassification.list_fields, TextClassification.request_schema


class Questions(WithoutModel):
    """Several fields."""

    request, request_schema = QuestionAnswering.request, QuestionAnswering.request_schema


class Own(WithoutModel):
    """A Python class, which reads its JSON itself."""

    takes_json, most_candidates = PythonRequests.takes_json, PythonRequests.most_candidates


REQUESTS: dict[type[WithoutModel], dict[str, Any]] = {
    Images: {"image": "YWJj"},
    Texts: {"text": "good"},
    Questions: {"question": "what", "context": "that"},
}


def asked(task: Task, body: bytes, query: str = "", kind: str = "application/json") -> Call:
    """The call for a request."""
    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "query_string": query.encode(), "headers": headers}
    model: Any = SimpleNamespace(task=task)
    return decode(model, Request(scope), body)


def in_json(kind: type[WithoutModel], query: str = "", **more: Any) -> Call:
    """The call for the task's request in JSON, with more fields."""
    return asked(kind(), json.dumps(REQUESTS[kind] | more).encode(), query)


def form(*fields: tuple[str, str], file: str = "image") -> bytes:
    """A form with a file and these fields."""
    head = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
    parts = [head.format(name, "", value) for name, value in fields]
    return "".join([*parts, head.format(file, '; filename="x"', "abc"), "--b--\r\n"]).encode()


def in_form(*fields: tuple[str, str], query: str = "", file: str = "image") -> Call:
    """The call for an image in a form."""
    return asked(Images(), form(*fields, file=file), query, "multipart/form-data; boundary=b")


@pytest.mark.parametrize("kind", REQUESTS)
def test_top_k_in_the_query_or_in_json(kind: type[WithoutModel]) -> None:
    for call in (
        in_json(kind, "top_k=2"),
        in_json(kind, top_k=2),
        in_json(kind, "top_k=2", top_k=2),
        in_json(kind, "top_k=2&top_k=2"),
    ):
        assert (call.top_k, call.is_list) == (2, False)
        assert "top_k" not in call.inputs[0].read()
    for call in (in_json(kind), in_json(kind, top_k=None)):
        assert call.top_k is None


def test_top_k_in_a_form() -> None:
    for call in (in_form(("top_k", "2")), in_form(("top_k", "2"), ("top_k", "2"), query="top_k=2")):
        assert call.top_k == 2
        assert call.inputs[0].read() == {"image": b"abc"}
    assert in_form(file="file").top_k is None


def test_top_k_beside_a_list() -> None:
    call = in_json(Texts, text=["good", "bad"], top_k=2)
    assert (call.top_k, call.is_list) == (2, True)
    assert [source.read() for source in call.inputs] == [{"text": "good"}, {"text": "bad"}]


def test_a_raw_body_has_top_k_in_the_query() -> None:
    call = asked(Images(), b"abc", "top_k=3", "image/jpeg")
    assert (call.top_k, call.inputs[0].read()) == (3, {"image": b"abc"})


@pytest.mark.parametrize("value", [0, -1, CLASSES + 1, 1e9, 10**9, 10**400, 2.5, "2", "", True, [2]])
def test_top_k_in_json_is_a_number_in_range(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="top_k"):
        in_json(Images, top_k=value)


def test_top_k_of_very_many_digits() -> None:
    for digits in (4300, 4301, 100_000):
        body = b'{"image": "YWJj", "top_k": ' + b"9" * digits + b"}"
        with pytest.raises(InvalidRequestError, match="top_k"):
            asked(Images(), body)


@pytest.mark.parametrize("value", ["0", "-1", str(CLASSES + 1), "1e9", "2.0", "", "two", "²"])
def test_top_k_in_a_form_is_a_number_in_range(value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"top_k must be a whole number from 1 to {CLASSES}"):
        in_form(("top_k", value))


def test_different_values_of_top_k_are_refused() -> None:
    asks = (
        partial(in_json, Images, "top_k=1&top_k=2"),
        partial(in_json, Images, "top_k=1", top_k=2),
        partial(in_form, ("top_k", "1"), query="top_k=2"),
        partial(in_form, ("top_k", "1"), ("top_k", "2")),
    )
    for ask in asks:
        with pytest.raises(InvalidRequestError, match="top_k has several values: 1 and 2"):
            ask()


@pytest.mark.parametrize("query", ["topk=2", "topk", "top_k=2&k=1", "TOP_K=2", "=1", "x" * 1000])
def test_unknown_query_parameters_are_refused(query: str) -> None:
    for task in (Images(), Texts(), Questions(), Own()):
        body = json.dumps(REQUESTS.get(type(task), {})).encode()
        with pytest.raises(InvalidRequestError, match="unknown query parameter") as refused:
            asked(task, body, query)
        assert refused.value.detail.endswith("known are top_k")
        assert len(refused.value.detail) < 200


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("name", ["topk", "comment", "", "x" * 1000])
def test_unknown_fields_are_refused(kind: type[WithoutModel], name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        asked(kind(), json.dumps(REQUESTS[kind] | {name: 1}).encode())
    assert "unknown field" in refused.value.detail
    known = ", ".join([field.name for field in kind.request] + ["top_k"])
    assert refused.value.detail.endswith(f"known are {known}")
    assert len(refused.value.detail) < 600


def test_unknown_fields_of_a_form_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="unknown field 'topk'; known are image, file, top_k"):
        in_form(("topk", "2"))


def test_a_python_class_reads_its_fields_itself() -> None:
    body = b'{"top_k": 2, "any": 1}'
    call = asked(Own(), body, "top_k=1")
    assert [*call.inputs[0].read().values()] == [body]


def test_other_protocols_skip_what_they_do_not_know() -> None:
    assert fields_from_body(Images(), b'{"image": "YWJj", "x": 1, "top_k": 9}', "application/json") == {
        "image": b"abc"
    }


def test_swagger_has_top_k() -> None:
    def described(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
        document: dict[str, Any] = {"paths": {"/predict": {"post": {"responses": {"200": {}}}}}}
        describe_predict(document, "/predict", task)
        operation = document["paths"]["/predict"]["post"]
        content = operation["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        return document["components"]["schemas"][name], operation

    schema, operation = described(Images())
    assert schema["properties"]["top_k"]["maximum"] == CLASSES
    assert schema["properties"]["top_k"]["type"] == ["integer", "null"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["image"]
    assert "top_k" not in Images.request_schema["properties"]  # from which the page makes its form
    content = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert content["properties"]["top_k"]["maximum"] == CLASSES
    assert operation["parameters"][0]["name"] == "top_k"
    assert "top_k" not in described(Own())[0].get("properties", {})

"""What `/predict` takes: `top_k` in three places, and nothing that it does not know."""

import json
import re
from collections.abc import Callable
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
from smallplates.web.api.pipeline import Call
from smallplates.web.dialects.native import decode

CLASSES, MOST = 5, 3


class WithoutModel(Task):
    """A task's declarations, without a model."""

    most_candidates = CLASSES

    def __init__(self) -> None:
        """There is no model."""


class Images(WithoutModel):
    request, media_types = ImageClassification.request, ImageClassification.media_types
    form_fields, request_schema = ImageClassification.form_fields, ImageClassification.request_schema
    list_fields = ImageClassification.list_fields


class Texts(WithoutModel):
    """Texts, or lists of them."""

    request, media_types = TextClassification.request, TextClassification.media_types
    list_fields, request_schema = TextClassification.list_fields, TextClassification.request_schema


class Questions(WithoutModel):
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
    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "query_string": query.encode(), "headers": headers}
    model: Any = SimpleNamespace(task=task, largest_request=MOST)
    return decode(model, Request(scope), body)


def in_json(kind: type[WithoutModel], query: str = "", **more: Any) -> Call:
    """The call for the task's request in JSON, with more fields."""
    return asked(kind(), json.dumps(REQUESTS[kind] | more).encode(), query)


def form(*fields: tuple[str, str], file: str = "image") -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
    parts = [head.format(name, "", value) for name, value in fields]
    return "".join([*parts, head.format(file, '; filename="x"', "abc"), "--b--\r\n"]).encode()


def in_form(*fields: tuple[str, str], query: str = "", file: str = "image") -> Call:
    return asked(Images(), form(*fields, file=file), query, "multipart/form-data; boundary=b")


@pytest.mark.parametrize("kind", REQUESTS)
def test_top_k_in_the_query_or_in_json(kind: type[WithoutModel]) -> None:
    for query, more in (("top_k=2", {}), ("", {"top_k": 2}), ("top_k=2&top_k=2", {"top_k": 2})):
        call = in_json(kind, query, **more)
        assert (call.top_k, call.is_list) == (2, False)
        assert "top_k" not in call.inputs[0].read()
    assert in_json(kind).top_k is in_json(kind, top_k=None).top_k is None


def test_top_k_beside_a_form_lists_or_a_raw_body() -> None:
    for call in (in_form(("top_k", "2")), in_form(("top_k", "2"), ("top_k", "2"), query="top_k=2")):
        assert (call.top_k, call.inputs[0].read()) == (2, {"image": b"abc"})
    assert in_form(file="file").top_k is None
    call = in_json(Texts, text=["good", "bad"], top_k=2)
    assert (call.top_k, call.is_list) == (2, True)
    assert [source.read() for source in call.inputs] == [{"text": "good"}, {"text": "bad"}]
    call = in_json(Images, image=["YWJj", "YWI="], top_k=2)
    assert (call.top_k, call.is_list) == (2, True)
    assert [source.read() for source in call.inputs] == [{"image": b"abc"}, {"image": b"ab"}]
    one, two = form(("top_k", "2")).removesuffix(b"--b--\r\n"), form(file="file")
    call = asked(Images(), one + two, "", "multipart/form-data; boundary=b")
    assert (call.top_k, call.is_list) == (2, True)
    assert [source.read() for source in call.inputs] == [{"image": b"abc"}] * 2
    call = in_json(Images, image=["YWJj"])
    assert (call.is_list, len(call.inputs)) == (True, 1)
    call = asked(Images(), b"abc", "top_k=3", "image/jpeg")
    assert (call.top_k, call.inputs[0].read()) == (3, {"image": b"abc"})


OUT_OF_RANGE = f"top_k must be a whole number from 1 to {CLASSES}"
UNKNOWN_FIELD = "unknown field.*known are .*top_k$"
UNKNOWN = "unknown query parameter.*known are top_k$"
REFUSED: list[tuple[Callable[[], Call], str]] = [
    *(
        (partial(in_json, Images, top_k=value), "top_k")
        for value in (0, -1, CLASSES + 1, 1e9, 10**400, 2.5, "2", "", True, [2])
    ),
    *(
        (partial(asked, Images(), b'{"image": "YWJj", "top_k": ' + b"9" * digits + b"}"), "top_k")
        for digits in (4300, 4301, 100_000)
    ),
    *(
        (partial(in_form, ("top_k", value)), OUT_OF_RANGE)
        for value in ("0", "-1", str(CLASSES + 1), "1e9", "2.0", "", "two", "\u00b2")
    ),
    *(
        (ask, "top_k has several values: 1 and 2")
        for ask in (
            partial(in_json, Images, "top_k=1&top_k=2"),
            partial(in_json, Images, "top_k=1", top_k=2),
            partial(in_form, ("top_k", "1"), query="top_k=2"),
            partial(in_form, ("top_k", "1"), ("top_k", "2")),
        )
    ),
    *(
        (partial(in_json, kind, query), UNKNOWN)
        for kind in REQUESTS
        for query in ("topk=2", "topk", "top_k=2&k=1", "TOP_K=2", "=1", "x" * 1000)
    ),
    (lambda: asked(Own(), b"{}", "topk=2"), UNKNOWN),
    *(
        (partial(asked, kind(), json.dumps(REQUESTS[kind] | {name: 1}).encode()), UNKNOWN_FIELD)
        for kind in REQUESTS
        for name in ("topk", "comment", "", "x" * 1000)
    ),
    *(
        (partial(in_json, Images, image=["YWJj"] * count), f"1 to {MOST} inputs .*, not {count}$")
        for count in (0, MOST + 1)
    ),
    (partial(in_form, ("topk", "2")), "unknown field 'topk'; known are image, file, top_k"),
]


@pytest.mark.parametrize(("ask", "words"), REFUSED, ids=range(len(REFUSED)))
def test_requests_that_are_refused(ask: Callable[[], Call], words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ask()
    assert re.search(words, refused.value.detail)
    assert len(refused.value.detail) < 600


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
    file = {"type": "string", "format": "binary"}
    assert content["properties"]["image"] == {"type": "array", "items": file, "minItems": 1}
    image = Images.request_schema["properties"]["image"]
    many = {"type": "array", "items": image, "minItems": 1}
    assert schema["properties"]["image"] == {"anyOf": [image, many]}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert [one.get("type") for one in answer["anyOf"]] == [None, "array"]
    assert operation["parameters"][0]["name"] == "top_k"
    assert "top_k" not in described(Own())[0].get("properties", {})

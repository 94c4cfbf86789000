"""A task's fields in the named bytes of TorchServe's gRPC API."""

from collections.abc import Mapping
from typing import Any

import pytest

from smallplates.errors import RequestError
from smallplates.tasks.base import JSON_BODY, Task
from smallplates.web.dialects.torchserve_grpc import fields_of
from tests.unit.web.api.test_fields import PNG, Images, Json, Questions, Texts

QUESTION = {"question": b"why", "context": "é".encode()}


@pytest.mark.parametrize(
    ("task", "parts", "fields"),
    [
        (Images(), {"data": PNG}, {"image": PNG}),
        (Images(), {"file": PNG}, {"image": PNG}),
        (Images(), {"image": PNG}, {"image": PNG}),
        (Texts(), {"body": b"{}"}, {"text": "{}"}),
        (Texts(), {"data": b'{"text": ["a", "b"]}'}, {"text": ["a", "b"]}),
        (Texts(), {"text": b'{"text": "a"}'}, {"text": '{"text": "a"}'}),
        (Texts(), {"data": b"a", "text_pair": b"b"}, {"text": "a", "text_pair": "b"}),
        (Questions(), QUESTION, {"question": "why", "context": "é"}),
        (Questions(), {"data": b'{"question": "a", "context": "b"}'}, {"question": "a", "context": "b"}),
        (
            Questions(),
            {**QUESTION, "allow_no_answer": b"true", "weights": b"[1, 0.5]"},
            {"question": "why", "context": "é", "allow_no_answer": True, "weights": [1, 0.5]},
        ),
        (Json(), {"number": b"7"}, {JSON_BODY: b'{"number":7}'}),
        (Json(), {"data": b'{"number": 7}'}, {JSON_BODY: b'{"number": 7}'}),
    ],
)
def test_fields(task: Task, parts: Mapping[str, bytes], fields: Any) -> None:
    assert fields_of(task, parts) == fields


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        (Texts(), {}),
        (Texts(), {"text": b"\xff"}),
        (Texts(), {"text_pair": b"b"}),
        (Texts(), {"text": b"a", "data": b"a"}),
        (Texts(), {"text": b"a", "x": b"a"}),
        (Questions(), {"question": b"why"}),
        (Questions(), {"data": b"why"}),
        (Questions(), {**QUESTION, "allow_no_answer": b"yes"}),
        (Questions(), {**QUESTION, "allow_no_answer": b"1"}),
        (Questions(), {**QUESTION, "weights": b'[1], "question": "x"'}),
        (Json(), {"number": b""}),
    ],
)
def test_what_is_refused(task: Task, parts: Mapping[str, bytes]) -> None:
    with pytest.raises(RequestError):
        fields_of(task, parts)

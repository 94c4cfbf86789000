"""Protocols of texts: errors of a full service, bodies on a path that two protocols share."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from smallplates import errors
from smallplates.tasks.base import Field
from smallplates.web.api.pipeline import Claim, Target
from smallplates.web.dialects import openai, rerank, tei
from smallplates.web.http.request_context import RequestContext

FULL, NO_KEY = errors.OverloadedError("the queue is full"), errors.UnauthorizedError("no key")
LARGE = errors.PayloadTooLargeError("too large")


@pytest.mark.parametrize(
    ("dialect", "path", "error", "status", "content"),
    [
        (tei, "/embed", FULL, 429, {"error": FULL.detail, "error_type": "Overloaded"}),
        (rerank, "/v2/rerank", FULL, 503, {"id": "an id", "message": FULL.detail}),
        (openai, "/v1/embeddings", FULL, 503, {"type": "server_error", "code": "overloaded"}),
        (
            openai,
            "/v1/models",
            NO_KEY,
            401,
            {"type": "invalid_request_error", "code": "invalid_api_key"},
        ),
        (tei, "/embed", errors.DrainingError("x"), 503, {"error": "x", "error_type": "Unhealthy"}),
        (tei, "/embed", NO_KEY, 401, {"error": NO_KEY.detail, "error_type": "Validation"}),
        (tei, "/embed", LARGE, 413, {"error": LARGE.detail, "error_type": "Validation"}),
        (tei, "/embed", errors.InternalError("x"), 500, {"error": "x", "error_type": "Backend"}),
        (tei, "/embed", errors.DeadlineExceededError("x"), 504, {"error": "x", "error_type": "Backend"}),
    ],
)
def test_errors_of_each_protocol(
    dialect: Any, path: str, error: errors.ServingError, status: int, content: dict[str, Any]
) -> None:
    response = dialect.DIALECT.error(error, RequestContext("an id", path=path))
    expected = {"error": {"message": error.detail, "param": None, **content}, "detail": error.detail}
    body = json.loads(bytes(response.body))
    assert (response.status_code, body) == (status, expected if dialect is openai else content)
    assert response.headers.get("Retry-After") == ("1" if status in (429, 503) else None)


def target(takes_json: bool = False, *names: str, signature: int | None = 0) -> Target[Any]:
    """A model whose requests have these fields; one without a signature takes only tensors."""
    fields = [Field(name, "BYTES") for name in names]
    task = SimpleNamespace(takes_json=takes_json, request=fields, request_signature=signature)
    model: Any = SimpleNamespace(task=task)
    return Target(model, bytes.decode)


@pytest.mark.parametrize(
    ("body", "found", "expected"),
    [
        (b'{"inputs": 1}', target(False, "text"), True),
        (b'\xef\xbb\xbf \n{"a": {}, "inputs": null}', target(False, "text"), True),
        (b'{"inputs": 1}', lambda _: target(), True),
        (b'{"inputs": 1}', target(False, "inputs"), False),
        (b'{"inputs": 1}', target(True), False),
        (b'{"inputs": 1}', target(True, signature=None), True),
        (b'{"a": {"inputs": 1}}', target(False, "text"), False),
        (b'{"a": "\\"inputs\\""}', target(False, "text"), False),
        (b'["inputs"]', target(False, "text"), False),
        (b"", target(False, "text"), False),
    ],
)
def test_a_body_of_another_protocol_on_the_path(body: bytes, found: Any, expected: bool) -> None:
    assert Claim("inputs", lambda _: target(), tei.DIALECT).holds(found, body) is expected

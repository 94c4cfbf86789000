"""Errors as several protocols have them: OpenAI's and TEI's."""

from fastapi import Response
from pydantic import BaseModel

from smallplates.errors import NotFoundError, ServingError, TextTooLongError, UnauthorizedError
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext

CODES = {
    NotFoundError.code: "model_not_found",
    TextTooLongError.code: "context_length_exceeded",
    UnauthorizedError.code: "invalid_api_key",
}

TYPES = {
    "overloaded": (429, "Overloaded"),
    "draining": (503, "Unhealthy"),
    "unavailable": (503, "Unhealthy"),
    "invalid_text": (400, "Empty"),
    "text_too_long": (422, "Validation"),
    "wrong_task": (424, "Backend"),
    "not_supported": (424, "Backend"),
}
"""Code -> status and type of an error."""


class OpenAIError(BaseModel):
    """What went wrong: `message`, `type`, `param` and `code`; Jina's clients read the `detail`."""

    error: dict[str, str | None]
    detail: str


class TeiError(BaseModel):
    """What went wrong, in words and as a type."""

    error: str
    error_type: str


def openai_error(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"error": {"message", "type", "param", "code"}, "detail"}`."""
    status = 400 if isinstance(error, TextTooLongError) or error.status == 422 else error.status
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = CODES.get(error.code, error.code)
    content = {"message": error.detail, "type": kind, "param": None, "code": code}
    return json_response({"error": content, "detail": error.detail}, status, error.headers)


def tei_error(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"error", "error_type"}`."""
    usual = (error.status, "Validation" if error.status < 500 else "Backend")
    status, kind = TYPES.get(error.code, usual)
    return json_response({"error": error.detail, "error_type": kind}, status, error.headers)

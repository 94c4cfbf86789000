"""What OpenAPI says about the native API beyond the handlers' types: bodies, examples, errors."""

import base64
from pathlib import Path
from typing import Any

from serving.protocols.schemas import ErrorResponse, PredictRequest

EXAMPLE = Path(__file__).with_name("example.jpg")
CODES = {
    400: ("the body, the encoding or the picture cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes or too many pixels", "payload_too_large"),
    415: ("a content type that is not understood", "unsupported_media_type"),
    422: ("another shape than documented", "invalid_request"),
    500: ("the server's fault; the request may be tried again", "internal_error"),
    503: ("no free slot, shutting down, or not ready", "overloaded"),
    504: ("the deadline passed", "deadline_exceeded"),
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these statuses, each with an example of its body."""
    return {status: error(status) for status in statuses}


def error(status: int) -> dict[str, Any]:
    """One documented error."""
    text, code = CODES[status]
    example = {"detail": text, "code": code, "request_id": "5f0c9a61e5b14a06a4b3f6d6f8b3c7aa"}
    documented: dict[str, Any] = {
        "model": ErrorResponse,
        "description": text[0].upper() + text[1:],
        "content": {"application/json": {"example": example}},
    }
    if status == 503:
        seconds = {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        documented["headers"] = {"Retry-After": seconds}
    return documented


def predict_request(classes: int) -> dict[str, Any]:
    """The parameters and the three kinds of body of `/predict`; the JSON one has a real picture.

    X-Request-Timeout-Ms is not among them: a tool that tries its range would be answered 504, as it
    had asked.
    """
    top_k = {"type": "integer", "minimum": 1, "maximum": classes}
    priority = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
    parameters = [
        parameter("top_k", "query", top_k, "Also list the k most probable classes."),
        parameter("X-Priority", "header", priority, "`bulk` gives way to everything else."),
    ]
    binary = {"schema": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "properties": {"image": {"type": "string", "format": "binary"}},
        "required": ["image"],
    }
    example = {"image": base64.b64encode(EXAMPLE.read_bytes()).decode()}
    content = {
        "application/json": {"schema": PredictRequest.model_json_schema(), "example": example},
        "image/jpeg": binary,
        "application/octet-stream": binary,
        "multipart/form-data": {"schema": form},
    }
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


def parameter(name: str, place: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """An optional one."""
    return {"name": name, "in": place, "schema": schema, "description": description}

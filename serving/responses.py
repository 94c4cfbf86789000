"""Answers as JSON, made by orjson; errors in the native shape."""

from typing import Any

import orjson
from fastapi import Response

from serving.context import RequestContext
from serving.errors import ServingError


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    """`content` is anything that orjson takes."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_response(error: ServingError, context: RequestContext) -> Response:
    """`{"detail", "code", "request_id"}` with the error's status and headers."""
    body = {"detail": error.detail, "code": error.code, "request_id": context.request_id}
    response = json_response(body, error.status)
    response.headers.update(error.headers)
    return response

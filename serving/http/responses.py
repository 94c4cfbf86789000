"""JSON answers, made by orjson, and errors in the shape of the protocol whose path was asked for."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson
from fastapi import Response

from serving.errors import ServingError
from serving.http.request_context import RequestContext

ErrorResponse = Callable[[ServingError, RequestContext], Response]


def dump_json(content: Any) -> bytes:
    """Returns JSON. Whole numbers keep all their digits: orjson has no more than 64 bits."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return msgspec.json.encode(content)


def json_response(
    content: dict[str, Any] | list[dict[str, Any]],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns `content`, anything that `dump_json` takes, as application/json."""
    return Response(dump_json(content), status, headers, "application/json")


def native_error(error: ServingError, context: RequestContext) -> Response:
    """Returns `{"detail", "code", "request_id"}` with the error's status and headers."""
    body = {"detail": error.detail, "code": error.code, "request_id": context.request_id}
    return json_response(body, error.status, error.headers)


class ErrorResponses:
    """Chooses an error's shape by the first segment of the path: each protocol has its own."""

    def __init__(self) -> None:
        self._by_segment: dict[str, ErrorResponse] = {}

    def add(self, first_segment: str, respond: ErrorResponse) -> None:
        """Registers a protocol's shape for all paths under /`first_segment`."""
        self._by_segment[first_segment] = respond

    def response(self, path: str, error: ServingError, context: RequestContext) -> Response:
        """Returns the answer for an error at a path, in the native shape unless registered otherwise."""
        _, first_segment, *_ = (*path.split("/", 2), "")
        return self._by_segment.get(first_segment, native_error)(error, context)

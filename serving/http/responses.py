"""Answers as JSON, made by orjson; errors in the shape of the protocol whose path was asked for."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import Response

from serving.errors import ServingError
from serving.http.context import RequestContext

ErrorShape = Callable[[ServingError, RequestContext], Response]


def json_response(
    content: dict[str, Any] | list[dict[str, Any]],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """`content` is anything that orjson takes."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def error_response(error: ServingError, context: RequestContext) -> Response:
    """`{"detail", "code", "request_id"}` with the error's status and headers."""
    body = {"detail": error.detail, "code": error.code, "request_id": context.request_id}
    return json_response(body, error.status, error.headers)


class ErrorShapes:
    """Which protocol an error is told in: also those of the outermost layers, that no route has seen."""

    def __init__(self) -> None:
        self._shapes: dict[str, ErrorShape] = {}

    def add(self, first_segment: str, shape: ErrorShape) -> None:
        """All paths that begin with this word are the protocol's."""
        self._shapes[first_segment] = shape

    def response(self, path: str, error: ServingError, context: RequestContext) -> Response:
        """The answer for an error at a path."""
        _, first_segment, *_ = (*path.split("/", 2), "")
        return self._shapes.get(first_segment, error_response)(error, context)

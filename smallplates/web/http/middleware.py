"""Middleware around every HTTP request, from the outside in: access log, CORS (if enabled), errors.

`web.app.create_app` uses it in place of FastAPI's own stack, which handles errors in two more places.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smallplates.errors import ServingError
from smallplates.web.http.request_context import (
    CLIENT_GONE,
    RequestContext,
    choose_id,
    is_quiet,
    record,
    to_client_error,
)
from smallplates.web.metrics import Metrics

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

ErrorShape = Callable[[ServingError, RequestContext], Response]
"""Returns the response for an error, in a protocol's format."""


class AccessLogMiddleware:
    """Creates a request's context, adds our headers to the response, and records the outcome."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracer: "Tracer | None") -> None:
        self.app = app
        self.metrics = metrics
        self.tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; adds X-Request-ID and Server-Timing to the response."""
        if scope["type"] != "http":  # an ASGI server's lifespan
            await self.app(scope, receive, send)
            return
        context = self.begin(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = self.headers(context, message["status"])
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            context.status = CLIENT_GONE
        finally:
            self.record(scope)

    def begin(self, scope: Scope) -> RequestContext:
        """Puts a new context into the scope of a request, and returns it."""
        client = (scope.get("client") or ("",))[0]
        request_id = choose_id(header(scope, b"x-request-id"))
        scope["context"] = context = RequestContext(request_id, scope["method"], scope["path"], client)
        if self.tracer:
            context.traceparent = (header(scope, b"traceparent") or b"").decode("latin-1")
        return context

    def headers(self, context: RequestContext, status: int) -> list[tuple[bytes, bytes]]:
        """Notes the response's status, and returns the headers to add to it."""
        context.status = status
        added = [
            (b"x-request-id", context.request_id.encode()),
            (b"server-timing", context.server_timing().encode()),
        ]
        if context.inference and context.inference.truncated:
            added.append((b"x-input-truncated", b"true"))
        return added

    def record(self, scope: Scope) -> None:
        """Counts, traces and logs a request that has ended."""
        context: RequestContext = scope["context"]
        route = getattr(scope.get("route"), "path", None)
        if self.tracer and not is_quiet(context.path):
            context.trace_id = self.tracer.record_http(context, route)
        # other protocols' requests are timed if they were computed
        timed = route in ("/predict", "/predict/{model}") or context.inference is not None
        record(self.metrics, context, route or "other", timed)


def header(scope: Scope, name: bytes) -> bytes | None:
    """Returns the first header with this name, given in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


class ErrorMiddleware:
    """Turns every exception of handlers and the router into a response."""

    def __init__(self, app: ASGIApp, shape: Callable[[Scope], ErrorShape]) -> None:
        """`shape` returns how a request's errors look."""
        self.app = app
        self.shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientDisconnect, and exceptions of a lifespan or after the response has started."""
        response = None
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            context: RequestContext | None = scope.get("context")
            if context is None or isinstance(error, ClientDisconnect):
                raise
            answer = to_client_error(error, context)
            if context.status:
                raise
            response = self.shape(scope)(answer, context)
        if response is not None:  # outside of `except`, whose traceback would keep the request's body
            await response(scope, receive, send)

"""The layers around every HTTP request, from the outside in: access log, HEAD, (CORS,) errors.

`app.create_app` stacks them in place of FastAPI's own, which answer errors in two more places.
"""

from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.request_context import (
    CLIENT_GONE,
    QUIET_PATHS,
    RequestContext,
    choose_id,
    record,
    to_client_error,
)
from serving.http.responses import ErrorResponses
from serving.metrics import Metrics

if TYPE_CHECKING:
    from serving.http.tracing import Tracer


class AccessLogMiddleware:
    """Gives a request its context, its answer our headers, and records how the request ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracer: "Tracer | None") -> None:
        self.app = app
        self.metrics = metrics
        self.tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and its answer with X-Request-ID and Server-Timing."""
        if scope["type"] != "http":  # an ASGI server's lifespan
            await self.app(scope, receive, send)
            return
        context = scope["context"] = RequestContext(choose_id(header(scope, b"x-request-id")))
        if self.tracer:
            context.traceparent = (header(scope, b"traceparent") or b"").decode("latin-1")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", context.request_id.encode()),
                    (b"server-timing", context.server_timing().encode()),
                ]
                if context.inference and context.inference.truncated:
                    message["headers"].append((b"x-input-truncated", b"true"))
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            context.status = CLIENT_GONE
        finally:
            self._record(scope, context)

    def _record(self, scope: Scope, context: RequestContext) -> None:
        route = getattr(scope.get("route"), "path", None)
        series = route or "other"
        if self.tracer and scope["path"] not in QUIET_PATHS:
            context.trace_id = self.tracer.record_http(context, scope["method"], scope["path"], route)
        record(
            self.metrics,
            context,
            context.status or CLIENT_GONE,
            method=scope["method"],
            path=scope["path"],
            series=series,
            client=(scope.get("client") or ("", 0))[0],
            timed=series == "/predict" or bool(context.timings),  # and other protocols' inference
        )


def header(scope: Scope, wanted: bytes) -> bytes | None:
    """Returns the first header of this name, in lower case, or None."""
    return next((value for name, value in scope["headers"] if name == wanted), None)


class HeadMiddleware:
    """Answers HEAD as GET; the HTTP server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; the server's own scope still says HEAD."""
        if scope.get("method") != "HEAD":
            await self.app(scope, receive, send)
            return
        as_get = {**scope, "method": "GET"}
        try:
            await self.app(as_get, receive, send)
        finally:
            scope["route"] = as_get.get("route")


class ErrorMiddleware:
    """Answers every exception of a handler or of the router, in the shape of the path's protocol."""

    def __init__(self, app: ASGIApp, responses: ErrorResponses) -> None:
        self.app = app
        self.responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientDisconnect, and any exception after the answer has started or of a lifespan."""
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
            response = self.responses.response(scope["path"], answer, context)
        if response is not None:  # outside of `except`: the traceback holds the request's body
            await response(scope, receive, send)

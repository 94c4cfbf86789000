"""The outermost layer around every request: id, time, log line, metrics.

Inside it, a short way to the handlers that nearly all requests are for; within FastAPI, the last 500.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import ServingError
from serving.http.access_log import CLIENT_GONE, record, to_client_error
from serving.http.context import RequestContext, choose_id
from serving.http.responses import ErrorShapes
from serving.metrics import Metrics

Handler = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, Exception], Response]


class AccessLogMiddleware:
    """Pure ASGI: it adds two headers and never touches a body."""

    def __init__(self, app: ASGIApp, metrics: Metrics, errors: ErrorShapes) -> None:
        self.app = app
        self.metrics = metrics
        self.errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on and records how it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        offered = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        context = RequestContext(choose_id(offered))
        scope["context"] = context
        status = 0

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", context.request_id.encode()),
                    (b"server-timing", context.server_timing().encode()),
                ]
            await send(message)

        try:
            await self.app(scope, receive, observed_send)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception as error:
            answer = to_client_error(error, context)
            if status:
                raise
            response = self.errors.response(scope["path"], answer, context)
            await response(scope, receive, observed_send)
        finally:
            self._record(scope, status or CLIENT_GONE, context)

    def _record(self, scope: Scope, status: int, context: RequestContext) -> None:
        series = getattr(scope.get("route"), "path", "other")  # never the raw path: they would grow
        record(
            self.metrics,
            context,
            status,
            method=scope["method"],
            path=scope["path"],
            series=series,
            client=(scope.get("client") or ("", 0))[0],
            timed=series == "/predict" or bool(context.stages),  # an answer of another protocol's
        )


@dataclass(frozen=True)
class FastRoute:
    """Where a request goes without FastAPI's routing, a quarter of the web process's time."""

    path: str
    """The route's template, for the metrics."""

    handler: Handler


class FastPathMiddleware:
    """Calls some POST handlers directly; everything else goes on to FastAPI, which documents them."""

    def __init__(self, app: ASGIApp, ways: Mapping[str, FastRoute], on_error: OnError) -> None:
        self.app = app
        self.ways = ways
        self.on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what the handler raises, but for a ServingError, which is an answer."""
        direct = self.ways.get(scope["path"]) if scope["type"] == "http" else None
        if direct is None or scope["method"] != "POST" or scope.get("root_path"):
            await self.app(scope, receive, send)
            return
        scope["route"] = direct
        request = Request(scope, receive)
        try:
            response = await direct.handler(request)
        except ServingError as error:
            response = self.on_error(request, error)
        await response(scope, receive, send)


class ServerErrorMiddleware:
    """Within FastAPI, whose own layer around it answers in plain text, and raises the error again."""

    def __init__(self, app: ASGIApp, on_error: OnError) -> None:
        self.app = app
        self.on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose handler raises what nobody has foreseen."""
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http" or isinstance(error, ClientDisconnect):
                raise
            await self.on_error(Request(scope), error)(scope, receive, send)


class HeadMiddleware:
    """Answers HEAD as GET, for those who look whether the service is there; no body is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on; the server's own scope still says HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        try:
            await self.app(asked, receive, send)
        finally:
            scope["route"] = asked.get("route")

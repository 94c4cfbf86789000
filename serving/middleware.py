"""The outermost layer around every request: id, time, log line, metrics, and the last 500.

Inside it, a short way to the handlers that nearly all requests are for.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.context import RequestContext, choose_id
from serving.errors import InternalError, ServingError
from serving.logs import LEVELS, logger
from serving.metrics import Metrics
from serving.responses import ErrorShapes

Handler = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, ServingError], Response]
QUIET_PATHS = {"/health/live", "/health/ready", "/metrics"}
CLIENT_GONE = 499  # nginx's number; it is seen in the log and in the metrics only


class Observer:
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
            status, context.code = CLIENT_GONE, "client_gone"
        except Exception:
            logger().exception("request failed", request_id=context.request_id)
            if status:
                raise
            error = InternalError("the server failed; the request may be tried again")
            context.code = error.code
            response = self.errors.response(scope["path"], error, context)
            await response(scope, receive, observed_send)
        finally:
            self._record(scope, status or CLIENT_GONE, context)

    def _record(self, scope: Scope, status: int, context: RequestContext) -> None:
        path = getattr(
            scope.get("route"), "path", "other"
        )  # never the raw path: a series per path would grow
        seconds = time.monotonic() - context.started
        self.metrics.requests.labels(path, str(status), context.code).inc()
        if path == "/predict" or context.stages:  # an answer of another protocol's
            self.metrics.total.observe(seconds)
        failed = status >= 500 and status != 503  # which is a refusal, and comes by the thousand
        level = "warning" if failed else "debug" if path in QUIET_PATHS else "info"
        logger().log(
            LEVELS[level],
            "request",
            request_id=context.request_id,
            method=scope["method"],
            path=scope["path"],
            status=status,
            code=context.code,
            client=(scope.get("client") or ("", 0))[0],
            ms={k: round(v * 1000, 2) for k, v in {**context.stages, "total": seconds}.items()},
        )


@dataclass(frozen=True)
class Direct:
    """Where a request goes without FastAPI's routing, a quarter of the web process's time."""

    path: str
    """The route's template, for the metrics."""

    handler: Handler


class ShortWay:
    """Calls some POST handlers directly; everything else goes on to FastAPI, which documents them."""

    def __init__(self, app: ASGIApp, ways: Mapping[str, Direct], on_error: OnError) -> None:
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

"""What is around every HTTP request: its route, its errors, our headers, log and metrics.

`web.app.create_app` uses it in place of FastAPI's own stack, which handles errors in two more places.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smallplates.errors import ServingError
from smallplates.web.http.protocol import cycle_of
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

MOST_PATHS, LONGEST_PATH = 1024, 500
"""Paths whose route is remembered, and their characters; a client may send many different ones."""

ErrorShape = Callable[[ServingError, RequestContext], Response]
"""Returns the response for an error, in a protocol's format."""


class AnsweringRoute(Protocol):
    """A route whose response is an object, which it does not send itself."""

    @property
    def methods(self) -> Collection[str] | None:
        """The methods that it supports."""

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """Returns the response to a request; `scope["path_params"]` has the path's parameters."""


class RequestMiddleware:
    """Finds a request's route, turns errors into responses, adds our headers, records the outcome.

    The router matches a path once; from then on a dictionary has its route. If `HttpProtocol`
    has received the request, the response is written in one step.
    """

    def __init__(
        self,
        router: ASGIApp,
        answering: type[AnsweringRoute],
        shape: Callable[[Scope], ErrorShape],
        metrics: Metrics,
        tracer: "Tracer | None",
    ) -> None:
        """`answering` is the class of routes to learn; `shape` returns how a request's errors look."""
        self.metrics = metrics
        self.tracer = tracer
        self.stack: ASGIApp = self.answer
        """What answers a request in ASGI's way; middleware around `answer` may take its place."""

        self._router = router
        self._answering = answering
        self._shape = shape
        self._found: dict[tuple[str, str], tuple[AnsweringRoute, dict[str, Any]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; the response gets X-Request-ID and Server-Timing."""
        if scope["type"] != "http":  # an ASGI server's lifespan
            await self._router(scope, receive, send)
            return
        context = self.begin(scope)
        cycle = cycle_of(send) if self.stack == self.answer else None
        try:
            if cycle and (found := self._found.get((scope["method"], scope["path"]))):
                response = await self._response(scope, receive, *found)
                if type(response).__call__ is Response.__call__:  # others send their body in parts
                    added, status = self.headers(context, response.status_code), response.status_code
                    await cycle.respond(status, [*response.raw_headers, *added], bytes(response.body))
                    return
                answer: ASGIApp = response
            else:
                answer = self.stack

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    added = self.headers(context, message["status"])
                    message["headers"] = [*message["headers"], *added]
                await send(message)

            await answer(scope, receive, send_with_headers)
        except ClientDisconnect:
            context.status = CLIENT_GONE
        finally:
            self.record(scope)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and learns its route.

        Raises ClientDisconnect, and exceptions after the response has started.
        """
        key, response = (scope["method"], scope["path"]), None
        if found := self._found.get(key):
            response = await self._response(scope, receive, *found)
        else:
            try:
                await self._router(scope, receive, send)
            except Exception as error:
                response = self._error(scope, error)
            route = scope.get("route")
            is_short = len(key[1]) <= LONGEST_PATH
            if isinstance(route, self._answering) and is_short and key[0] in (route.methods or ()):
                if len(self._found) == MOST_PATHS:
                    self._found.clear()
                self._found[key] = route, scope["path_params"]
        if response is not None:  # outside of `except`, whose traceback would keep the request's body
            await response(scope, receive, send)

    async def _response(
        self, scope: Scope, receive: Receive, route: AnsweringRoute, parameters: dict[str, Any]
    ) -> Response:
        """Returns a route's response, or that to its error. Raises ClientDisconnect."""
        scope["route"], scope["path_params"] = route, parameters
        try:
            return await route.answer(scope, receive)
        except Exception as error:
            return self._error(scope, error)

    def _error(self, scope: Scope, error: Exception) -> Response:
        """Returns the response to an error; raises it if no response can be sent any more."""
        context: RequestContext = scope["context"]
        if isinstance(error, ClientDisconnect):
            raise error
        answer = to_client_error(error, context)
        if context.status:
            raise error
        return self._shape(scope)(answer, context)

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

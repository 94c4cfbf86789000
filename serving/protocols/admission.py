"""Admission of requests, one for all protocols: key, free slot, body within its limits, deadline.

Also the route class that calls a handler without FastAPI's parsing, and the cancellation of a request
whose client disconnects.
"""

import asyncio
import hmac
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from fastapi import Request, Security, params
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import SecretStr
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from serving.errors import InvalidRequestError, UnauthorizedError
from serving.http.body import BodyReader
from serving.inference.served_model import RequestOptions, ServedModel
from serving.settings import Settings

T = TypeVar("T")
SMALL_BYTES = 64 * 1024
BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for OpenAPI; `KeyCheck` does the check


class DirectRoute(APIRoute):
    """Calls its handler with the request and the path's parameters; FastAPI documents it, no more.

    Parsing bodies, headers and queries is the handler's, so that a key is checked before a body is read.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose path has matched, or raises 405 for another method."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
        else:
            response = await self.endpoint(request=Request(scope, receive), **scope["path_params"])
            await response(scope, receive, send)


class KeyCheck:
    """Compares a bearer token in constant time; without a key, everything is allowed."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key.get_secret_value().encode() if key else None

    def check(self, authorization: str) -> None:
        """Checks an Authorization header, or gRPC's metadata of that name. Raises UnauthorizedError."""
        if self._key is None:
            return
        scheme, _, token = authorization.partition(" ")
        key = token.strip().encode("latin-1", "replace")
        if scheme.lower() != "bearer" or not self.matches(key):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")

    def matches(self, key: bytes) -> bool:
        """Whether `key` is the key; True where none is needed."""
        return self._key is None or hmac.compare_digest(key, self._key)

    def documented(self) -> list[params.Depends]:
        """Returns the dependency with which Swagger offers to authorize; the check is the handler's."""
        return [Security(BEARER)] if self._key is not None else []


class Admission:
    """Admits the requests of all protocols of a web process: the bodies it holds count together."""

    def __init__(self, settings: Settings) -> None:
        self.check_key = KeyCheck(settings.api_key)
        self.largest_timeout_ms = settings.request_timeout_ms
        self.reader = BodyReader(
            settings.max_body_bytes, settings.max_buffered_bytes, settings.body_timeout_ms / 1000
        )
        self.small = BodyReader(SMALL_BYTES, settings.max_buffered_bytes, self.reader.timeout_s)

    def admit(self, request: Request, model: ServedModel, signature: int = 0) -> RequestOptions:
        """Checks key, headers and a free slot, before the body is read.

        Raises UnauthorizedError, InvalidRequestError or RetryableError.
        """
        headers = request.headers
        return self.admit_headers(
            headers.get("authorization", ""),
            headers.get("x-request-timeout-ms"),
            headers.get("x-priority"),
            model,
            signature,
        )

    def admit_headers(
        self,
        authorization: str,
        timeout_ms: str | None,
        priority: str | None,
        model: ServedModel,
        signature: int,
    ) -> RequestOptions:
        """Does the same as `admit` with the headers' values, or gRPC's metadata."""
        self.check_key.check(authorization)
        asked_ms = parse_number(timeout_ms, "X-Request-Timeout-Ms", self.largest_timeout_ms)
        bulk = parse_priority(priority)
        model.refuse_if_full(bulk, signature)
        return RequestOptions(asked_ms or self.largest_timeout_ms, bulk)

    def body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """Reads a body, see `BodyReader.read`."""
        return self.reader.read(request)

    def small_body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """Reads a body of a path that needs no key, apart from the budget of keyed requests."""
        return self.small.read(request)

    def held(self, size: int) -> AbstractContextManager[None]:
        """Counts a message that something else has read, see `BodyReader.held`."""
        return self.reader.held(size)


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`; cancels it when the client disconnects first. Raises ClientDisconnect then.

    The body must have been read. `HttpProtocol` sets `scope["disconnect"]`; other servers have ASGI's
    message, which can only be the disconnect here.
    """
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 a coroutine runs in a task
    known: asyncio.Future[Any] | None = request.scope.get("disconnect")  # Any: as ASGI
    disconnect = known or asyncio.ensure_future(request.receive())
    disconnected = finished = False

    def on_disconnect(_: object) -> None:
        nonlocal disconnected
        if not finished:  # removing a callback does not stop one that the loop is about to call
            disconnected = True
            this.cancel()

    disconnect.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if not disconnected:
            raise
        this.uncancel()
        raise ClientDisconnect from None
    finally:
        finished = True
        disconnect.remove_done_callback(on_disconnect)
        if known is None:
            disconnect.cancel()


def parse_number(text: str | None, name: str, largest: int) -> int | None:
    """Parses a whole number from 1 to `largest`; None stays None. Raises InvalidRequestError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= largest):
        raise InvalidRequestError(f"{name} must be a whole number from 1 to {largest}")
    return int(text)


def parse_priority(text: str | None) -> bool:
    """Whether X-Priority asks for bulk. Raises InvalidRequestError for an unknown class."""
    if text in (None, "interactive"):
        return False
    if text == "bulk":
        return True
    raise InvalidRequestError("X-Priority must be interactive or bulk")

"""What every way in shares: key, free slots, body, deadline, and clients that go away."""

import asyncio
import hmac
import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request, Security, params
from fastapi.security import HTTPBearer
from pydantic import SecretStr
from starlette.requests import ClientDisconnect

from serving.engine.memory import Signature
from serving.errors import InvalidRequestError, UnauthorizedError
from serving.http.body import BodyReader
from serving.inference.service import Classifier

T = TypeVar("T")
SMALL_BYTES = 64 * 1024


BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for the documents; see `KeyCheck`


class KeyCheck:
    """Compares the bearer token in constant time; without a key, everything is allowed."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key.get_secret_value().encode() if key else None

    def __call__(self, request: Request) -> None:
        """Raises UnauthorizedError."""
        self.check(request.headers.get("authorization", ""))

    def check(self, authorization: str) -> None:
        """The header's value, or that of gRPC's metadata. Raises UnauthorizedError."""
        if self._key is None:
            return
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("latin-1", "replace")
        if scheme.lower() != "bearer" or not self.is_right(given):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")

    def is_right(self, given: bytes) -> bool:
        """Whether the key is this one; True where none is needed."""
        return self._key is None or hmac.compare_digest(given, self._key)

    def documented(self) -> list[params.Depends]:
        """What makes Swagger offer to authorize; the check itself is the handler's.

        FastAPI would read a body, however large, before it asks a dependency.
        """
        return [Security(BEARER)] if self._key is not None else []


@dataclass(frozen=True)
class RequestOptions:
    """Under which a request was let in."""

    timeout_ms: int
    bulk: bool

    def deadline(self) -> float:
        """A time of time.monotonic(), counted from now: the body is here."""
        return time.monotonic() + self.timeout_ms / 1000

    def within(self, microseconds: int) -> "RequestOptions":
        """Of a request whose body asks for less time; 0 asks for nothing."""
        if not microseconds:
            return self
        return RequestOptions(max(1, min(self.timeout_ms, microseconds // 1000)), self.bulk)


class Admission:
    """One for all protocols of a web process: bodies that are held count together."""

    def __init__(self, classifier: Classifier) -> None:
        settings = classifier.settings
        self.classifier = classifier
        self.check_key = KeyCheck(settings.api_key)
        self.largest_timeout_ms = settings.request_timeout_ms
        self.reader = BodyReader(
            settings.max_body_bytes, settings.max_buffered_bytes, settings.body_timeout_ms / 1000
        )
        self.small = BodyReader(SMALL_BYTES, settings.max_buffered_bytes, self.reader.timeout_s)

    def admit(self, request: Request, kind: Signature = Signature.IMAGE) -> RequestOptions:
        """Looks at the headers, and whether there is a slot, before the body is read.

        Raises UnauthorizedError, InvalidRequestError or RetryableError.
        """
        headers = request.headers
        return self.admit_by(
            headers.get("authorization", ""),
            headers.get("x-request-timeout-ms"),
            headers.get("x-priority"),
            kind,
        )

    def admit_by(
        self, authorization: str, timeout_ms: str | None, priority: str | None, kind: Signature
    ) -> RequestOptions:
        """The same by the headers' values, wherever they stand."""
        self.check_key.check(authorization)
        wanted_ms = number(timeout_ms, "X-Request-Timeout-Ms", self.largest_timeout_ms)
        bulk = is_bulk(priority)
        self.classifier.check_free_slot(bulk, kind)
        return RequestOptions(wanted_ms or self.largest_timeout_ms, bulk)

    def body(self, request: Request, compressed: bool = False) -> AbstractAsyncContextManager[bytes]:
        """See `BodyReader.read`."""
        return self.reader.read(request, compressed)

    def small_body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """Of what needs no key: takes nothing of what the bodies of those who have one may hold."""
        return self.small.read(request)

    def held(self, size: int) -> AbstractContextManager[None]:
        """See `BodyReader.held`."""
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


def number(text: str | None, name: str, largest: int) -> int | None:
    """A whole number from 1 to `largest`, or None where none was sent. Raises InvalidRequestError.

    By hand, and not by FastAPI's parameters, which the short way to the handler goes around.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= largest):
        raise InvalidRequestError(f"{name} must be a whole number from 1 to {largest}")
    return int(text)


def is_bulk(text: str | None) -> bool:
    """Whether X-Priority asks to give way. Raises InvalidRequestError for an unknown class."""
    if text in (None, "interactive"):
        return False
    if text == "bulk":
        return True
    raise InvalidRequestError("X-Priority must be interactive or bulk")

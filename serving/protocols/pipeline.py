"""The way of a request through every protocol: admitted, read, decoded, answered.

A protocol brings `decode`, which makes a `Call` of a body, and formats the answer. Its routes call their
handlers without FastAPI's parsing. A request whose client disconnects is cancelled.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Security, params
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import SecretStr
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from serving.errors import InvalidRequestError, UnauthorizedError
from serving.http.body import BodyReader
from serving.http.request_context import RequestContext
from serving.inference.served_model import Answer, Input, RequestOptions, ServedModel
from serving.inference.service import InferenceService
from serving.tensors import Array

T = TypeVar("T")
SMALL_BYTES = 64 * 1024
LARGE = 64 * 1024
"""Bytes of JSON; decoding more is a thread's work."""

BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for OpenAPI; `KeyCheck` does the check


class DirectRoute(APIRoute):
    """Calls its handler with the path's parameters and, if it takes it, the request.

    FastAPI documents it, no more. Parsing bodies, headers and queries is the handler's, so that a key is
    checked before a body is read.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose path has matched, or raises 405 for another method."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
        else:
            takes_request = self.dependant.request_param_name is not None
            given = {"request": Request(scope, receive)} if takes_request else {}
            response = await self.endpoint(**given, **scope["path_params"])
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
        given = token.strip().encode("latin-1", "replace")
        if scheme.lower() != "bearer" or not self.matches(given):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")

    def matches(self, given: bytes) -> bool:
        """Whether `given` is the key; True where none is needed."""
        return self._key is None or hmac.compare_digest(given, self._key)

    def documented(self) -> list[params.Depends]:
        """Returns the dependency with which Swagger offers to authorize; the check is the handler's."""
        return [Security(BEARER)] if self._key is not None else []


@dataclass
class Call:
    """What a request asks of the model: inputs of its task, or tensors."""

    model: ServedModel
    inputs: Sequence[Input] = ()
    tensors: Sequence[Array] | None = None
    top_k: int = 1
    """Candidates of each input."""

    timeout_us: int = 0
    """Time limit in the body, in microseconds; 0: none."""


C = TypeVar("C", bound=Call)


class Pipeline:
    """Admits the requests of all protocols of a web process, and passes them on to their models."""

    def __init__(self, service: InferenceService) -> None:
        settings = service.settings
        self.service = service
        self.check_key = KeyCheck(settings.api_key)
        self.largest_timeout_ms = settings.request_timeout_ms
        body_timeout_s = settings.body_timeout_ms / 1000
        self.reader = BodyReader(settings.max_body_bytes, settings.max_buffered_bytes, body_timeout_s)
        """Reads the bodies of all protocols, which count together."""

        self.small_reader = BodyReader(SMALL_BYTES, settings.max_buffered_bytes, body_timeout_s)
        """Reads bodies of a path that needs no key, apart from the budget of keyed requests."""

    def admit(
        self, headers: Mapping[str, str], model: ServedModel, signature: int = 0
    ) -> RequestOptions:
        """Checks key, headers (or gRPC's metadata) and a free slot, before the body is read.

        Raises UnauthorizedError, InvalidRequestError or RetryableError.
        """
        self.check_key.check(headers.get("authorization", ""))
        timeout_ms = headers.get("x-request-timeout-ms")
        asked_ms = parse_number(timeout_ms, "X-Request-Timeout-Ms", self.largest_timeout_ms)
        bulk = parse_priority(headers.get("x-priority"))
        model.refuse_if_full(bulk, signature)
        return RequestOptions(asked_ms or self.largest_timeout_ms, bulk)

    async def http(
        self,
        request: Request,
        model: ServedModel,
        decode: Callable[[bytes], C],
        signature: int = 0,
        inline_bytes: int | None = LARGE,
    ) -> tuple[C, Answer]:
        """Answers an HTTP request for a model; returns the call that `decode` made, too.

        Bodies of more than `inline_bytes` are decoded on a thread; None: none. Raises ServingError, and
        ClientDisconnect when the client leaves first.
        """
        context = RequestContext.of(request)
        context.model = model.description.name
        options = self.admit(request.headers, model, signature)
        with model:
            async with self.reader.read(request) as body:
                if inline_bytes is None or len(body) <= inline_bytes:
                    call = decode(body)
                else:
                    call = await self.service.threads.run(partial(decode, body), options.bulk)
                answer = await unless_disconnected(request, self.answer(call, options))
        context.set_timings(answer.timings)
        return call, answer

    def answer(self, call: Call, options: RequestOptions) -> Coroutine[Any, Any, Answer]:
        """Answers a call. Raises what `ServedModel.predict` and `infer` raise."""
        options = options.within(call.timeout_us)
        if call.tensors is None:
            return call.model.predict(call.inputs, call.top_k, options)
        return call.model.infer(call.tensors, options)


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

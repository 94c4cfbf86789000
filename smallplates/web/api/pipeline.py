"""The steps that a request takes in every protocol: admission, reading, decoding, answering.

A protocol provides a `Target`, or a function that finds it by the body: the model, and `decode`, which
turns a body into a `Call`. It formats the answer. A request whose client disconnects is cancelled.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from fastapi import Request, Response, Security, params
from fastapi.security import HTTPBearer
from pydantic import SecretStr
from starlette.requests import ClientDisconnect

from smallplates.engine.statistics import Timings
from smallplates.errors import InvalidRequestError, UnauthorizedError
from smallplates.models.tensors import Array
from smallplates.tasks.base import Fields
from smallplates.web.api.fields import rows_of
from smallplates.web.http.body import LARGE, Body, BodyReader, decode_json
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer, Input, RequestOptions, ServedModel
from smallplates.web.inference.service import InferenceService

T = TypeVar("T")
SMALL_BYTES = 64 * 1024
SKIMMED_BYTES = 8 * 1024 * 1024
"""Size of the largest body in which the event loop looks for the model's name: 11 ms at most."""

NO_TIME = Timings(0.0, 0.0, 0.0)
OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
JSON_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*+\{")
BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for OpenAPI only; `KeyCheck` checks


class KeyCheck:
    """Compares what requests send with a key, in constant time; without a key, all are allowed."""

    def __init__(self, key: SecretStr | None, kind: str = "API") -> None:
        self._kind = kind
        self._key = key.get_secret_value().encode() if key else None

    def check(self, authorization: str, api_key: str = "") -> None:
        """Checks the headers Authorization and api-key, or gRPC metadata. Raises UnauthorizedError."""
        if not (self.accepts(authorization) or self.matches(api_key.encode("latin-1", "replace"))):
            raise UnauthorizedError(f"a valid {self._kind} key is needed: Authorization: Bearer KEY")

    def accepts(self, authorization: str) -> bool:
        """Returns whether an Authorization header has the key; True if no key is set."""
        if self._key is None:
            return True
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.matches(token.strip().encode("latin-1", "replace"))

    def matches(self, given: bytes) -> bool:
        """Returns whether `given` is the key; True if no key is set."""
        return self._key is None or hmac.compare_digest(given, self._key)

    def security(self) -> list[params.Depends]:
        """Returns the dependency that makes Swagger offer authorization; the handler checks the key."""
        return [Security(BEARER)] if self._key is not None else []


@dataclass
class Call:
    """A decoded request: inputs of the model's task, or tensors."""

    inputs: Sequence[Input] = ()
    tensors: Sequence[Array] | None = None
    top_k: int | None = None  # candidates for each input; None: as many as the task has usually
    timeout_us: int = 0  # time limit given in the body, in microseconds; 0 means none
    is_list: bool = False  # whether the client sent a list of inputs, and gets a list of answers
    needs_worker: bool = True  # else it is answered without the network, as token ids are
    respond: "Respond | None" = None  # over HTTP: formats the answer; on a thread if that is large

    def answers(self, answer: Answer) -> list[Any]:
        """Returns the answer of each input, as `/predict` has it."""
        with_top = self.top_k is not None
        return [answer.task.to_json(candidates, with_top) for candidates in answer.candidates]

    def one_or_all(self, answers: list[Any]) -> Any:
        """Returns the answers of all inputs as the client expects them: a list, or the only one."""
        return answers if self.is_list else answers[0]


C = TypeVar("C", bound=Call)
Respond = Callable[[Answer, RequestContext], Response]


class Target(NamedTuple, Generic[C]):
    """A model, and how a protocol decodes a body for it."""

    model: ServedModel
    decode: Callable[[Any], C]  # takes the body's bytes, or gRPC's message; raises RequestError
    signature: int = 0
    inline_bytes: int | None = LARGE  # larger bodies are decoded on a thread; None: on the event loop


Find = Target[C] | Callable[[Any], Target[C]]
"""A model that is known before the body, or a function that finds it by the body."""

KnownCall = tuple[object, ServedModel, int]
"""What all requests with a certain method and path call: route, model, signature."""


class Claim(NamedTuple):
    """A protocol's part of a path that another protocol has, too: JSON objects with this field."""

    field: str
    find: Callable[..., Target[Call]]  # takes the body and the path's parameters
    dialect: Any  # whose errors these requests get

    def holds(self, find: Find[Any], body: bytes) -> bool:
        """Returns whether a body is of this protocol; the model's own fields come first."""
        if isinstance(find, Target):
            task = find.model.task
            owns = task.takes_json or any(field.name == self.field for field in task.request)
            if owns and task.request_signature is not None:  # a graph of tensors takes no request
                return False
        is_likely = JSON_OBJECT.match(body) is not None and f'"{self.field}"'.encode() in body
        return is_likely and self.field in decode_json(OBJECT, body)


def call_of(model: ServedModel, fields: Fields, size: int, top_k: int | None) -> Call:
    """Returns the call for the fields of a body of `size` bytes. Raises what `rows_of` raises."""
    rows = rows_of(model.task, fields, model.largest_request)
    inputs = [Input(size, partial(dict, row)) for row in ([fields] if rows is None else rows)]
    return Call(inputs, top_k=top_k, is_list=rows is not None)


class Pipeline:
    """Admits requests of all protocols in a web process and passes them to their models."""

    def __init__(self, service: InferenceService) -> None:
        settings = service.settings
        self.service = service
        self.check_key = KeyCheck(settings.api_key)
        self.largest_timeout_ms = settings.request_timeout_ms
        body_timeout_s = settings.body_timeout_ms / 1000
        self.reader = BodyReader(settings.max_body_bytes, settings.max_buffered_bytes, body_timeout_s)
        """Reads bodies for all protocols, which share one memory limit."""

        most = max(settings.max_buffered_bytes, settings.max_answer_bytes)
        self.answers = BodyReader(settings.max_body_bytes, most, body_timeout_s)
        """Counts large answers until they have been sent, with a separate memory limit."""

        self.small_reader = BodyReader(SMALL_BYTES, settings.max_buffered_bytes, body_timeout_s)
        """Reads bodies for paths that need no key, with a separate memory limit."""

        self._models = service.models
        self._known: dict[tuple[str, str], KnownCall] = {}

    @property
    def known(self) -> dict[tuple[str, str], KnownCall]:
        """Method and path -> what their requests call; empty after every change of the models."""
        if self._models is not self.service.models:
            self._models, self._known = self.service.models, {}
        return self._known

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Checks the key in the headers. Raises UnauthorizedError."""
        self.check_key.check(headers.get("authorization", ""), headers.get("api-key", ""))

    def admit(self, headers: Mapping[str, str]) -> RequestOptions:
        """Admits a request by its headers (or gRPC metadata), before its body is read.

        A drain that begins later does not refuse it. Raises UnauthorizedError, InvalidRequestError or
        DrainingError.
        """
        self.check_headers(headers)
        timeout_ms = parse_timeout(headers.get("x-request-timeout-ms"), self.largest_timeout_ms)
        bulk = parse_priority(headers.get("x-priority"))
        self.service.check_accepting()
        return RequestOptions(timeout_ms, bulk)

    async def http(
        self, request: Request, find: "Find[Any]", early: "ServedModel | None" = None
    ) -> Response:
        """Answers an HTTP request.

        If the path determines the model, `find` is a Target or `early` is the model. Then this checks
        for a free slot before the body is read, and `head_check` may refuse the path's further
        requests. Raises ServingError, or ClientDisconnect if the client disconnects first.
        """
        scope = request.scope
        context: RequestContext = scope["context"]
        is_checked = "admitted" in scope  # by `head_check`
        options: RequestOptions = scope["admitted"] if is_checked else self.admit(request.headers)
        served, signature = early, early.task.request_signature or 0 if early else 0
        if isinstance(find, Target):
            served, signature = find.model, find.signature
        model: AbstractContextManager[object] = nullcontext()
        if served is not None:
            self.known[scope["method"], scope["path"]] = scope.get("route"), served, signature
            model = self.reserve(context, options, served, signature, is_checked)
        with model, await self.reader.read(request) as body:
            for claim in getattr(scope.get("route"), "claims", ()):
                if claim.holds(find, await body.decompress()):
                    find = partial(claim.find, **request.path_params)
                    scope["dialect"] = claim.dialect
                    break
            return await unless_disconnected(request, self._respond(context, options, find, body))

    async def _respond(
        self, context: RequestContext, options: RequestOptions, find: "Find[Any]", body: Body
    ) -> Response:
        """Returns the response to a request whose body has arrived, made on a thread if it is large."""
        call, answer = await self.answer(context, options, find, body)
        respond: Callable[[], Response] = partial(call.respond, answer, context)
        if answer.is_large:
            return await self.service.threads.run(respond, options.bulk)
        return respond()

    def reserve(
        self,
        context: RequestContext,
        options: RequestOptions,
        model: ServedModel,
        signature: int = 0,
        is_checked: bool = False,
    ) -> ServedModel:
        """Returns the model, to be open while the body is read.

        Raises RetryableError if it is full, unless that `is_checked` already.
        """
        context.model = model.description.name
        if not is_checked:
            model.refuse_if_full(options, signature)
        return model

    async def answer(
        self, context: RequestContext, options: RequestOptions, find: "Find[C]", body: Body
    ) -> tuple[C, Answer]:
        """Answers a request whose body has arrived, within the time limit of an admitted request.

        Raises what `ServedModel.admit`, `predict` and `infer` raise, or RequestError.
        """
        target = find if isinstance(find, Target) else await self._find(find, body, options.bulk)
        model = target.model
        context.model, context.answer = model.description.name, Body(self.answers)
        with model:  # answers requests that have found it, even if it is replaced meanwhile
            async with model.admit(options, target.signature) as slots:
                slots.slots.hold = context.answer.grow
                content = await body.decompress()
                if target.inline_bytes is None or body.size <= target.inline_bytes:
                    call = target.decode(content)
                else:
                    work = partial(target.decode, content)
                    call = await self.service.threads.run(work, options.bulk)
                if not call.needs_worker:
                    return call, Answer(model.task, [], [], NO_TIME)
                options = options.within(call.timeout_us)
                if call.tensors is None:
                    top_k = call.top_k or model.task.usual_candidates
                    answer = await model.predict(call.inputs, top_k, options, slots)
                else:
                    answer = await model.infer(call.tensors, options, slots)
        context.inference = answer.timings
        return call, answer

    async def _find(self, find: Callable[[Any], Target[C]], body: Body, bulk: bool) -> Target[C]:
        """Returns the model for a body, in which a thread looks for the name if it is very large.

        If the models change meanwhile, this looks again, because the one that was found may be closed.
        """
        content = await body.decompress()
        if body.size <= SKIMMED_BYTES:
            return find(content)
        while True:
            models = self.service.models
            target = await self.service.threads.run(partial(find, content), bulk)
            if models is self.service.models:
                return target


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`; if the client disconnects first, cancels it and raises ClientDisconnect.

    The body must have been read already. `HttpProtocol` sets `scope["disconnect"]`. With other servers
    the function waits for the next ASGI message, which at this point can only be the disconnect.
    """
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 a coroutine runs in a task
    known: asyncio.Future[Any] | None = request.scope.get("disconnect")  # Any: as ASGI
    disconnect = known or asyncio.ensure_future(request.receive())
    disconnected = finished = False

    def on_disconnect(_: object) -> None:
        nonlocal disconnected
        if not finished:  # the loop may already have scheduled this callback when it was removed
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
    """Parses an integer from 1 to `largest`; returns None for None. Raises InvalidRequestError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= largest):
        raise InvalidRequestError(f"{name} must be a whole number from 1 to {largest}")
    return int(text)


def parse_timeout(text: str | None, largest: int) -> int:
    """Parses a time limit in milliseconds. Returns `largest` for None, and for every longer limit.

    Raises InvalidRequestError for a text that is not a whole number of at least 1.
    """
    if text is None:
        return largest
    if not (text.isascii() and text.isdigit() and (limit := float(text)) >= 1):
        raise InvalidRequestError("X-Request-Timeout-Ms must be a whole number of at least 1")
    return int(min(limit, largest))


def parse_priority(text: str | None) -> bool:
    """Returns whether X-Priority is bulk. Raises InvalidRequestError for an unknown priority."""
    if text not in (None, "interactive", "bulk"):
        raise InvalidRequestError("X-Priority must be interactive or bulk")
    return text == "bulk"

"""The steps of a call in every gRPC service: message, key, deadline, errors, log, metrics, traces.

A service is a table of its methods: `Methods`. `server.py` serves them.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import ParseDict

from smallplates.errors import NotSupportedError
from smallplates.web.api.pipeline import C, Find, Pipeline
from smallplates.web.grpc.limits import SMALL, Context, Message, MessageReadLimiter, parse
from smallplates.web.http.body import Body
from smallplates.web.http.request_context import (
    CLIENT_GONE,
    RequestContext,
    check_keys,
    choose_id,
    is_quiet,
    record,
    to_client_error,
)
from smallplates.web.inference.served_model import Answer, RequestOptions

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

CODES = {
    200: grpc.StatusCode.OK,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    CLIENT_GONE: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MAX_DETAIL = 600
"""Characters of an error, up to 12 bytes each; with over 8 KB of metadata, clients lose the status."""

Content = dict[str, Any]
"""A message as `json_format.ParseDict` takes it."""


class Call(NamedTuple):
    """A call, or a request of a stream, as the service's methods see it."""

    pipeline: Pipeline
    context: Context
    request_context: RequestContext
    options: RequestOptions

    async def infer(self, find: Find[C], message: Message, size: int) -> tuple[C, Answer]:
        """Returns the decoded call and the model's answer to a message that takes `size` bytes.

        Raises ServingError.
        """
        options = self.options
        if (remaining := self.context.time_remaining()) is not None:  # the client's deadline
            options = options.within(max(1000, int(remaining * 1e6)))
        with Body(self.pipeline.reader, content=message) as body:
            body.hold(size)
            return await self.pipeline.answer(self.request_context, options, find, body)

    async def encode(
        self, encode: Callable[[C, Answer], Iterable[bytes]], call: C, answer: Answer
    ) -> bytes:
        """Returns the bytes of a model's answer; a thread makes them of a large one, and frees it.

        Raises ServingError.
        """
        is_large, work = answer.is_large, partial(joined, encode, call, answer)
        del call, answer
        if not is_large:
            return work()
        running = self.pipeline.service.threads.run(work, self.options.bulk)
        del work
        return await running


class Inference(NamedTuple):
    """A method that calls a model: it needs the key, and the service must accept requests."""

    request: Message  # the class of its message
    answer: Callable[[Message, Call], Awaitable[bytes]]
    is_stream: bool = False  # whether its only answer is sent as a stream


class Method(NamedTuple):
    """Any other method with one message and one answer."""

    request: Message  # the class of its message
    response: Message  # the class of its answer
    answer: Callable[[Message, Context], Content | Message | Awaitable[Content | Message]]


Stream = Callable[[object, Context], Awaitable[None]]
"""A stream in both directions, which reads and writes by itself."""

Methods = Mapping[str, Inference | Method | Stream]
"""Name -> method."""


def not_supported(names: tuple[str, ...], instead: str) -> dict[str, Method]:
    """Returns methods that refuse every call and say what to do instead."""

    def refuse(_: Message, __: Context) -> Content:
        raise NotSupportedError(f"this method is not supported: {instead}")

    return dict.fromkeys(names, Method(Empty, Empty, refuse))


class Calls:
    """The calls of a web process: reads, counts and logs them, like RequestMiddleware for HTTP."""

    def __init__(self, pipeline: Pipeline, tracer: "Tracer | None" = None) -> None:
        self.pipeline = pipeline
        self._metrics = pipeline.service.metrics
        self._reader = MessageReadLimiter(pipeline.service.settings)
        self._tracer = tracer

    def handler(self, path: str, method: Inference | Method | Stream) -> Any:
        """Returns gRPC's handler for a method; its message is a stream, so we decide when to read."""
        if not isinstance(method, Inference | Method):
            return grpc.stream_stream_rpc_method_handler(method, response_serializer=serialise)

        async def call(_: object, context: Context) -> Message:
            response = None
            with self.record(path, context) as request_context:
                further: Any = context
                if isinstance(method, Inference):
                    further = self.admit(context, request_context)
                # no variable may hold the message: gRPC keeps an aborted call's frame until the next
                # garbage collection
                response = method.answer(
                    await self.parse(method.request, await self._reader.read(context.read)), further
                )
                if isawaitable(response):
                    response = await response
                if (answer := request_context.answer) and answer.size:  # counts until it has been sent
                    request_context.answer = None
                    context.add_done_callback(answer.__exit__)
            await abort(context, request_context)
            if isinstance(method, Method) and isinstance(response, dict):
                return ParseDict(response, method.response())
            return response

        async def stream(_: object, context: Context) -> None:
            await context.write(await call(_, context))

        if isinstance(method, Inference) and method.is_stream:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=serialise)
        return grpc.stream_unary_rpc_method_handler(call, response_serializer=serialise)

    async def parse(self, kind: Message, data: bytes) -> Message:
        """Parses a message of class `kind`, a large one on a thread. Raises InvalidRequestError."""
        if len(data) <= SMALL:
            return parse(kind, data)
        return await self.pipeline.service.threads.run(partial(parse, kind, data), bulk=False)

    def admit(self, context: Context, request_context: RequestContext) -> Call:
        """Admits a call by its metadata. Raises what `Pipeline.admit` raises."""
        options = self.pipeline.admit(metadata(context))
        return Call(self.pipeline, context, request_context, options)

    @contextmanager
    def record(self, path: str, context: Context) -> Iterator[RequestContext]:
        """Records the block as one request; an exception raised in it becomes the request's error."""
        request_context = own_context(path, context)
        try:
            yield request_context
            request_context.status = 200
        except Exception as caught:
            request_context.status = to_client_error(caught, request_context).status
        finally:
            self._end(request_context)

    async def fail(self, path: str, context: Context, caught: Exception) -> None:
        """Records and aborts a call that failed outside of any request."""
        request_context = own_context(path, context)
        request_context.status = to_client_error(caught, request_context).status
        self._end(request_context)
        await abort(context, request_context)

    def _end(self, context: RequestContext) -> None:
        """Counts, traces and logs a request."""
        if self._tracer and not is_quiet(context.path):
            status, method = context.status or CLIENT_GONE, context.path[1:]
            code = CODES.get(status, grpc.StatusCode.INTERNAL).name
            about = {"rpc.system.name": "grpc", "rpc.method": method, "rpc.response.status_code": code}
            context.trace_id = self._tracer.record(context, method, about)
        record(self._metrics, context, context.path, timed=context.inference is not None)


def joined(encode: Callable[[C, Answer], Iterable[bytes]], call: C, answer: Answer) -> bytes:
    """Returns the parts of an encoded answer together."""
    return b"".join(encode(call, answer))


def serialise(message: Message) -> bytes:
    """Returns a message's bytes, its maps in the order of their keys; bytes are a message already."""
    if isinstance(message, bytes):
        return message
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def own_context(path: str, context: Context) -> RequestContext:
    """Returns a new request context, with the client's request id if it sent one."""
    metadata = dict(context.invocation_metadata() or ())
    return RequestContext(
        choose_id(str(metadata.get("x-request-id", "")).encode()),
        "gRPC",
        path,
        context.peer(),
        str(metadata.get("traceparent", "")),
    )


def metadata(context: Context) -> dict[str, Any]:
    """Returns a call's metadata, as text or bytes. Raises RequestError if a key occurs twice."""
    pairs = context.invocation_metadata() or ()
    check_keys([name.encode() for name, _ in pairs])
    return dict(pairs)


def authorization(context: Context) -> str:
    """Returns the `authorization` metadata, in the form of the HTTP header; '' if there is none."""
    value = metadata(context).get("authorization", "")
    return value if isinstance(value, str) else ""  # gRPC metadata may also be bytes


async def abort(context: Context, request_context: RequestContext) -> None:
    """Aborts the call with the status and detail of the request's error, if there is one."""
    if (error := request_context.error) is None:
        return
    code = CODES.get(error.status, grpc.StatusCode.INTERNAL)
    retry_after = error.headers.get("Retry-After")
    trailing = (("retry-after", retry_after),) if retry_after else ()
    await context.abort(code, error.detail[:MAX_DETAIL], trailing)

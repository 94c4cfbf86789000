"""Requests over plain TCP, for clients that need neither HTTP nor base64; enabled by `tcp_port`.

Numbers are big-endian and unsigned. A length counts the bytes after itself.

    request   uint32 length, uint32 id, uint16 length of the options (at most 1024), options, body
    response  uint32 length, uint32 id, uint16 HTTP status, JSON object

The options are a JSON object with any of the fields of `Options`, or empty. The body is what `/predict`
accepts with the content type in the options. Without one it is an image file, a text, or JSON if the
model needs several fields. A response has the id of its request, or
0 if the request's frame could not be parsed. Its JSON object is

    200       the answer of `/predict`, "request_id", and "ms": {"decode", "queue", "infer", "total"};
    an answer that is not an object, such as the list for several inputs, is in the field "answer"
    others    {"detail", "code", "request_id"} as in `/predict`; for 503 also "retry_after" in seconds

A connection carries any number of requests, and responses are sent as they become ready, in any order.
While 32 requests of a connection are unanswered, the service stops reading from it. If a client closes
its sending side, its requests are cancelled. After responding to a wrong key, to a frame that is too
large or too slow, or to inconsistent lengths, the service closes the connection. It also closes
connections that are idle for `tcp_idle_timeout_s`. If there are too many connections, a new one replaces
the one that has waited longest for its client. All web processes listen on the same port (SO_REUSEPORT).
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from smallplates.errors import (
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    ServingError,
    SlowBodyError,
    UnauthorizedError,
)
from smallplates.logging import logger
from smallplates.tasks.base import Task
from smallplates.web.api.dialect import native_content
from smallplates.web.api.fields import TOP_K, fields_from_body, inline_bytes
from smallplates.web.api.pipeline import Call, Pipeline, Target, call_of, parse_number
from smallplates.web.http.body import Body, decode_json, json_parts
from smallplates.web.http.protocol import Connections
from smallplates.web.http.request_context import RequestContext, choose_id, record, to_client_error
from smallplates.web.inference.served_model import Answer, RequestOptions, ServedModel
from smallplates.web.sockets import allow_reuse, bind

BACKLOG = 512
PATH = "tcp"  # in log and metrics
CHUNK_BYTES = 64 * 1024
LINGER_S = 2.0
MAX_UNANSWERED = 32
STOP_S = 5.0

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">IH")  # id, length of the options
FRAME = struct.Struct(">IIH")  # length, id, and the length of the options or the status
AFTER_LENGTH = HEAD.size
MAX_OPTIONS_BYTES = 1024
Reply = Callable[[], Awaitable[bytes]]
"""Returns a response frame. Raises ServingError."""


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a request; they mean the same as in `/predict`."""

    model: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Name; empty means the default model."""

    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    priority: Literal["interactive", "bulk"] = "interactive"
    request_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    content_type: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """Content type of the body, as in HTTP."""

    key: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    """The API key; needed only in the first frame of a connection."""


DECODER = msgspec.json.Decoder(Options)


class BrokenFrameError(InvalidRequestError):
    """The lengths in a frame are inconsistent, so the next frame cannot be located."""


FATAL = (BrokenFrameError, PayloadTooLargeError, SlowBodyError, UnauthorizedError)
CLIENT_LEFT = (OSError, EOFError)


def size_of_body(length: int, options_bytes: int = 0) -> int:
    """Returns how many bytes follow the options of a frame. Raises BrokenFrameError."""
    size = length - AFTER_LENGTH - options_bytes
    if size < 0:
        text = f"a length of {length} with {options_bytes} bytes of options"
        raise BrokenFrameError(f"the frame cannot be read: {text}")
    return size


def response(number: int, status: int, content: dict[str, Any]) -> bytes:
    """Returns a response frame; `number` is the request's id."""
    text = [*json_parts(content)]
    return b"".join((FRAME.pack(AFTER_LENGTH + sum(map(len, text)), number, status), *text))


def error_content(error: ServingError, context: RequestContext) -> dict[str, Any]:
    """Returns the JSON object of a response that reports an error."""
    content = native_content(error, context)
    if "Retry-After" in error.headers:
        content["retry_after"] = int(error.headers["Retry-After"])
    return content


class TcpServer:
    """Serves requests over TCP."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.service = pipeline.service
        self.places = Connections(self.service.settings.tcp_max_connections)
        self._connections: dict[asyncio.Task[None], Connection] = {}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Listens until the block ends, then answers received requests. Raises ConfigurationError."""
        if self.service.settings.tcp_port is None:
            yield
            return
        listener = bind(self.service.settings, "tcp_port", self.service.registry.shares_ports)
        allow_reuse(listener)
        host, port = listener.getsockname()[:2]
        server = await asyncio.start_server(
            self._on_connection, sock=listener, backlog=BACKLOG, limit=CHUNK_BYTES
        )
        logger().info("listening", host=host, port=port, protocol="tcp")
        try:
            yield
        finally:
            server.close()
            for connection in self._connections.values():
                connection.finish()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):  # then cancels the remaining connections
                    await asyncio.gather(*self._connections, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.places.add():
            error = OverloadedError("too many connections")
            content = error_content(error, RequestContext(choose_id(None)))
            writer.write(response(0, error.status, content))
            writer.close()
            self.service.metrics.requests.labels(PATH, str(error.status), error.code, "").inc()
            return
        connection = Connection(self, reader, writer)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self.places.remove()
        self._connections.pop(task).mark_busy()


@dataclass
class Frame:
    """A request frame."""

    context: RequestContext
    number: int = 0  # id; 0 until it is known
    unread: int = 0  # bytes of the body that have not been read


class Connection:
    """Serves one client: one coroutine reads its frames, and a task answers each."""

    def __init__(
        self, server: TcpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pipeline = server.pipeline
        self._mark_idle = partial(server.places.mark_idle, writer.transport)
        self.mark_busy = partial(server.places.mark_busy, writer.transport)
        self._settings = server.service.settings
        self._reader = reader
        self._writer = writer
        self._client = (writer.get_extra_info("peername") or ("",))[0]
        self._timeout_s = self._settings.body_timeout_ms / 1000
        self._is_trusted = False
        self._tasks = asyncio.TaskGroup()
        self._reading: asyncio.Task[None] | None = None
        self._arriving = False  # whether an admitted request's body is arriving
        self._finishing = False
        self._unanswered = 0
        self._free = asyncio.Semaphore(MAX_UNANSWERED)
        self._mark_idle()

    async def run(self) -> None:
        """Serves until the client disconnects, is idle or causes a fatal error, or until `finish`."""
        try:
            async with self._tasks:
                self._reading = self._tasks.create_task(self._read_frames())
            if not self._writer.is_closing():
                self._writer.write_eof()
                async with asyncio.timeout(LINGER_S):  # closing with unread bytes could lose responses
                    while await self._reader.read(CHUNK_BYTES):
                        pass
        except* CLIENT_LEFT:
            pass  # the group has cancelled the client's pending requests
        finally:
            self._writer.close()

    def finish(self) -> None:
        """Reads no further frame; `run` ends when the admitted requests have been answered."""
        self._finishing = True
        if self._reading is not None and not self._reading.done() and not self._arriving:
            self._reading.cancel()
            if not self._unanswered:
                self._writer.close()

    async def _read_frames(self) -> None:
        """Reads frames until the client is idle or causes a fatal error, or until `finish`.

        Raises CLIENT_LEFT, which cancels the connection's requests.
        """
        goes_on = True
        while goes_on and not self._finishing:
            await self._free.acquire()
            if not (first := await self._first_byte()):
                return
            self._unanswered += 1
            frame = Frame(RequestContext(choose_id(None), "TCP", PATH, self._client))
            with ExitStack() as held:  # until the frame has been answered
                held.callback(self._end, frame)
                try:
                    answer = await self._receive(first, frame, held)
                except CLIENT_LEFT:
                    raise
                except Exception as error:
                    goes_on = not isinstance(error, FATAL) and await self._skip(frame)
                    answer = partial(self._refuse, error)
                self.mark_busy()
                task = self._tasks.create_task(self._respond(frame, answer))
                task.add_done_callback(partial(close, held.pop_all()))
                self._arriving = False

    def _end(self, frame: Frame) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._mark_idle()
        self._free.release()
        record(self._pipeline.service.metrics, frame.context, PATH, timed=True)

    async def _first_byte(self) -> bytes:
        """Waits for the next frame; returns b"" if the connection has been idle for too long."""
        while True:
            try:
                async with asyncio.timeout(self._settings.tcp_idle_timeout_s):
                    return await self._reader.readexactly(1)
            except TimeoutError:
                if not self._unanswered or self._reader.exception():
                    return b""

    async def _receive(self, first: bytes, frame: Frame, held: ExitStack) -> Reply:
        """Reads a frame and admits its request; returns what answers it. Raises ServingError.

        `held` gets what the answer needs: the model and the body.
        """
        (length,) = LENGTH.unpack(first + await self._read(LENGTH.size - 1, "frame"))
        size_of_body(length)  # refuses a length that is too short before anything follows it
        number, options_bytes = HEAD.unpack(await self._read(HEAD.size, "frame"))
        frame.unread, frame.number = size_of_body(length, options_bytes), number
        if options_bytes > MAX_OPTIONS_BYTES:
            raise PayloadTooLargeError(f"the options have more than {MAX_OPTIONS_BYTES} bytes")
        self._pipeline.reader.check_size(frame.unread)
        text = await self._read(options_bytes, "options") or b"{}"
        options: Options = decode_json(DECODER, text, "options object")
        frame.context.request_id = choose_id(options.request_id.encode("utf-8", "replace"))
        self._check_key(options)
        service = self._pipeline.service
        model = service.model(options.model or service.default)
        most = inline_bytes(model.task, options.content_type)
        target = Target(model, partial(decode, model, options), inline_bytes=most)
        limits = self._limits(options, model.task)
        service.check_accepting()
        held.enter_context(self._pipeline.reserve(frame.context, limits, model))
        body = held.enter_context(Body(self._pipeline.reader))
        self._arriving = True
        await body.receive(self._chunks(frame))
        return partial(self._predict, frame, limits, target, body)

    async def _predict(
        self, frame: Frame, limits: RequestOptions, target: Target[Call], body: Body
    ) -> bytes:
        """Returns the frame of a model's answer; a thread makes a large one. Raises ServingError."""
        call, answer = await self._pipeline.answer(frame.context, limits, target, body)
        is_large, work = answer.is_large, partial(encode, frame, call, answer)
        del call, answer
        if not is_large:
            return work()
        running = self._pipeline.service.threads.run(work, limits.bulk)
        del work  # so that the thread frees the answer
        return await running

    async def _refuse(self, error: Exception) -> bytes:
        raise error

    async def _respond(self, frame: Frame, answer: Reply) -> None:
        """Sends a frame's answer, or its error. Raises CLIENT_LEFT."""
        try:
            status, content = 200, await answer()
        except Exception as error:
            problem = to_client_error(error, frame.context)
            status = problem.status
            content = response(frame.number, status, error_content(problem, frame.context))
        await self._send(content)
        frame.context.status = status

    def _check_key(self, options: Options) -> None:
        """Raises UnauthorizedError unless a frame of this connection has contained the key."""
        key = self._pipeline.check_key
        self._is_trusted |= key.matches((options.key or "").encode())
        if not self._is_trusted:
            raise UnauthorizedError("a valid API key is needed: `key` in the first frame's options")

    def _limits(self, options: Options, task: Task) -> RequestOptions:
        """Returns the time limit and the priority. Raises InvalidRequestError."""
        parse_number(str(options.top_k or 1), TOP_K, task.most_candidates)
        most_ms = self._settings.request_timeout_ms
        return RequestOptions(min(options.timeout_ms or most_ms, most_ms), options.priority == "bulk")

    async def _read(self, size: int, part: str) -> bytes:
        """Raises SlowBodyError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reader.readexactly(size)
        except TimeoutError as error:
            raise SlowBodyError(f"the {part} did not arrive in time") from error

    async def _chunks(self, frame: Frame) -> AsyncIterator[bytes]:
        while frame.unread:
            chunk = await self._reader.read(min(frame.unread, CHUNK_BYTES))
            if not chunk:
                raise EOFError
            frame.unread -= len(chunk)
            yield chunk

    async def _skip(self, frame: Frame) -> bool:
        """Skips the rest of a refused frame; returns False if it does not arrive in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                async for _ in self._chunks(frame):
                    pass
                return True
        return False

    async def _send(self, response: bytes) -> None:
        """Sends a response. Raises CLIENT_LEFT, also if the client does not read its responses."""
        if self._writer.is_closing():
            raise ConnectionResetError  # with uvloop, `write` would raise RuntimeError
        self._writer.write(response)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise


def decode(model: ServedModel, options: Options, content: bytes) -> Call:
    """Returns the call for a body. Raises RequestError."""
    fields = fields_from_body(model.task, content, options.content_type)
    return call_of(model, fields, len(content), options.top_k)


def encode(frame: Frame, call: Call, answer: Answer) -> bytes:
    """Returns the response frame of a model's answer."""
    content, context = call.one_or_all(call.answers(answer)), frame.context
    further = {"request_id": context.request_id, "ms": context.milliseconds}
    content = content if isinstance(content, dict) else {"answer": content}
    return response(frame.number, 200, {**content, **further})


def close(held: ExitStack, _: asyncio.Task[None]) -> None:
    """Frees what a request has held; called when its task has ended, or was cancelled at its start."""
    held.close()

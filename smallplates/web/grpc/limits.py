"""Limits for clients of the gRPC port: connections, streams, and how messages arrive.

gRPC limits neither the time for a message to arrive nor the total memory of unfinished messages. So
`Calls` reads each message through `MessageReadLimiter`; an unread message buffers at most one
flow-control window. `check_fields` limits the memory that a message takes once it is parsed.

gRPC cannot tell an idle stream from one with a message that never ends, and either may hold a whole
message in memory. So the number of streams is limited, and the stream that has been idle longest makes
room for a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from smallplates.errors import InvalidRequestError, OverloadedError, SlowBodyError
from smallplates.settings import Settings

STREAMS = 256  # concurrent HTTP/2 streams per connection
CALLS = 1024  # concurrent calls over all connections
MAX_METADATA = 16 * 1024
MIN_MESSAGES_AT_ONCE = 4
PATIENCE_S = 1.0
MAX_UNANSWERED = 16  # requests of a stream; further ones wait at the client
IDLE_S = 600.0
MAKE_ROOM = 0.0  # a time limit that has passed

SMALL = 64 * 1024  # bytes; once parsed, such a message takes a few megabytes at most
MAX_FIELDS = 16 * 1024  # a request has one for each image, and a few more
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)  # protobuf's wire types
FIXED_BYTES = {FIXED64: 8, FIXED32: 4, GROUP: 0, GROUP_END: 0}
MAX_VARINT_BYTES = 10
Message = Any  # protobuf creates its classes at run time
Context = Any  # grpc.aio.ServicerContext, which is untyped
Method = Callable[[bytes], Coroutine[Any, Any, Message]]


def options(settings: Settings, shares_port: bool) -> list[tuple[str, int]]:
    """Returns the options for grpc.aio.Server."""
    return [
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_allowed_incoming_connections", settings.grpc_max_connections),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.max_metadata_size", MAX_METADATA),
        ("grpc.server_handshake_timeout_ms", settings.head_timeout_ms),
        ("grpc.http2.settings_timeout", settings.head_timeout_ms),
        ("grpc.http2.bdp_probe", 0),  # would let windows grow to megabytes
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.max_connection_age_grace_ms", 60_000),
        ("grpc.keepalive_time_ms", 60_000),  # finds clients that have vanished
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # more frequent pings count as strikes
        ("grpc.http2.max_ping_strikes", 2),
    ]


def messages_at_once(settings: Settings) -> int:
    """Returns how many messages may arrive at a time so that all fit into `max_buffered_bytes`."""
    return max(MIN_MESSAGES_AT_ONCE, settings.max_buffered_bytes // settings.max_body_bytes)


def reschedule(limit: asyncio.Timeout, when: float | None) -> None:
    """Moves a time limit to `when`, a time of the event loop, unless the limit has passed."""
    end = limit.when()
    if end is None or end > asyncio.get_running_loop().time():
        limit.reschedule(when)


class MessageReadLimiter:
    """Reads the single message of each call, a few at a time: a semaphore that can revoke its places.

    While calls wait for a place, each call that is reading gets only `patience_s` from the start of its
    read, and the newest call gets the next place. So a flood of unfinished messages cannot lock others
    out.
    """

    def __init__(self, settings: Settings) -> None:
        self.timeout_s = settings.body_timeout_ms / 1000
        self.patience_s = min(PATIENCE_S, self.timeout_s / 4)
        self._free = messages_at_once(settings)
        self._waiting: list[asyncio.Event] = []
        self._patient: dict[asyncio.Timeout, float] = {}
        """Time limits of reading calls that have not been hurried yet -> end of their patience."""

    async def read(self, read: Callable[[], Awaitable[object]]) -> bytes:
        """Returns the call's message. Raises SlowBodyError, or InvalidRequestError without a message."""
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                await self._acquire()
                try:
                    self._patient[limit] = asyncio.get_running_loop().time() + self.patience_s
                    if self._waiting:
                        self._hurry()
                    message = await read()
                finally:
                    self._patient.pop(limit, None)
                    self._release()
        except TimeoutError as error:
            raise SlowBodyError("the message did not arrive in time") from error
        if not isinstance(message, bytes):
            assert message is grpc.aio.EOF  # noqa: S101 the only other possibility
            raise InvalidRequestError("the call has no message")
        return message

    async def _acquire(self) -> None:
        if self._free:
            self._free -= 1
            return
        place = asyncio.Event()
        self._waiting.append(place)
        self._hurry()
        try:
            await place.wait()
        except asyncio.CancelledError:
            if place.is_set():  # it got the place at the same moment
                self._release()
            else:
                self._waiting.remove(place)
            raise

    def _release(self) -> None:
        if self._waiting:
            self._waiting.pop().set()
        else:
            self._free += 1

    def _hurry(self) -> None:
        for limit, end in self._patient.items():
            reschedule(limit, min(end, limit.when() or end))
        self._patient.clear()


class Streams:
    """The streams of a web process."""

    def __init__(self, settings: Settings) -> None:
        self.most = messages_at_once(settings)
        self.timeout_s = settings.body_timeout_ms / 1000
        self._open = 0
        self._idle: dict[asyncio.Timeout, None] = {}
        """Time limits of the streams without unanswered requests, longest idle first."""

    async def serve(self, context: Context, answer: Method) -> None:
        """Reads requests until the client has sent the last one, and writes the answer to each.

        Raises OverloadedError, also if the stream has to make room for another one, or SlowBodyError if
        it is idle for too long, or if its client does not read.
        """
        if self._open >= self.most:
            self._close_longest_idle()
        self._open += 1
        limit = asyncio.timeout(None)
        try:
            async with limit:
                await self._run(limit, context, answer)
        except TimeoutError as error:
            if limit.when() == MAKE_ROOM:
                raise OverloadedError("another stream needs the place of this idle one") from error
            raise SlowBodyError("the stream was idle for too long") from error
        finally:
            self._idle.pop(limit, None)
            self._open -= 1

    def _close_longest_idle(self) -> None:
        limit = next(iter(self._idle), None)
        if limit is None:
            raise OverloadedError("too many streams are open")
        del self._idle[limit]
        reschedule(limit, MAKE_ROOM)

    async def _run(self, limit: asyncio.Timeout, context: Context, answer: Method) -> None:
        """Computes requests concurrently, and writes the answers in order."""
        # two tasks are outside of the queue: one is awaited, one waits for space
        answers: asyncio.Queue[asyncio.Task[Message] | None] = asyncio.Queue(MAX_UNANSWERED - 2)
        unanswered = 0

        async def read() -> None:
            nonlocal unanswered
            while isinstance(message := await context.read(), bytes):
                unanswered += 1
                self._idle.pop(limit, None)
                reschedule(limit, None)
                await answers.put(group.create_task(answer(message)))
            await answers.put(None)

        self._set_idle(limit)
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            while (task := await answers.get()) is not None:
                response = await task
                reschedule(limit, asyncio.get_running_loop().time() + self.timeout_s)
                try:
                    await context.write(response)
                except grpc.aio.InternalError as error:  # the client has gone; gRPC will cancel this
                    raise asyncio.CancelledError from error
                reschedule(limit, None)
                unanswered -= 1
                if not unanswered:
                    self._set_idle(limit)

    def _set_idle(self, limit: asyncio.Timeout) -> None:
        """Lets the stream with this limit be idle for IDLE_S, or until another one needs its place."""
        self._idle[limit] = None
        reschedule(limit, asyncio.get_running_loop().time() + IDLE_S)


def parse(kind: Message, data: bytes) -> Message:
    """Parses a message of class `kind`. Raises InvalidRequestError."""
    try:
        if len(data) > SMALL:
            check_fields(data, kind.DESCRIPTOR)
        return kind.FromString(data)
    except (DecodeError, LookupError) as error:
        raise InvalidRequestError("the message cannot be read") from error


def check_fields(data: bytes, descriptor: Any) -> None:
    """Raises InvalidRequestError if a message and those nested in it have too many fields.

    An empty input takes 2 bytes, but 90 once it is parsed. Packed numbers count as one field;
    the protocol says how much memory they take. Raises LookupError for a message that
    cannot be read.
    """
    left = [(memoryview(data), descriptor)]
    count = 0
    while left:
        part, descriptor = left.pop()
        for number, content in fields(part):
            field = descriptor.fields_by_number.get(number)
            count += 1
            if count > MAX_FIELDS:
                raise InvalidRequestError(f"the message has more than {MAX_FIELDS} fields")
            if content and field is not None and field.message_type is not None:
                left.append((content, field.message_type))


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yields each field's number, and its content if it has a length prefix. Raises LookupError."""
    end = 0
    while end < len(data):
        tag, start = varint(data, end)
        wire_type, size = tag & 7, 0
        if wire_type == VARINT:
            _, start = varint(data, start)
        elif wire_type == BYTES:
            size, start = varint(data, start)
        else:
            size = FIXED_BYTES[wire_type]
        end = start + size
        yield tag >> 3, data[start:end] if wire_type == BYTES else None


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Returns a number of up to 64 bits and the position after it. Raises LookupError."""
    value = 0
    for index in range(MAX_VARINT_BYTES):
        byte = data[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise LookupError("the number has too many bytes")

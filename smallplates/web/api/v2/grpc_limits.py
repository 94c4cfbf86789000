"""Limits for clients of the gRPC port: connections, streams, and how messages arrive.

gRPC limits neither the time for a message to arrive nor the total memory of unfinished messages. So
`grpc.py` reads each message through `MessageReadLimiter`; an unread message buffers at most one
flow-control window. `check_fields` limits the memory that a message takes once it is parsed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc

from smallplates.errors import InvalidRequestError, SlowBodyError
from smallplates.settings import Settings

STREAMS = 256  # concurrent HTTP/2 streams per connection
CALLS = 1024  # concurrent calls over all connections
MAX_METADATA = 16 * 1024
MIN_MESSAGES_AT_ONCE = 4
PATIENCE_S = 1.0

MAX_FIELDS = 16 * 1024  # a request has one for each image, and a few more
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)  # protobuf's wire types
FIXED_BYTES = {FIXED64: 8, FIXED32: 4, GROUP: 0, GROUP_END: 0}
MAX_VARINT_BYTES = 10
Descriptor = Any  # protobuf's, which is untyped


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
    """Moves a time limit to `when`, a time of the event loop, unless the limit has expired."""
    if not limit.expired():
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


def check_fields(data: bytes, descriptor: Descriptor) -> None:
    """Raises InvalidRequestError if a message and those nested in it have too many fields.

    Packed numbers count as one field; `grpc_messages.typed_bytes` says how much memory they take.
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
            if content is not None and field is not None and field.message_type is not None:
                left.append((content, field.message_type))


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yields the number of each field, and its content if it has a length prefix, else None.

    Raises InvalidRequestError.
    """
    position = 0
    while position < len(data):
        tag, position = varint(data, position)
        wire_type, content = tag & 7, None
        if wire_type == VARINT:
            _, position = varint(data, position)
        elif wire_type == BYTES:
            size, position = varint(data, position)
            content = data[position : position + size]
            position += size
        elif wire_type in FIXED_BYTES:
            position += FIXED_BYTES[wire_type]
        else:
            raise InvalidRequestError("the message cannot be read")
        yield tag >> 3, content


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Returns a number of up to 64 bits and the position after it. Raises InvalidRequestError."""
    value = 0
    for index, byte in enumerate(data[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise InvalidRequestError("the message cannot be read")

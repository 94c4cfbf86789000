"""What bounds the clients of the gRPC port: connections, streams, messages that are slow or never end.

gRPC itself bounds how long a connection may be idle, but neither the time that one message takes nor
what all unfinished ones hold in memory. So `grpc.py` reads messages by `MessageReadLimiter`. An unread
message buffers at most one flow-control window.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor

from serving.errors import InvalidRequestError, SlowBodyError
from serving.settings import Settings

STREAMS = 256  # at the same time, on one connection
CALLS = 1024  # at the same time, on all connections
MAX_METADATA = 16 * 1024
FEWEST_ARRIVING = 4
PATIENCE_S = 1.0  # or a quarter of the time that a message has, where that is less


MAX_FIELDS = 16 * 1024  # a request has one for each photo, and a few more
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)  # protobuf's wire types
FIXED = {FIXED64: 8, FIXED32: 4, GROUP: 0, GROUP_END: 0}
MAX_VARINT_BYTES = 10
WHOLE_NUMBERS = {  # packed, one by one in a byte or more; of a shape, for one
    FieldDescriptor.CPPTYPE_BOOL,
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}
Descriptor = Any  # protobuf's, which has no types


def options(settings: Settings) -> list[tuple[str, int]]:
    """Of a grpc.aio.Server."""
    return [
        ("grpc.so_reuseport", int(settings.shares_ports)),
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_allowed_incoming_connections", settings.grpc_max_connections),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.max_metadata_size", MAX_METADATA),
        ("grpc.server_handshake_timeout_ms", settings.head_timeout_ms),
        ("grpc.http2.settings_timeout", settings.head_timeout_ms),
        ("grpc.http2.bdp_probe", 0),  # it lets windows grow to megabytes
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.max_connection_age_grace_ms", 60_000),
        ("grpc.keepalive_time_ms", 60_000),  # finds clients that have vanished
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # of clients; more often is a strike
        ("grpc.http2.max_ping_strikes", 2),
    ]


def messages_at_once(settings: Settings) -> int:
    """How many may be arriving, so that together they fit into what all bodies may hold."""
    return max(FEWEST_ARRIVING, settings.max_buffered_bytes // settings.max_body_bytes)


class MessageReadLimiter:
    """Reads the one message of each call, few at a time, so that they hold a bounded number of bytes.

    Where all places are taken, nobody keeps one for longer than `patience_s`, and the newest call gets
    the next: a flood of messages that never end does not keep others out.
    """

    def __init__(self, settings: Settings) -> None:
        self.timeout_s = settings.body_timeout_ms / 1000
        self.patience_s = min(PATIENCE_S, self.timeout_s / 4)
        self._free = messages_at_once(settings)
        self._waiting: list[asyncio.Future[None]] = []
        self._arriving: dict[asyncio.Timeout, float] = {}
        """When each began; without those that must hurry already."""

    async def read(self, read: Callable[[], Awaitable[object]]) -> bytes:
        """The message that `read` brings. Raises SlowBodyError, InvalidRequestError where none comes."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                await self._enter()
                try:
                    self._arriving[limit] = loop.time()
                    if self._waiting:
                        self._hurry()
                    message = await read()
                finally:
                    self._arriving.pop(limit, None)
                    self._leave()
        except TimeoutError as error:
            raise SlowBodyError("the message did not arrive in time") from error
        if not isinstance(message, bytes):
            assert message is grpc.aio.EOF  # noqa: S101 there is nothing else
            raise InvalidRequestError("the call has no message")
        return message

    async def _enter(self) -> None:
        if self._free:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._hurry()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # the place was handed over in the same moment
                self._leave()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def _leave(self) -> None:
        """Hands the place to the newest that waits."""
        while self._waiting:
            place = self._waiting.pop()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def _hurry(self) -> None:
        """Somebody waits: nobody has more than `patience_s` any more."""
        now = asyncio.get_running_loop().time()
        for limit, since in self._arriving.items():
            if not limit.expired():
                limit.reschedule(max(now, min(limit.when() or now, since + self.patience_s)))
        self._arriving.clear()


def check_fields(data: bytes, kind: Descriptor) -> None:
    """Those of a message of this kind and of all messages in it. Raises InvalidRequestError."""
    left = [(memoryview(data), kind)]
    count = 0
    while left:
        part, kind = left.pop()
        for number, content in fields(part):
            known = kind.fields_by_number.get(number)
            whole = known is not None and known.cpp_type in WHOLE_NUMBERS
            count += len(content) if whole and content is not None else 1
            if count > MAX_FIELDS:
                raise InvalidRequestError(f"the message has more than {MAX_FIELDS} fields")
            if content is not None and known is not None and known.message_type is not None:
                left.append((content, known.message_type))


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """The number of each field, and its bytes where it has a length. Raises InvalidRequestError."""
    place = 0
    while place < len(data):
        tag, place = varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, place = varint(data, place)
            yield number, None
        elif wire == BYTES:
            size, place = varint(data, place)
            yield number, data[place : place + size]
            place += size
        elif wire in FIXED:
            place += FIXED[wire]
            yield number, None
        else:
            raise InvalidRequestError("the message cannot be read")


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends. Raises InvalidRequestError."""
    value = 0
    for shift, byte in enumerate(data[place : place + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise InvalidRequestError("the message cannot be read")

"""What bounds the clients of the gRPC port: connections, streams, messages that are slow or never end.

gRPC itself bounds how long a connection may be idle, but neither the time that one message takes nor
what all unfinished ones hold in memory. So `v2_grpc.py` reads messages by `Arrivals`; of a message that
nobody reads yet, no more arrives than its stream's window.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from serving.errors import InvalidRequestError, SlowBodyError
from serving.settings import Settings

STREAMS = 256  # at the same time, on one connection
CALLS = 1024  # at the same time, on all connections
MAX_METADATA = 16 * 1024
FEWEST_ARRIVING = 4
PATIENCE_S = 1.0  # or a quarter of the time that a message has, where that is less


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


class Arrivals:
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

"""`ModelStreamInfer`: many requests on one call, answered in their order; `v2_grpc.py` answers each.

gRPC does not tell a stream that is idle from one whose message never ends, and either may hold a whole
message in memory. So streams are few, and the one that has been idle longest makes room for a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from serving.errors import OverloadedError, SlowBodyError
from serving.protocols.v2.grpc_limits import messages_at_once
from serving.settings import Settings

UNDER_WAY = 16  # requests of one stream; those behind them wait at the client
IDLE_S = 600.0
Message = Any  # protobuf's classes are made at run time
Context = Any  # grpc.aio.ServicerContext, which has no types
Ask = Callable[[bytes], Awaitable[Message]]


class Streams:
    """All streams of a web process."""

    def __init__(self, settings: Settings) -> None:
        self.most = messages_at_once(settings)
        self.timeout_s = settings.body_timeout_ms / 1000
        self._open = 0
        self._idle: dict[asyncio.Timeout, None] = {}
        """The time limits of those that have nothing under way, the longest idle first."""

    async def serve(self, context: Context, ask: Ask) -> None:
        """Reads until the client has sent its last request, and writes what `ask` makes of each.

        Raises OverloadedError, or SlowBodyError where the client neither sends nor reads.
        """
        if self._open >= self.most and not self._make_room():
            raise OverloadedError("too many streams are open already")
        self._open += 1
        try:
            async with asyncio.timeout(None) as limit:
                try:
                    await Stream(self, limit, context, ask).run()
                finally:
                    self.busy(limit)
        except TimeoutError as error:
            raise SlowBodyError(
                "the stream was idle for too long, or another needs its place"
            ) from error
        finally:
            self._open -= 1

    def idle(self, limit: asyncio.Timeout) -> None:
        """The stream with this limit waits for its client's next request."""
        self._idle[limit] = None
        self.allow(limit, IDLE_S)

    def busy(self, limit: asyncio.Timeout) -> None:
        """It has one."""
        self._idle.pop(limit, None)
        self.allow(limit, None)

    def allow(self, limit: asyncio.Timeout, seconds: float | None) -> None:
        """From now on, unless its time is over already."""
        if not limit.expired():
            now = asyncio.get_running_loop().time()
            limit.reschedule(None if seconds is None else now + seconds)

    def _make_room(self) -> bool:
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        self.allow(oldest, 0)
        return True


class Stream:
    """One call; requests are answered at the same time, and the answers written one after the other."""

    def __init__(self, all_streams: Streams, limit: asyncio.Timeout, context: Context, ask: Ask) -> None:
        self._all = all_streams
        self._limit = limit
        self._context = context
        self._ask = ask
        self._asked: asyncio.Queue[asyncio.Task[Message] | None] = asyncio.Queue(UNDER_WAY - 2)
        self._under_way = 0

    async def run(self) -> None:
        """Until the client's last request is answered."""
        self._all.idle(self._limit)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(group))
            while (answer := await self._asked.get()) is not None:
                await self._write(await answer)

    async def _read(self, group: asyncio.TaskGroup) -> None:
        while isinstance(message := await self._context.read(), bytes):
            self._under_way += 1
            self._all.busy(self._limit)
            await self._asked.put(group.create_task(self._answer(message)))
        await self._asked.put(None)

    async def _answer(self, message: bytes) -> Message:
        return await self._ask(message)

    async def _write(self, answer: Message) -> None:
        self._all.allow(self._limit, self._all.timeout_s)
        await self._context.write(answer)
        self._all.allow(self._limit, None)
        self._under_way -= 1
        if not self._under_way:
            self._all.idle(self._limit)

"""`ModelStreamInfer`: many requests in one call, answered in order.

gRPC cannot tell an idle stream from one with a message that never ends, and either may hold a whole
message in memory. So the number of streams is limited, and the stream that has been idle longest makes
room for a new one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from smallplates.errors import OverloadedError, SlowBodyError
from smallplates.settings import Settings
from smallplates.web.api.v2.grpc_limits import messages_at_once, reschedule

MAX_UNANSWERED = 16  # per stream; further requests wait at the client
IDLE_S = 600.0
Message = Any  # protobuf creates its classes at run time
Context = Any  # grpc.aio.ServicerContext, which is untyped
Answer = Callable[[bytes], Coroutine[Any, Any, Message]]


class Streams:
    """The streams of a web process."""

    def __init__(self, settings: Settings) -> None:
        self.most = messages_at_once(settings)
        self.timeout_s = settings.body_timeout_ms / 1000
        self._open = 0
        self._idle: dict[asyncio.Timeout, None] = {}
        """Time limits of the streams without unanswered requests, longest idle first."""

    async def serve(self, context: Context, answer: Answer) -> None:
        """Reads requests until the client has sent the last one, and writes the answer to each.

        Raises OverloadedError, or SlowBodyError if the stream is idle for too long, has to make room for
        another stream, or if its client does not read.
        """
        if self._open >= self.most:
            self._close_longest_idle()
        self._open += 1
        limit = asyncio.timeout(None)
        try:
            async with limit:
                await self._run(limit, context, answer)
        except TimeoutError as error:
            text = "the stream was idle for too long, or another stream needs its place"
            raise SlowBodyError(text) from error
        finally:
            self._idle.pop(limit, None)
            self._open -= 1

    def _close_longest_idle(self) -> None:
        limit = next(iter(self._idle), None)
        if limit is None:
            raise OverloadedError("too many streams are open")
        del self._idle[limit]
        reschedule(limit, 0)

    async def _run(self, limit: asyncio.Timeout, context: Context, answer: Answer) -> None:
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
                await context.write(response)
                reschedule(limit, None)
                unanswered -= 1
                if not unanswered:
                    self._set_idle(limit)

    def _set_idle(self, limit: asyncio.Timeout) -> None:
        """Lets the stream with this limit be idle for IDLE_S, or until another one needs its place."""
        self._idle[limit] = None
        reschedule(limit, asyncio.get_running_loop().time() + IDLE_S)

"""The two ways to load a server: a closed loop of impatient clients, and an open loop that never waits.

Both send until they are stopped, and tell a `Windows` of every answer, which belongs to the window in
which it came.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import accumulate, cycle, islice, repeat

from benchmarks.http_client import LOST, Answer
from benchmarks.other_wires import Asks
from benchmarks.recorder import Recorder, put, stable

MOST_WAITING = 10_000  # requests of an open loop under way; a further one is not sent, and counted
RECONNECT_S = 0.05


class Arrivals(StrEnum):
    """When an open loop sends."""

    CONSTANT = "constant"
    POISSON = "poisson"


class Windows:
    """Closed recorders, and the one that is open now."""

    def __init__(self) -> None:
        self.done: list[Recorder] = []
        self.now = Recorder()
        self._began = time.perf_counter()

    def turn(self) -> None:
        """Closes the window."""
        now = time.perf_counter()
        self.now.seconds = now - self._began
        self.done.append(self.now)
        self.now, self._began = Recorder(), now


class ClosedLoop:
    """`concurrency` clients, each of which sends its next request when it has its answer."""

    def __init__(
        self, connections: Asks, requests: list[bytes], concurrency: int, total: int | None = None
    ) -> None:
        """`total`: how many requests are sent by all clients together; None: no end."""
        self.connections = connections
        self.requests = islice(cycle(requests), total)
        self.concurrency = concurrency

    async def run(self, windows: Windows) -> None:
        """Until all requests are answered, or it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(self._client(windows))

    async def _client(self, windows: Windows) -> None:
        for request in self.requests:  # which all clients share
            started = time.perf_counter()
            answer = await self.connections.ask(request)
            windows.now.add(answer, time.perf_counter() - started)
            if answer is LOST:
                await asyncio.sleep(RECONNECT_S)


class OpenLoop:
    """`rate` requests a second, whether or not answers come; a latency counts from when it was due.

    That a slow answer delays no later request, and that a late request is not forgiven its lateness,
    keeps the figures free of coordinated omission.
    """

    def __init__(
        self,
        connections: Asks,
        requests: list[bytes],
        rate: float,
        arrivals: Arrivals,
        seed: int = 0,
    ) -> None:
        self.connections = connections
        self.requests = cycle(requests)
        self.rate = rate
        self.arrivals = arrivals
        self.random = random.Random(seed)
        self.waiting: set[asyncio.Task[None]] = set()

    def due(self) -> Iterator[float]:
        """Seconds from the start, for ever."""
        if self.arrivals is Arrivals.CONSTANT:
            return accumulate(repeat(1 / self.rate), initial=0.0)
        gaps = iter(lambda: self.random.expovariate(self.rate), None)
        return accumulate(gaps, initial=0.0)

    async def run(self, windows: Windows) -> None:
        """Until it is cancelled; what is under way then is left in `waiting`."""
        started = time.perf_counter()
        for offset in self.due():
            due = started + offset
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            if len(self.waiting) >= MOST_WAITING:
                windows.now.statuses["not sent"] += 1
                await asyncio.sleep(0)
                continue
            put(windows.now.late, time.perf_counter() - due)
            task = asyncio.create_task(self._one(next(self.requests), due, windows))
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)

    async def _one(self, request: bytes, due: float, windows: Windows) -> None:
        answer: Answer = await self.connections.ask(request)
        windows.now.add(answer, time.perf_counter() - due)


async def one_window(loop: ClosedLoop) -> Recorder:
    """Runs a loop that has an end."""
    windows = Windows()
    await loop.run(windows)
    windows.turn()
    await loop.connections.close()
    return windows.done[0]


async def windows_of(
    loop: ClosedLoop | OpenLoop, warm_up_s: float, window_s: float, fewest: int, most: int
) -> tuple[list[Recorder], bool]:
    """Runs the loop for windows of `window_s` seconds, until three in a row agree or there are `most`.

    Returns the windows, without the warm-up, and whether the last three agree. What an open loop had
    under way at the end is waited for and counts, as long as it takes, in the last window's latencies.
    """
    windows = Windows()
    running = asyncio.create_task(loop.run(windows))
    try:
        await asyncio.sleep(warm_up_s)
        windows.turn()
        windows.done.clear()
        steady = False
        while len(windows.done) < most and not (steady and len(windows.done) >= fewest):
            await asyncio.wait({running}, timeout=window_s)
            if running.done():
                await running  # it never ends but by an error
            windows.turn()
            steady = stable(windows.done)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if isinstance(loop, OpenLoop) and loop.waiting:
        await asyncio.wait(loop.waiting, timeout=60)
        windows.done[-1].latency.add(windows.now.latency)
    await loop.connections.close()
    return windows.done, steady

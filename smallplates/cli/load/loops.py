"""Load loops: a closed loop of clients that wait for their answers, and an open loop that never waits.

Both send until they are stopped, and record each answer in the window of time in which it came.
"""

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, cycle, islice, repeat

from smallplates.cli.load.http_client import LOST
from smallplates.cli.load.other_wires import WireClient
from smallplates.cli.load.recorder import Recorder, are_stable, put

MAX_WAITING = 10_000  # requests of an open loop under way; a further one is not sent, and counted
RECONNECT_S = 0.05


@dataclass(frozen=True)
class Plan:
    """Length of the warm-up and of each window, in seconds, and the number of windows."""

    warm_up_s: float = 2.0
    window_s: float | None = 2.0  # None: until all requests are answered
    fewest: int = 3
    most: int = 10


class Arrivals(StrEnum):
    """Distribution of an open loop's requests over time."""

    CONSTANT = "constant"
    POISSON = "poisson"


class Windows:
    """Recorders of the finished windows, and the recorder of the current one."""

    def __init__(self) -> None:
        self.done: list[Recorder] = []
        self.now = Recorder()
        self._began = time.perf_counter()

    def turn(self) -> None:
        """Finishes the current window and starts the next one."""
        now = time.perf_counter()
        self.now.seconds = now - self._began
        self.done.append(self.now)
        self.now, self._began = Recorder(), now


class ClosedLoop:
    """Runs `concurrency` clients; each sends its next request when it has its answer."""

    def __init__(
        self, connections: WireClient, requests: list[bytes], concurrency: int, total: int | None = None
    ) -> None:
        """`total` is the number of requests of all clients together; None: unlimited."""
        self.connections = connections
        self.requests = islice(cycle(requests), total)
        self.concurrency = concurrency

    async def run(self, windows: Windows) -> None:
        """Runs until all requests are answered, or it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(self._client(windows))

    async def _client(self, windows: Windows) -> None:
        for request in self.requests:  # which all clients share
            start = time.perf_counter()
            answer = await self.connections.ask(request)
            windows.now.add(answer, time.perf_counter() - start)
            if answer is LOST:
                await asyncio.sleep(RECONNECT_S)


class OpenLoop:
    """Sends `rate` requests a second, whether or not answers come; latencies count from the due time.

    So a slow answer does not delay later requests, and a request's own delay counts. This avoids
    coordinated omission.
    """

    def __init__(
        self, connections: WireClient, requests: list[bytes], rate: float, arrivals: Arrivals
    ) -> None:
        self.connections = connections
        self.requests = cycle(requests)
        self.rate = rate
        self.arrivals = arrivals
        self.random = random.Random(0)
        self.waiting: set[asyncio.Task[None]] = set()

    def due(self) -> Iterator[float]:
        """Yields the due times in seconds from the start, without end."""
        gaps: Iterator[float] = repeat(1 / self.rate)
        if self.arrivals is Arrivals.POISSON:
            gaps = iter(lambda: self.random.expovariate(self.rate), None)
        return accumulate(gaps, initial=0.0)

    async def run(self, windows: Windows) -> None:
        """Sends until it is cancelled; `waiting` then holds the requests in flight."""
        start = time.perf_counter()
        for offset in self.due():
            due = start + offset
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            if len(self.waiting) >= MAX_WAITING:
                windows.now.statuses["not sent"] += 1
                await asyncio.sleep(0)
                continue
            put(windows.now.late, time.perf_counter() - due)
            task = asyncio.create_task(self._one(next(self.requests), due, windows))
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)

    async def _one(self, request: bytes, due: float, windows: Windows) -> None:
        windows.now.add(await self.connections.ask(request), time.perf_counter() - due)


async def run_windows(loop: ClosedLoop | OpenLoop, plan: Plan) -> tuple[list[Recorder], bool]:
    """Runs the loop, window by window, until three in a row agree or there are `plan.most`.

    Returns the windows, without the warm-up, and whether the last three agree. Requests that an open
    loop still has in flight at the end are awaited, for 60 s at most, and count in the last window's
    latencies.
    """
    gc.collect()
    gc.freeze()  # a collection of all modules' objects would stop a loop for up to 100 ms
    windows = Windows()
    load = asyncio.create_task(loop.run(windows))
    try:
        if plan.warm_up_s:
            await asyncio.sleep(plan.warm_up_s)
            windows.turn()
            windows.done.clear()
        steady = False
        while len(windows.done) < plan.most and not (steady and len(windows.done) >= plan.fewest):
            await asyncio.wait({load}, timeout=plan.window_s)
            if load.done():
                await load  # a loop without a fixed number of requests ends by an error only
            windows.turn()
            steady = are_stable(windows.done)
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    if isinstance(loop, OpenLoop) and loop.waiting:
        await asyncio.wait(loop.waiting, timeout=60)
        windows.done[-1].latency.add(windows.now.latency)
    await loop.connections.close()
    return windows.done, steady

"""An admitted request, from its body's arrival to its answer; created by `served_model.py`."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from smallplates.engine.client import EngineClient, ItemResult
from smallplates.engine.statistics import Timings
from smallplates.errors import DeadlineExceededError, OverloadedError
from smallplates.models.tensors import Item
from smallplates.web.metrics import ModelMetrics

FORGET_S = 10.0
FEWEST = 16  # inputs in a turn; one by one, a web process prepared 331 images a second instead of 528
SHARE = 0.7  # of an overloaded event loop's time for inputs; the rest is for refusals and answers


class Waits:
    """Estimates how long the next request of one priority will wait for a worker.

    This is the number of slots in use, times the wait of recent requests per slot in use before them. If
    no request has waited in the last ten seconds, it is unknown, and nothing is refused.
    """

    def __init__(self, max_wait_ms: int | None) -> None:
        self._most_ms = max_wait_ms or math.inf
        self._per_slot_s = 0.0
        self._measured_at = -math.inf

    def measure(self, ahead: int, waited_s: float, full: int) -> None:
        """Learns from a request; counts it less if fewer than `full` slots made its batch small."""
        now = time.monotonic()
        is_new = now - self._measured_at > FORGET_S
        weight = 1 if is_new else min(1, ahead / full) / 8
        self._per_slot_s += weight * (waited_s / ahead - self._per_slot_s)
        self._measured_at = now

    def check(self, ahead: int, timeout_ms: int) -> None:
        """Raises OverloadedError if the wait would exceed the request's time limit or the model's."""
        if time.monotonic() - self._measured_at <= FORGET_S:
            wait_ms = 1000 * ahead * self._per_slot_s
            if wait_ms > min(timeout_ms, self._most_ms):
                raise OverloadedError(
                    "the request would wait longer than its time limit or SERVING_MAX_WAIT_MS allows"
                )


class Turns:
    """Lets an event loop prepare inputs one after the other while it also has to refuse requests.

    Between two looks at the sockets it prepares as many as take `SHARE` of its time, at least `FEWEST`.
    Without turns, refusals wait for all inputs. On threads, an input takes half as much CPU time again.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, seconds: float) -> None:
        """Returns when it is the caller's turn; preparing an input takes about so many seconds."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._start, loop, seconds, time.perf_counter())
        await turn

    def _start(self, loop: asyncio.AbstractEventLoop, seconds: float, previous: float) -> None:
        now = time.perf_counter()
        count = max(FEWEST, int(SHARE * (now - previous) / seconds))
        for _ in range(min(count, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # else cancelled
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._start, loop, seconds, now)


@dataclass(eq=False)
class Admission:
    """Holds a request's slots and its time limit, and counts it; a context manager.

    It is not a generator and has its own timer: `asynccontextmanager` and `asyncio.timeout` would cost
    4 us per request.
    """

    _client: EngineClient
    _waits: Waits
    _metrics: ModelMetrics
    _timeout_ms: int
    _bulk: bool
    _signature: int  # before `begin` the one to count a failure for
    _submitted_at: float = 0.0
    _is_expired: bool = False

    async def __aenter__(self) -> Self:
        """Takes a slot; from now on the time limit counts. Raises OverloadedError."""
        self._ahead = self._client.ahead
        try:
            self._waits.check(self._ahead, self._timeout_ms)
            self.slots = self._client.acquire(self._bulk)
        except OverloadedError:
            self._client.statistics.count_failure(self._signature, 0)
            raise
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 a coroutine runs in a task
        self._task, self._cancelling = task, task.cancelling()
        self._timer = self._loop.call_later(self._timeout_ms / 1000, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Frees the slots. Raises DeadlineExceededError if the time limit has ended the block."""
        self._timer.cancel()
        self.slots.__exit__(kind, error, trace)
        is_own = self._is_expired and self._task.uncancel() <= self._cancelling
        if error is None:
            return
        self._client.statistics.count_failure(self._signature, time.monotonic() - self.slots.acquired_at)
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if (is_own and is_cancelled) or isinstance(error, DeadlineExceededError):
            self._metrics.expired.inc()
            self._measure(time.monotonic())
            raise DeadlineExceededError("the request was not answered before its deadline") from error
        if is_cancelled:
            self._metrics.cancelled.inc()

    def _expire(self) -> None:
        self._is_expired = True
        self._task.cancel()

    def begin(self, signature: int, items: int, timeout_ms: int) -> None:
        """Takes slots for about so many items of a signature; none may be submitted yet.

        `timeout_ms` may be shorter than before, because the body says so. Raises OverloadedError.
        """
        self._signature = signature
        if timeout_ms < self._timeout_ms:
            self._timeout_ms = timeout_ms
            self._timer.cancel()
            left = self._deadline - time.monotonic()
            self._timer = self._loop.call_later(max(0.0, left), self._expire)
            self._waits.check(self._ahead, timeout_ms)
        if items > 1:
            count = min(items, self._most_slots)
            self._client.check_free(self._bulk, count - 1)
            self.slots.resize(count, self._bulk)

    async def submit(self, items: Sequence[Item], further: int = 0) -> None:
        """Queues items of a request, of which about so many `further` items will follow.

        Raises what `Slots.submit` raises.
        """
        if not self._submitted_at:
            if (count := len(items) + further) != len(self.slots.indices):
                self.slots.resize(min(count, self._most_slots), self._bulk)
            self._submitted_at = time.monotonic()
        await self.slots.submit(self._signature, items, self._deadline, self._bulk)

    async def results(self) -> list[ItemResult]:
        """See `Slots.results`."""
        return await self.slots.results()

    def finish(self, results: Sequence[ItemResult], version: str, truncated: bool = False) -> Timings:
        """Counts the answered request, and returns its timings."""
        started = min(result.started_at for result in results)
        finished = max(result.finished_at for result in results)
        sizes = [result.batch_size for result in results]
        self._measure(started)
        timings = Timings(
            decode_s=self._submitted_at - self.slots.acquired_at,
            queue_s=started - self._submitted_at,
            infer_s=finished - started,
            output_s=time.monotonic() - finished,
            admitted_at=self.slots.acquired_at,
            batch_size=max(sizes),
            version=version,
            truncated=truncated,
        )
        self._client.statistics.count_success(self._signature, timings, sizes)
        return timings

    def _measure(self, until: float) -> None:
        """Measures the wait until a `time.monotonic()` time, if slots were in use before this one.

        A wait for a worker to start says nothing about the next request's.
        """
        memory, since = self._client.memory, self.slots.acquired_at
        if self._ahead and memory.serving_workers[0] and memory.serving_since[0] <= since:
            self._waits.measure(self._ahead, until - since, self._client.most_queued(self._signature))

    @property
    def _deadline(self) -> float:
        """A `time.monotonic()` time."""
        return self.slots.acquired_at + self._timeout_ms / 1000

    @property
    def _most_slots(self) -> int:
        """How many slots one request may hold.

        This is a quarter of all slots, or more if it takes more to keep the workers busy, but at most
        half.
        """
        slots = self._client.memory.layout.slots_per_web_process
        return max(1, min(slots // 2, max(slots // 4, self._client.most_queued(self._signature))))

"""Engine client: a web process's side of the engine, from acquiring a slot to reading its result.

Called by `inference/`. Everything here runs on the event loop.
"""

import asyncio
import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smallplates.engine.memory import EngineFds, Memory, State, generation_of, record, send, slot_of
from smallplates.engine.statistics import Statistics
from smallplates.errors import (
    DeadlineExceededError,
    InternalError,
    OverloadedError,
    PayloadTooLargeError,
    RejectedError,
    ServingError,
    UnavailableError,
    WorkerCrashedError,
    WorkerTimeoutError,
)
from smallplates.models.tensors import Array, Item

WATCH_S = 0.25
NOTICE = 0xFFFFFFFFFFFFFFFF  # record in a done pipe: the engine is down, or is not any more


@dataclass(slots=True)  # not frozen: creating a frozen instance is slower, and every item creates one
class ItemResult:
    """Result of one item."""

    outputs: list[Array]  # one for each output of the signature
    queued_at: float  # this and the others: a `time.monotonic()` time
    started_at: float  # of the whole batch
    finished_at: float
    batch_size: int
    is_batch_leader: bool  # True for exactly one item of each batch, so that each batch is counted once


def error_for(state: int, failure_is_client_error: bool, hang_limit_s: float) -> Exception:
    """Returns the error that `submit` raises for a slot in this `State`."""
    if failure_is_client_error and state == State.REFUSED:
        return RejectedError("the model cannot compute this input, or its outputs exceed the limits")
    errors: dict[int, Exception] = {
        State.EXPIRED: DeadlineExceededError("the deadline passed while the request waited"),
        State.CRASHED: WorkerCrashedError("the inference worker crashed twice on this request"),
        State.TIMED_OUT: WorkerTimeoutError(
            f"the model exceeded its time limit twice: {hang_limit_s:g} s (SERVING_WORKER_TIMEOUT_MS)"
        ),
    }
    return errors.get(state) or InternalError("inference failed")


OPEN = (State.FREE, State.QUEUED, State.RUNNING)
"""States of a slot without a result."""


class Slots:
    """Slots of one request, from admission to answer; a context manager that frees them.

    A request with more items than slots reuses a slot as soon as a worker has reported it.
    """

    def __init__(self, client: "EngineClient", indices: list[int]) -> None:
        self.client = client
        self.acquired_at = time.monotonic()
        self.indices = indices

        self._spare = indices[::-1]
        self._numbers = itertools.count()
        self._in_use: dict[int, int] = {}
        """Slot -> number of its item, in the order of the items."""

        self._results: dict[int, ItemResult] = {}
        """Number of an item -> its result."""

        self._error: Exception | None = None
        self._next_report: asyncio.Future[None] | None = None
        self._answer_bytes = 0
        self.hold: Callable[[int], None] = lambda _: None
        """Takes the bytes of the answer so far. May raise ServingError."""

    def __enter__(self) -> "Slots":
        """Returns itself; `EngineClient.acquire` has already taken the slots."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Frees the slots; items that no worker has started are never computed."""
        self.client.free(self.indices)

    def resize(self, count: int, bulk: bool) -> None:
        """Takes free slots, up to `count` in all, or frees those beyond; no slot may be in use yet."""
        more = min(count - len(self.indices), self.client.free_slots(bulk))
        if more > 0:
            self.indices += self.client.acquire(bulk, more).indices
        elif more < 0:
            self.client.free(self.indices[count:])
            del self.indices[count:]
        self._spare = self.indices[::-1]

    async def submit(self, signature: int, items: Sequence[Item], deadline: float, bulk: bool) -> None:
        """Queues items, one per slot and at most `EngineClient.most_queued` at a time.

        `signature` is an index into the layout's signatures; every item must match that signature.
        `deadline` is a `time.monotonic()` time. Returns when the last item is queued. Raises what
        `results` raises, and PayloadTooLargeError if the answer is too large.
        """
        most = self.client.most_queued(signature, items) if len(items) > 1 else 1
        while items:
            while self._error or (room := min(len(self._spare), most - len(self._in_use))) <= 0:
                await self._wait()
            slots = [self._spare.pop() for _ in items[:room]]
            self._in_use.update(zip(slots, self._numbers, strict=False))
            self.client.enqueue(self, slots, signature, items[:room], deadline, bulk)
            items = items[room:]

    def report(self, slot: int, result: ItemResult | Exception) -> None:
        """Takes the result of the item in a slot; if that is an error, the slot is not used again."""
        number = self._in_use.pop(slot)
        if isinstance(result, ItemResult):
            self._results[number] = result
            self._answer_bytes += sum(array.nbytes for array in result.outputs)
            try:
                self.client.check_answer(self._answer_bytes)
                self.hold(self._answer_bytes)
            except ServingError as error:
                self._error = error
            self._spare.append(slot)
        else:
            self._error = result
        if self._next_report is not None and not self._next_report.done():
            self._next_report.set_result(None)

    async def _wait(self) -> None:
        """Waits until another item is reported, unless one has failed. Raises its error."""
        if self._error is None:
            self._next_report = asyncio.get_running_loop().create_future()
            await self._next_report
        if self._error is not None:
            try:
                raise self._error
            finally:  # breaks the reference cycle between traceback and exception
                self._error = None

    async def results(self) -> list[ItemResult]:
        """Waits for all items and returns their results in order.

        Raises DeadlineExceededError, RejectedError, InternalError, WorkerCrashedError,
        WorkerTimeoutError or UnavailableError.
        """
        while self._in_use or self._error:
            await self._wait()
        return [self._results[number] for number in range(len(self._results))]


class EngineClient:
    """Manages one web process's slots, from `open` to `close`."""

    def __init__(
        self,
        fds: EngineFds,
        on_result: Callable[[int, ItemResult | None], None],
        max_answer_bytes: float = math.inf,
        fewest: int = 1,
    ) -> None:
        """`on_result` takes a slot's `State`, and the result if there is one.

        To compute fewer items than `fewest` takes less time than to wake another worker for some of
        them.
        """
        self.fewest = fewest
        self._fds = fds
        self._on_result = on_result
        self._max_answer_bytes = max_answer_bytes
        self._web_process = fds.web_process
        self._slots = fds.layout.slots_per_web_process
        self._requests: dict[int, Slots | None] = {}
        """The slots of the request for each submitted slot; None if the request was cancelled."""

        self._free: list[int] = []
        self._to_queue: tuple[list[int], list[int]] = [], []
        """Interactive and bulk slots whose items are written, but not queued yet."""

        self._has_watch = self._is_closed = False
        self._idle = asyncio.Event()

    def open(self) -> None:
        """Takes over this web process's slots; cancels items left there by a crashed predecessor."""
        self._loop = asyncio.get_running_loop()
        self.memory = Memory(self._fds.memory_fd, self._fds.layout, self._fds.counts_fd)
        self.statistics = Statistics(self.memory, self._web_process)
        os.set_blocking(self._fds.done_fd, False)
        first = self._web_process * self._slots
        for slot in reversed(range(first, first + self._slots)):
            if self.memory.state[slot] in (State.QUEUED, State.RUNNING):
                self.memory.cancelled[slot] = 1
                self._requests[slot] = None
            else:
                self._release(slot)
        self._publish()
        self._loop.add_reader(self._fds.done_fd, self._on_done)
        self._watch()  # a worker that hangs must be noticed even if no new request comes

    @property
    def is_down(self) -> bool:
        """Whether no worker can start, so that requests are refused."""
        return bool(self.memory.is_down[0])

    def acquire(self, bulk: bool = False, count: int = 1) -> Slots:
        """Takes `count` slots or none; bulk leaves half of all slots free. Raises OverloadedError."""
        self.check_free(bulk, count)
        slots = Slots(self, [self._free.pop() for _ in range(count)])
        self._publish()
        return slots

    def check_free(self, bulk: bool, count: int = 1) -> None:
        """Raises OverloadedError if fewer than `count` slots are free across all web processes.

        Bulk requests must leave half of the slots free. This web process's own slots always suffice,
        because each web process owns as many as all of them together may use.
        """
        if self.free_slots(bulk) < count:
            raise OverloadedError(
                "all slots for bulk requests are taken" if bulk else "all slots are taken"
            )

    def free_slots(self, bulk: bool) -> int:
        """Returns how many slots `acquire` can take."""
        free = self.memory.free_slots
        return max(0, free - self._slots // 2) if bulk else free

    @property
    def ahead(self) -> int:
        """Slots in use before the next request; 0 while a worker has none, or while none is ready."""
        in_use = self._slots - self.memory.free_slots
        return in_use if 0 < self.memory.serving_workers[0] <= in_use else 0

    def most_queued(self, signature: int, items: Sequence[Item] = ()) -> int:
        """Returns how many items of one request may be queued or running at a time.

        This is two batches per worker: enough to keep the workers busy, and few enough not to delay
        other requests. `items` are the request's items; their sizes limit the batch if sizes vary.
        """
        memory = self.memory
        declaration = memory.layout.signatures[signature]
        batch = declaration.batch_size or memory.batch_cap[0]
        if items and declaration.input_axes:
            largest = max(map(declaration.elements_of, items))
            batch = min(batch, memory.max_batch_elements[signature] // largest)
        return 2 * max(1, batch) * max(1, memory.ready_workers[0])

    def check_answer(self, size: int) -> None:
        """Raises PayloadTooLargeError if an answer of `size` bytes exceeds the limit."""
        if size > self._max_answer_bytes:
            raise PayloadTooLargeError(
                f"the answer has more than {self._max_answer_bytes} bytes "
                "(SERVING_MAX_ANSWER_BYTES): send fewer inputs"
            )

    def free(self, slots: list[int]) -> None:
        """Frees slots. Submitted slots are cancelled first, and freed when a worker reports them."""
        for slot in reversed(slots):
            if slot in self._requests:
                self.memory.cancelled[slot] = 1
                self._requests[slot] = None
            else:
                self._release(slot)
        if not self._is_closed:
            self._publish()

    def _release(self, slot: int) -> None:
        self.memory.state[slot] = State.FREE
        self._free.append(slot)

    def _publish(self) -> None:
        in_flight = self._slots - len(self._free)
        self._count(in_flight)
        if in_flight:
            self._idle.clear()
        else:
            self._idle.set()

    def _count(self, in_flight: int) -> None:
        """Publishes how many slots are in use, both for this engine and for the whole service."""
        own, web_process = self.memory.in_flight, self._web_process
        self.memory.counts.in_flight[web_process] += in_flight - own[web_process]
        own[web_process] = in_flight

    def enqueue(
        self,
        request: Slots,
        slots: Sequence[int],
        signature: int,
        items: Sequence[Item],
        deadline: float,
        bulk: bool,
    ) -> None:
        """Writes an item into each of these slots of a request; see `Slots.submit`.

        The event loop queues the items that it has written in one iteration together, since each
        write to the pipe costs as much as all else here, and wakes a worker.
        """
        memory, now = self.memory, time.monotonic()
        for slot, item in zip(slots, items, strict=True):
            memory.write_inputs(slot, signature, item)
            memory.generation[slot] = (memory.generation[slot] + 1) & 0x7FFFFFFF
            memory.cancelled[slot] = 0
            memory.attempts[slot] = 0
            memory.bulk[slot] = bulk
            memory.deadline[slot] = deadline
            memory.queued_at[slot] = now
            self._requests[slot] = request
        if not (self._to_queue[0] or self._to_queue[1]):
            self._loop.call_soon(self._queue)
        self._to_queue[bulk].extend(slots)
        if not self._has_watch:
            self._has_watch = True
            self._loop.call_later(0 if memory.is_asleep[0] else WATCH_S, self._watch)

    def _queue(self) -> None:
        """Queues the items that are waiting for it, in as many parts as there are workers to wake."""
        memory, workers = self.memory, max(1, self.memory.serving_workers[0])
        for slots, fd in zip(self._to_queue, self._fds.work_fds, strict=True):
            if not slots or self._is_closed:
                continue
            for slot in slots:
                memory.state[slot] = State.QUEUED
            values = [record(slot, memory.generation[slot]) for slot in slots]
            slots.clear()
            share = max(self.fewest, -(-len(values) // workers))
            for first in range(0, len(values), share):  # each call wakes one worker
                send(fd, *values[first : first + share])

    def _watch(self) -> None:
        """Wakes the supervisor periodically to check its workers, as long as items are in flight.

        If the model is asleep, the supervisor then starts its workers.
        """
        self._has_watch = bool(self._requests)
        if self._has_watch:
            self._loop.call_later(WATCH_S, self._watch)
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it wakes up anyway
                os.write(self._fds.wakeup_fd, b"k")
            in_use = self._slots - len(self._free)
            if self.is_down and list(self._requests.values()) == [None] * in_use:
                self._idle.set()  # all slots in use are cancelled, and no worker is left to report them

    def _on_done(self) -> None:
        try:
            data = os.read(self._fds.done_fd, 4096)
        except BlockingIOError:
            return
        if not data:  # the supervisor has died; the workers and this process die with it
            self._loop.remove_reader(self._fds.done_fd)
            return
        for value in memoryview(data).cast("Q"):
            if value == NOTICE:
                self._on_notice()
            else:
                self._finish(slot_of(value), generation_of(value))

    def _finish(self, slot: int, generation: int) -> None:
        """Gives a reported slot's result to its request; frees the slot if that was cancelled.

        Ignores outdated and repeated reports.
        """
        memory = self.memory
        if slot not in self._requests or memory.generation[slot] != generation:
            return
        state = memory.state[slot]
        if state in OPEN:
            return
        request = self._requests.pop(slot)
        result = None
        if state == State.DONE:
            result = ItemResult(
                outputs=memory.read_outputs(slot),
                queued_at=memory.queued_at[slot],
                started_at=memory.started_at[slot],
                finished_at=memory.finished_at[slot],
                batch_size=memory.batch_size[slot],
                is_batch_leader=bool(memory.is_batch_leader[slot]),
            )
            if result.is_batch_leader:
                infer_s = result.finished_at - result.started_at
                self.statistics.count_batch(memory.signature[slot], result.batch_size, infer_s)
        self._on_result(state, result)
        if request is not None and result:
            request.report(slot, result)
        elif request is not None:
            by_client = memory.layout.signatures[memory.signature[slot]].failure_is_client_error
            request.report(slot, error_for(state, by_client, memory.hang_limit_s[0]))
        memory.discard(slot)
        if request is None:
            self._release(slot)
            self._publish()

    def _on_notice(self) -> None:
        """Fails all pending items at once if the engine is DOWN."""
        if not self.is_down:
            return
        for slot, request in list(self._requests.items()):
            if request is not None:
                self.memory.cancelled[slot] = 1
                self._requests[slot] = None
                request.report(slot, UnavailableError("no worker is ready"))

    async def drain(self) -> None:
        """Waits until no slot is in use; cancelled slots that no worker can report do not count."""
        await self._idle.wait()

    def close(self) -> None:
        """Stops reading results and fails the pending items; the descriptors are not used any more."""
        self._loop.remove_reader(self._fds.done_fd)
        for slot, request in self._requests.items():
            if request is not None:
                request.report(slot, UnavailableError("the service has shut down"))
        self._requests.clear()  # `_watch` has nothing left to do
        self._is_closed = True
        self._count(0)

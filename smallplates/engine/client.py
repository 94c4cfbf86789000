"""Engine client: a web process's side of the engine, from acquiring a slot to reading its result.

Called by `inference/`. Everything here runs on the event loop.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smallplates.engine.memory import (
    EngineFds,
    Memory,
    State,
    generation_of,
    record,
    send,
    slot_of,
)
from smallplates.engine.statistics import Statistics
from smallplates.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidTensorError,
    OverloadedError,
    PayloadTooLargeError,
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
    if failure_is_client_error and state == State.FAILED:
        return InvalidTensorError(
            "the model cannot compute this input, or its outputs exceed the limits"
        )
    errors: dict[int, Exception] = {
        State.EXPIRED: DeadlineExceededError("the deadline passed while the request waited"),
        State.CRASHED: WorkerCrashedError("the inference worker crashed twice on this request"),
        State.TIMED_OUT: WorkerTimeoutError(
            f"the model exceeded its time limit twice: {hang_limit_s:g} s (SERVING_WORKER_TIMEOUT_MS)"
        ),
    }
    return errors.get(state) or InternalError("inference failed")


OnFinished = Callable[[int, ItemResult | None], None]
"""Takes a slot's `State`, and the result if there is one."""

UNFINISHED = (State.FREE, State.QUEUED, State.RUNNING)


class Slots:
    """Slots of one request, from admission to answer; a context manager that frees them.

    A request with more items than slots reuses a slot as soon as a worker has reported it.
    """

    def __init__(self, client: "EngineClient", indices: list[int]) -> None:
        self.client = client
        self.acquired_at = time.monotonic()
        self.indices = indices
        self.futures: list[asyncio.Future[ItemResult]] = []
        """Results of all items queued so far, in order."""

        self._unused = indices[::-1]
        self._in_use: dict[int, asyncio.Future[ItemResult]] = {}
        self._answered_bytes = 0

    def __enter__(self) -> "Slots":
        """Returns itself; `EngineClient.acquire` has already taken the slots."""
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """Frees the slots; items that no worker has started are never computed."""
        self.client.free(self.indices)
        if failure:
            for future in self.futures:
                if future.done() and not future.cancelled():
                    future.exception()  # otherwise asyncio logs that it was never retrieved

    def resize(self, count: int, bulk: bool) -> None:
        """Takes free slots, up to `count` in all, or frees those beyond; no slot may be in use yet."""
        more = min(count - len(self.indices), self.client.free_slots(bulk))
        if more > 0:
            self.indices += self.client.acquire(bulk, more).indices
        elif more < 0:
            self.client.free(self.indices[count:])
            del self.indices[count:]
        self._unused = self.indices[::-1]

    async def submit(self, signature: int, items: Sequence[Item], deadline: float, bulk: bool) -> None:
        """Queues items, one per slot and at most `EngineClient.most_queued` at a time.

        `signature` is an index into the layout's signatures; every item must match that signature.
        `deadline` is a `time.monotonic()` time. Returns when the last item is queued. Raises what
        `results` raises, and PayloadTooLargeError if the answer is too large.
        """
        most = self.client.most_queued(signature, items) if len(items) > 1 else 1
        for item in items:
            while not self._unused or len(self._in_use) >= most:
                await self._one_reported()
            slot = self._unused.pop()
            future = self.client.enqueue(slot, signature, item, deadline, bulk)
            self._in_use[slot] = future
            self.futures.append(future)

    async def _one_reported(self) -> None:
        await asyncio.wait(self._in_use.values(), return_when=asyncio.FIRST_COMPLETED)
        for slot, future in list(self._in_use.items()):
            if future.done():
                self._answered_bytes += sum(array.nbytes for array in future.result().outputs)
                del self._in_use[slot]
                self._unused.append(slot)
        self.client.check_answer(self._answered_bytes)

    async def results(self) -> list[ItemResult]:
        """Waits for all items and returns their results in order.

        Raises DeadlineExceededError, InvalidTensorError, InternalError, WorkerCrashedError,
        WorkerTimeoutError or UnavailableError.
        """
        return [await future for future in self.futures]


class EngineClient:
    """Manages one web process's slots, from `open` to `close`."""

    def __init__(
        self, fds: EngineFds, on_finished: OnFinished, max_answer_bytes: float = math.inf
    ) -> None:
        self._fds = fds
        self._on_finished = on_finished
        self._max_answer_bytes = max_answer_bytes
        self._web_process = fds.web_process
        self._slots = fds.layout.slots_per_web_process
        self._futures: dict[int, asyncio.Future[ItemResult] | None] = {}
        """Future for each submitted slot; None if the request was cancelled."""

        self._free: list[int] = []
        self._watching = self._closed = False
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
                self._futures[slot] = None
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
        taken = self._slots - self.memory.free_slots
        return taken if 0 < self.memory.serving_workers[0] <= taken else 0

    def most_queued(self, signature: int, items: Sequence[Item] = ()) -> int:
        """Returns how many items of one request may be queued or running at a time.

        This is two batches per worker: enough to keep the workers busy, and few enough not to delay
        other requests. `items` are the request's items; their sizes limit the batch if sizes vary.
        """
        memory = self.memory
        declared = memory.layout.signatures[signature]
        batch = declared.batch_size or memory.batch_cap[0]
        if items and declared.input_axes:
            largest = max(declared.elements(declared.sizes(item)) for item in items)
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
            if slot in self._futures:
                self.memory.cancelled[slot] = 1
                self._futures[slot] = None
            else:
                self._release(slot)
        if not self._closed:
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
        self, slot: int, signature: int, item: Item, deadline: float, bulk: bool
    ) -> asyncio.Future[ItemResult]:
        """Writes an item into an acquired slot and queues the slot; see `Slots.submit`."""
        memory = self.memory
        memory.write_inputs(slot, signature, item)
        memory.generation[slot] = generation = (memory.generation[slot] + 1) & 0x7FFFFFFF
        memory.cancelled[slot] = 0
        memory.attempts[slot] = 0
        memory.bulk[slot] = bulk
        memory.deadline[slot] = deadline
        memory.queued_at[slot] = time.monotonic()
        future: asyncio.Future[ItemResult] = self._loop.create_future()
        self._futures[slot] = future
        memory.state[slot] = State.QUEUED
        send(self._fds.work_fds[bulk], record(slot, generation))
        if not self._watching:
            self._watching = True
            self._loop.call_later(0 if memory.is_asleep[0] else WATCH_S, self._watch)
        return future

    def _watch(self) -> None:
        """Wakes the supervisor periodically to check its workers, as long as items are in flight.

        If the model is asleep, the supervisor then starts its workers.
        """
        self._watching = bool(self._futures)
        if self._watching:
            self._loop.call_later(WATCH_S, self._watch)
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it wakes up anyway
                os.write(self._fds.wakeup_fd, b"k")
            if self._has_only_stranded_slots():
                self._idle.set()

    def _has_only_stranded_slots(self) -> bool:
        """Returns whether every slot in use is cancelled and no worker is left to report it."""
        taken = self._slots - len(self._free)
        nobody = all(future is None for future in self._futures.values())
        return self.is_down and nobody and len(self._futures) == taken

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
        """Resolves the future of a reported slot; frees the slot if its request was cancelled.

        Ignores outdated and repeated reports.
        """
        memory = self.memory
        if slot not in self._futures or memory.generation[slot] != generation:
            return
        state = memory.state[slot]
        if state in UNFINISHED:
            return
        future = self._futures.pop(slot)
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
                self.statistics.executed(memory.signature[slot], result.batch_size, infer_s)
        self._on_finished(state, result)
        if future is not None and not future.done():
            if result:
                future.set_result(result)
            else:
                by_client = memory.layout.signatures[memory.signature[slot]].failure_is_client_error
                future.set_exception(error_for(state, by_client, memory.hang_limit_s[0]))
        memory.discard(slot)
        if future is None:
            self._release(slot)
            self._publish()

    def _on_notice(self) -> None:
        """Fails all pending items at once if the engine is DOWN."""
        if not self.is_down:
            return
        for slot, future in list(self._futures.items()):
            if future is not None and not future.done():
                self.memory.cancelled[slot] = 1
                self._futures[slot] = None
                future.set_exception(UnavailableError("no worker is ready"))

    async def drained(self) -> None:
        """Waits until no slot is in use; cancelled slots that no worker can report do not count."""
        await self._idle.wait()

    def close(self) -> None:
        """Stops reading results and fails the pending items; the descriptors are not used any more."""
        self._loop.remove_reader(self._fds.done_fd)
        for future in self._futures.values():
            if future is not None and not future.done():
                future.set_exception(UnavailableError("the service has shut down"))
        self._futures.clear()  # `_watch` has nothing left to do
        self._closed = True
        self._count(0)

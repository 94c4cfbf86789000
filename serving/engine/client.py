"""A web process's side of the engine: slots, `submit`, and the answers.

Called by `classifier.py`. All of it runs on the event loop.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.memory import (
    EngineFds,
    Health,
    Memory,
    Signature,
    State,
    generation_of,
    record,
    send,
    slot_of,
)
from serving.engine.statistics import Statistics
from serving.errors import (
    DeadlineExceededError,
    InternalError,
    OverloadedError,
    UnavailableError,
    WorkerCrashedError,
)

WATCH_S = 0.25
NOTICE = 0xFFFFFFFFFFFFFFFF  # in a done pipe: the engine's health has changed


@dataclass(slots=True)  # not frozen: that costs time for each picture
class Outcome:
    """The answer for one input."""

    logits: NDArray[np.float32]
    """[classes]."""

    started_at: float
    """time.monotonic() when the computation began."""

    finished_at: float
    """And when it was over."""

    queue_s: float
    """Seconds between `submit` and the start of the computation."""

    infer_s: float
    """Seconds of computation, of the whole batch."""

    batch_size: int
    is_batch_leader: bool
    """Whether this is the first answer of its batch, so that each batch is counted once."""


def error_for(state: State) -> Exception:
    """What the caller of `submit` gets for a slot that ended in this state."""
    errors: dict[State, Any] = {
        State.EXPIRED: DeadlineExceededError("the deadline passed while the request waited"),
        State.CRASHED: WorkerCrashedError("the inference worker crashed twice on this request"),
    }
    return errors.get(state) or InternalError("inference failed")


Inputs = Sequence[NDArray[np.uint8]] | Sequence[NDArray[np.float32]] | NDArray[np.float32]
OnFinished = Callable[[State, Outcome | None], None]


class Slots:
    """The right to some inputs in the engine, from admission to answer; a context manager."""

    def __init__(self, client: "EngineClient", indices: list[int]) -> None:
        self.client = client
        self.indices = indices
        self.submitted = False

    def __enter__(self) -> "Slots":
        """Given by `EngineClient.acquire`."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Free again at once, or, after `submit`, when no worker can touch them any more."""
        if not self.submitted:
            self.client.free(self.indices)

    async def submit(
        self, kind: Signature, inputs: Inputs, deadline: float, bulk: bool
    ) -> list[Outcome]:
        """One input per slot -> their logits, in order; see `Signature` for their shape and type.

        `deadline` is a time of `time.monotonic()`. Where one fails, so does the call, and what has not
        begun is never computed; the same where it is cancelled. Raises DeadlineExceededError,
        InternalError, WorkerCrashedError or UnavailableError.
        """
        client = self.client
        futures = [
            client.enqueue(index, kind, value, deadline, bulk)
            for index, value in zip(self.indices, inputs, strict=True)
        ]
        self.submitted = True
        try:
            return [await future for future in futures]
        except BaseException:
            for index, future in zip(self.indices, futures, strict=True):
                client.cancel(index, future)
            raise


class EngineClient:
    """Holds one frontend's slots; `open` and `close` belong together."""

    def __init__(self, fds: EngineFds, on_finished: OnFinished) -> None:
        self._fds = fds
        self._on_finished = on_finished
        self._frontend = fds.frontend
        self._futures: dict[int, asyncio.Future[Outcome] | None] = {}
        """Submitted slots; None when nobody waits for the answer any more."""

        self._free: list[int] = []
        self._watching = False
        self._idle = asyncio.Event()

    def open(self) -> None:
        """Takes over this frontend's slots, also what a predecessor that died left in them."""
        self._loop = asyncio.get_running_loop()
        self.memory = Memory(self._fds.memory_fd, self._fds.layout)
        self.statistics = Statistics(self.memory, self._frontend)
        count = self.memory.layout.slots_per_frontend
        os.set_blocking(self._fds.done_fd, False)
        first = self._frontend * count
        for slot in reversed(range(first, first + count)):
            if self.memory.state[slot] in (State.QUEUED, State.RUNNING):
                self.memory.cancelled[slot] = 1
                self._futures[slot] = None
            else:
                self._release(slot)
        self._publish()
        self._loop.add_reader(self._fds.done_fd, self._on_done)

    @property
    def health(self) -> Health:
        """As the supervisor sees it."""
        return Health(self.memory.health[0])

    @property
    def alone(self) -> bool:
        """Whether at most one request is in the whole service."""
        return sum(self.memory.in_flight) <= 1

    def acquire(self, bulk: bool = False, count: int = 1) -> Slots:
        """Takes free slots, all or none. Raises OverloadedError; see `check_free`."""
        self.check_free(bulk, count)
        slots = Slots(self, [self._free.pop() for _ in range(count)])
        self._publish()
        return slots

    def check_free(self, bulk: bool, count: int = 1) -> None:
        """Raises OverloadedError where all frontends together hold too many slots for `count` more.

        Bulk leaves half of them free. This frontend's own suffice: it has as many as all may hold.
        """
        least = self.memory.layout.slots_per_frontend // 2 if bulk else 0
        if self.memory.free_slots - count < least:
            raise OverloadedError("all slots for bulk are taken" if bulk else "all slots are taken")

    def free(self, slots: list[int]) -> None:
        """Nothing of them is, or will be, in a worker's hands."""
        for slot in reversed(slots):
            self._release(slot)
        self._publish()

    def _release(self, slot: int) -> None:
        self.memory.state[slot] = State.FREE
        self._free.append(slot)

    def _publish(self) -> None:
        in_flight = self.memory.layout.slots_per_frontend - len(self._free)
        self.memory.in_flight[self._frontend] = in_flight
        if in_flight:
            self._idle.clear()
        else:
            self._idle.set()

    def enqueue(
        self,
        slot: int,
        kind: Signature,
        value: NDArray[np.uint8] | NDArray[np.float32],
        deadline: float,
        bulk: bool,
    ) -> asyncio.Future[Outcome]:
        """Hands an acquired slot over to the workers; see `Slots.submit`."""
        memory = self.memory
        if kind is Signature.IMAGE:
            memory.inputs[slot] = value
        else:
            memory.tensors[slot] = value
        memory.kind[slot] = kind
        memory.generation[slot] = generation = (memory.generation[slot] + 1) & 0x7FFFFFFF
        memory.cancelled[slot] = 0
        memory.attempts[slot] = 0
        memory.bulk[slot] = bulk
        memory.deadline[slot] = deadline
        memory.queued_at[slot] = time.monotonic()
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._futures[slot] = future
        memory.state[slot] = State.QUEUED
        send(self._fds.work_fds[bulk], record(slot, generation))
        if not self._watching:
            self._watching = True
            self._loop.call_later(WATCH_S, self._watch)
        return future

    def cancel(self, slot: int, future: asyncio.Future[Outcome]) -> None:
        """Nobody waits any more; the slot is free when a worker has come across it."""
        if self._futures.get(slot) is future:
            self.memory.cancelled[slot] = 1
            self._futures[slot] = None
        elif not future.cancelled():
            future.exception()  # seen: asyncio need not complain of it

    def _watch(self) -> None:
        """While something is under way, the supervisor looks at its workers now and then."""
        self._watching = bool(self._futures)
        if self._watching:
            self._loop.call_later(WATCH_S, self._watch)
            self.wake_supervisor()
            if self._is_forsaken():
                self._idle.set()

    def _is_forsaken(self) -> bool:
        """Whether nobody waits for what is taken, and there is no worker to come across it."""
        taken = self.memory.layout.slots_per_frontend - len(self._free)
        nobody = all(future is None for future in self._futures.values())
        return self.health is Health.DOWN and nobody and len(self._futures) == taken

    def wake_supervisor(self) -> None:
        """Asks the supervisor to look after its workers; one pending request is as good as many."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._fds.wakeup_fd, b"k")

    def _on_done(self) -> None:
        try:
            data = os.read(self._fds.done_fd, 4096)
        except BlockingIOError:
            return
        if not data:  # the supervisor is gone; so are the workers, and soon this process
            self._loop.remove_reader(self._fds.done_fd)
            return
        for value in memoryview(data).cast("Q"):
            if value == NOTICE:
                self._on_notice()
            else:
                self._finish(slot_of(value), generation_of(value))
        self._publish()

    def _finish(self, slot: int, generation: int) -> None:
        """Gives the answer to whoever waits, and frees the slot; a late or second report is nothing."""
        memory = self.memory
        if slot not in self._futures or memory.generation[slot] != generation:
            return
        state = State(memory.state[slot])
        if state in (State.QUEUED, State.RUNNING, State.FREE):
            return
        future = self._futures.pop(slot)
        outcome = self._outcome(slot) if state is State.DONE else None
        if outcome:
            kind = Signature(memory.kind[slot])
            self.statistics.executed(kind, outcome.batch_size, outcome.is_batch_leader, outcome.infer_s)
        self._on_finished(state, outcome)
        if future is not None and not future.done():
            if outcome:
                future.set_result(outcome)
            else:
                future.set_exception(error_for(state))
        self._release(slot)

    def _outcome(self, slot: int) -> Outcome:
        memory = self.memory
        started, finished = memory.started_at[slot], memory.finished_at[slot]
        return Outcome(
            logits=memory.outputs[slot].copy(),
            started_at=started,
            finished_at=finished,
            queue_s=started - memory.queued_at[slot],
            infer_s=finished - started,
            batch_size=memory.batch_size[slot],
            is_batch_leader=bool(memory.is_batch_leader[slot]),
        )

    def _on_notice(self) -> None:
        """With no worker, and none that starts, whoever waits is told so at once."""
        if self.health is not Health.DOWN:
            return
        for slot, future in list(self._futures.items()):
            if future is not None and not future.done():
                self.memory.cancelled[slot] = 1
                self._futures[slot] = None
                future.set_exception(UnavailableError("no worker is ready"))

    async def drained(self) -> None:
        """Returns when no slot is taken, or only such as nobody waits for and no worker can free."""
        await self._idle.wait()

    def close(self) -> None:
        """No more answers are read, and the descriptors are not used any more."""
        self._loop.remove_reader(self._fds.done_fd)
        for future in self._futures.values():
            if future is not None and not future.done():
                future.set_exception(UnavailableError("the service has shut down"))
        self._futures.clear()  # there is nothing to watch

"""A web process's side of the engine: slots, `submit`, and the answers.

Called by `classifier.classify`. All of it runs on the event loop.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.memory import (
    Geometry,
    Health,
    Memory,
    State,
    generation_of,
    record,
    send,
    slot_of,
)
from serving.errors import (
    DeadlineExceededError,
    InternalError,
    OverloadedError,
    UnavailableError,
    WorkerCrashedError,
)

WATCH_S = 0.25
NOTICE = 0xFFFFFFFFFFFFFFFF  # in a done pipe: the engine's health has changed


@dataclass(frozen=True)
class Attachment:
    """What a web process needs of an engine; descriptors are valid in the process that has it."""

    web: int
    geometry: Geometry
    memory_fd: int
    work_fds: tuple[int, int]
    """Ends to write: interactive, bulk."""

    done_fd: int
    """The end to read."""

    kick_fd: int
    """The end to write: asks the supervisor to look after its workers."""


@dataclass(slots=True)  # not frozen: that costs time for each picture
class Outcome:
    """The answer for one picture."""

    logits: list[float]
    """One per class."""

    queue_s: float
    """Seconds between `submit` and the start of the computation."""

    infer_s: float
    """Seconds of computation, of the whole batch."""

    batch_size: int
    leads: bool
    """Whether this picture was the first of its batch, so that each batch is counted once."""


OnFinished = Callable[[State, Outcome | None], None]


class Slot:
    """The right to one picture in the engine, from admission to answer; a context manager."""

    def __init__(self, client: "EngineClient", index: int) -> None:
        self.client = client
        self.index = index
        self.submitted = False

    def __enter__(self) -> "Slot":
        """Given by `EngineClient.acquire`."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Free again at once, or, after `submit`, when no worker can touch it any more."""
        if not self.submitted:
            self.client.free(self.index)

    async def submit(self, pixels: NDArray[np.uint8], deadline: float, bulk: bool) -> Outcome:
        """Pixels [height, width, 3] -> logits. Cancelled before its turn, it is never computed.

        `deadline` is a time of `time.monotonic()`. Raises DeadlineExceededError, InternalError,
        WorkerCrashedError or UnavailableError.
        """
        future = self.client.enqueue(self.index, pixels, deadline, bulk)
        self.submitted = True
        try:
            return await future
        except asyncio.CancelledError:
            self.client.cancel(self.index, future)
            raise


class EngineClient:
    """Holds one web process's share of the slots; `open` and `close` belong together."""

    def __init__(self, attachment: Attachment, on_finished: OnFinished) -> None:
        self._attachment = attachment
        self._on_finished = on_finished
        self._web = attachment.web
        self._futures: dict[int, asyncio.Future[Outcome] | None] = {}
        """Submitted slots; None when nobody waits for the answer any more."""

        self._free: list[int] = []
        self._watching = False
        self._idle = asyncio.Event()

    def open(self) -> None:
        """Takes over this web process's share, also what a predecessor that died left in it."""
        self._loop = asyncio.get_running_loop()
        self.memory = Memory(self._attachment.memory_fd, self._attachment.geometry)
        share = self.memory.geometry.share
        os.set_blocking(self._attachment.done_fd, False)
        first = self._web * share
        for slot in reversed(range(first, first + share)):
            if self.memory.state[slot] in (State.QUEUED, State.RUNNING):
                self.memory.cancelled[slot] = 1
                self._futures[slot] = None
            else:
                self._release(slot)
        self._publish()
        self._loop.add_reader(self._attachment.done_fd, self._on_done)

    @property
    def health(self) -> Health:
        """As the supervisor sees it."""
        return Health(self.memory.health[0])

    @property
    def alone(self) -> bool:
        """Whether at most one request is in the whole service."""
        return sum(self.memory.in_flight) <= 1

    def acquire(self, bulk: bool = False) -> Slot:
        """A free slot. Raises OverloadedError; bulk may hold no more than half of the slots."""
        self.check_free(bulk)
        slot = Slot(self, self._free.pop())
        self._publish()
        return slot

    def check_free(self, bulk: bool) -> None:
        """Raises what `acquire` would raise."""
        if len(self._free) <= (self.memory.geometry.share // 2 if bulk else 0):
            raise OverloadedError("all slots for bulk are taken" if bulk else "all slots are taken")

    def free(self, slot: int) -> None:
        """Nothing of it is, or will be, in a worker's hands."""
        self._release(slot)
        self._publish()

    def _release(self, slot: int) -> None:
        self.memory.state[slot] = State.FREE
        self._free.append(slot)

    def _publish(self) -> None:
        in_flight = self.memory.geometry.share - len(self._free)
        self.memory.in_flight[self._web] = in_flight
        if in_flight:
            self._idle.clear()
        else:
            self._idle.set()

    def enqueue(
        self, slot: int, pixels: NDArray[np.uint8], deadline: float, bulk: bool
    ) -> asyncio.Future[Outcome]:
        """Hands an acquired slot over to the workers; see `Slot.submit`."""
        memory = self.memory
        memory.inputs[slot] = pixels
        memory.generation[slot] = generation = (memory.generation[slot] + 1) & 0x7FFFFFFF
        memory.cancelled[slot] = 0
        memory.attempts[slot] = 0
        memory.bulk[slot] = bulk
        memory.deadline[slot] = deadline
        memory.queued_at[slot] = time.monotonic()
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._futures[slot] = future
        memory.state[slot] = State.QUEUED
        send(self._attachment.work_fds[bulk], record(slot, generation))
        if not self._watching:
            self._watching = True
            self._loop.call_later(WATCH_S, self._watch)
        return future

    def cancel(self, slot: int, future: asyncio.Future[Outcome]) -> None:
        """Nobody waits any more; the slot is free when a worker has come across it."""
        if self._futures.get(slot) is future:
            self.memory.cancelled[slot] = 1
            self._futures[slot] = None

    def _watch(self) -> None:
        """While something is under way, the supervisor looks at its workers now and then."""
        self._watching = bool(self._futures)
        if self._watching:
            self._loop.call_later(WATCH_S, self._watch)
            self.kick()

    def kick(self) -> None:
        """Asks the supervisor to look after its workers; one pending request is as good as many."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._attachment.kick_fd, b"k")

    def _on_done(self) -> None:
        try:
            data = os.read(self._attachment.done_fd, 4096)
        except BlockingIOError:
            return
        if not data:  # the supervisor is gone; so are the workers, and soon this process
            self._loop.remove_reader(self._attachment.done_fd)
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
        self._on_finished(state, outcome)
        if future is not None and not future.done():
            if outcome:
                future.set_result(outcome)
            else:
                future.set_exception(error_for(state))
        self._release(slot)

    def _outcome(self, slot: int) -> Outcome:
        memory = self.memory
        started = memory.started_at[slot]
        return Outcome(
            logits=memory.outputs[slot].tolist(),
            queue_s=started - memory.queued_at[slot],
            infer_s=memory.finished_at[slot] - started,
            batch_size=memory.batch_size[slot],
            leads=bool(memory.leads[slot]),
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
        """Returns when no slot is taken."""
        await self._idle.wait()

    def close(self) -> None:
        """No more answers are read."""
        self._loop.remove_reader(self._attachment.done_fd)
        for future in self._futures.values():
            if future is not None and not future.done():
                future.set_exception(UnavailableError("the service has shut down"))


def error_for(state: State) -> Exception:
    """What the caller of `submit` gets for a slot that ended in this state."""
    errors: dict[State, Any] = {
        State.EXPIRED: DeadlineExceededError("the deadline passed while the request waited"),
        State.CRASHED: WorkerCrashedError("the inference worker crashed twice on this request"),
    }
    return errors.get(state) or InternalError("inference failed")

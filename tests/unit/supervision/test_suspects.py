"""Suspects: what happens to the items of a dead worker, in which order, and when."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from smallplates.engine.memory import Memory, SlotLayout, State, record, slot_of
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.supervision.suspects import Suspects

NUMBERS = Signature("numbers", (TensorSpec("x", "float32", (1,)),), (TensorSpec("y", "float32", (1,)),))
LAYOUT = SlotLayout(slots=8, web_processes=1, workers=2, max_batch=4, signatures=(NUMBERS,))
SEGFAULT, SIGKILL = False, True
HUNG = True


class Engine:
    """A mapping with pipes, as the supervisor has them, and workers that are played."""

    def __init__(self, memory: Memory, work: tuple[int, int], done: tuple[int, int]) -> None:
        self.memory = memory
        self.suspects = Suspects(memory, (work[1], work[1]), (done[1],))
        self._pipes = {"work": work[0], "done": done[0]}

    def read(self, pipe: str) -> list[int]:
        """Slots of the records in a pipe, which is empty then."""
        try:
            return [slot_of(value) for value in memoryview(os.read(self._pipes[pipe], 4096)).cast("Q")]
        except BlockingIOError:
            return []

    def queue(self, *slots: int) -> None:
        """Makes these slots wait for a worker."""
        for slot in slots:
            self.memory.state[slot] = State.QUEUED
            self.memory.deadline[slot] = time.monotonic() + 60

    def take(self, worker: int, *slots: int, begun: int | None = None) -> None:
        """Plays a worker that has taken these slots, and has begun with the first `begun`, or all."""
        for place, slot in enumerate(slots):
            self.memory.inbox[worker][place] = record(slot, self.memory.generation[slot])
        for slot in slots[:begun]:
            self.memory.attempts[slot] += 1
            self.memory.worker[slot] = worker
            self.memory.state[slot] = State.RUNNING

    def states(self, *slots: int) -> list[State]:
        return [State(self.memory.state[slot]) for slot in slots]


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine of two workers, without any process."""
    with ExitStack() as held:
        memory = Memory.create(LAYOUT)
        held.callback(memory.close)
        pipes = [os.pipe() for _ in range(2)]
        for reader, writer in pipes:
            os.set_blocking(reader, False)
            held.callback(os.close, reader)
            held.callback(os.close, writer)
        yield Engine(memory, *pipes)


def test_a_suspect_waits_until_another_worker_serves_the_others(engine: Engine) -> None:
    engine.queue(0, 1, 2)
    engine.take(0, 0, 1, 2, begun=2)
    engine.suspects.empty_inbox(0, SEGFAULT)
    assert engine.read("work") == [2]  # not begun: it is queued at once
    assert not engine.suspects.release(ready=1, workers=2)
    assert engine.read("work") == []
    assert engine.suspects.release(ready=2, workers=2)
    assert engine.read("work") == [0]
    assert engine.suspects.release(ready=2, workers=2)  # one at a time
    assert engine.read("work") == []
    engine.take(1, 0)
    engine.memory.state[0] = State.DONE
    assert engine.suspects.release(ready=2, workers=2)
    assert engine.read("work") == [1]


def test_what_kills_again_fails_and_its_companions_are_next(engine: Engine) -> None:
    engine.queue(0, 1)
    engine.take(0, 0, 1)
    engine.suspects.empty_inbox(0, SEGFAULT)
    engine.suspects.release(ready=2, workers=2)
    engine.take(1, *engine.read("work"))
    engine.suspects.empty_inbox(1, SEGFAULT)
    assert not engine.suspects.release(ready=1, workers=2)
    assert engine.suspects.release(ready=2, workers=2)
    assert engine.read("work") == [1]
    engine.memory.state[1] = State.DONE
    assert not engine.suspects.release(ready=2, workers=2)
    assert engine.read("done") == [0]
    assert engine.states(0) == [State.CRASHED]


@pytest.mark.parametrize("first_is_hung", [True, False])
def test_the_last_worker_decides_between_a_crash_and_a_timeout(
    engine: Engine, first_is_hung: bool
) -> None:
    engine.queue(0)
    engine.take(0, 0)
    engine.suspects.empty_inbox(0, SEGFAULT, first_is_hung)
    engine.suspects.release(ready=2, workers=2)
    engine.take(1, *engine.read("work"))
    engine.suspects.empty_inbox(1, SEGFAULT, HUNG)
    engine.suspects.release(ready=2, workers=2)
    assert engine.read("done") == [0]
    assert engine.states(0) == [State.TIMED_OUT]


def test_a_worker_killed_from_outside_makes_suspects_only_the_second_time(engine: Engine) -> None:
    engine.queue(0)
    engine.take(0, 0)
    engine.suspects.empty_inbox(0, SIGKILL)
    assert engine.read("work") == [0]
    assert engine.memory.attempts[0] <= 0  # may share a batch again
    engine.take(1, 0)
    engine.suspects.empty_inbox(1, SIGKILL)
    assert engine.read("work") == []
    assert engine.suspects.release(ready=2, workers=2)
    assert engine.read("work") == [0]
    engine.take(0, 0)
    engine.suspects.empty_inbox(0, SIGKILL)
    engine.suspects.release(ready=2, workers=2)
    assert engine.states(0) == [State.CRASHED]


def test_the_only_worker_retries_when_it_is_ready_again(engine: Engine) -> None:
    engine.queue(0)
    engine.take(0, 0)
    engine.suspects.empty_inbox(0, SEGFAULT)
    assert not engine.suspects.release(ready=0, workers=1)
    assert engine.suspects.release(ready=1, workers=1)
    assert engine.read("work") == [0]


def test_a_suspect_for_which_nobody_waits_is_not_retried(engine: Engine) -> None:
    engine.queue(0, 1, 2)
    engine.take(0, 0, 1, 2)
    engine.suspects.empty_inbox(0, SEGFAULT)
    engine.memory.cancelled[0] = 1
    engine.memory.deadline[1] = time.monotonic()
    engine.suspects.release(ready=0, workers=2)
    assert engine.states(0, 1, 2) == [State.SKIPPED, State.EXPIRED, State.QUEUED]
    assert engine.read("done") == [0, 1]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_suspect_that_was_queued_twice_is_left_to_the_worker_that_computes_it(
    engine: Engine, is_cancelled: bool
) -> None:
    engine.queue(0)
    engine.take(0, 0, begun=0)  # and puts it back, and is killed
    engine.suspects.empty_inbox(0, SIGKILL)
    engine.take(1, 0)
    engine.suspects.empty_inbox(1, SEGFAULT)
    engine.take(0, 0)
    engine.memory.cancelled[0] = is_cancelled
    engine.suspects.release(ready=2, workers=2)
    assert engine.states(0) == [State.RUNNING]
    assert engine.read("done") == []


def test_what_was_finished_is_reported_and_what_is_outdated_is_not(engine: Engine) -> None:
    engine.queue(0, 1)
    engine.take(0, 0, 1)
    engine.memory.state[0] = State.DONE
    engine.memory.generation[1] += 1
    engine.suspects.empty_inbox(0, SEGFAULT)
    assert engine.read("done") == [0]
    assert not engine.suspects.release(ready=2, workers=2)
    assert not any(engine.memory.inbox[0][:1])

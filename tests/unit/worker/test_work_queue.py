"""`smallplates.worker.queue.WorkQueue`: what a worker takes, and in which order."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from smallplates.engine.memory import RECORD_BYTES, Memory, record, slot_of
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.worker.queue import WorkQueue, count_records
from tests.unit.engine.conftest import LAYOUT


class Pipes:
    """A worker's ends and ours."""

    def __init__(self) -> None:
        self.pairs = [os.pipe() for _ in range(3)]  # interactive, bulk, control
        for reader, _ in self.pairs[:2]:
            os.set_blocking(reader, False)

    def queue(self, memory: Memory, cap: int, **settings: object) -> WorkQueue:
        """Worker 1's."""
        interactive, bulk, control = self.pairs
        chosen = Settings.model_validate(settings)
        queue = WorkQueue(memory, 1, (interactive, bulk), control[0], chosen)
        queue.cap = cap
        return queue

    def put(self, *slots: int, bulk: bool = False) -> None:
        """Queues generation 1 of these slots."""
        for slot in slots:
            os.write(self.pairs[bulk][1], record(slot, 1).to_bytes(RECORD_BYTES, "little"))

    def close(self) -> None:
        for pair in self.pairs:
            for fd in pair:
                os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


@pytest.mark.parametrize("bulk", [False, True])
def test_of_items_that_are_padded_a_worker_takes_all_and_gives_back_what_it_leaves(
    pipes: Pipes, bulk: bool
) -> None:
    signature = Signature("t", (TensorSpec("x", "int64", ("n",)),), (), limits={"n": 8}, pads=True)
    memory = Memory.create(replace(LAYOUT, slots=30, max_batch=4, signatures=(signature,)))
    memory.bulk[:] = memoryview(bytes([bulk]) * 30).cast("b")
    queue = pipes.queue(memory, 4)
    pipes.put(*range(9), bulk=bulk)
    taken = queue.take() or []
    assert [slot_of(value) for value in taken] == list(range(9))
    with queue.turn():
        queue.give_back(taken[1:3] + taken[5:])
    assert sorted(filter(None, memory.inbox[1].tolist())) == [taken[0], *taken[3:5]]
    queue.clear()
    assert queue.take() == taken[1:3] + taken[5:]
    memory.close()


def test_a_worker_takes_what_waits_up_to_a_full_batch(memory: Memory, pipes: Pipes) -> None:
    queue = pipes.queue(memory, cap=3)
    pipes.put(0, 1, 2, 3)
    assert [slot_of(value) for value in queue.take() or []] == [0, 1, 2]
    assert [slot_of(value) for value in memory.inbox[1].tolist() if value] == [0, 1, 2]
    queue.clear()
    assert not any(memory.inbox[1])
    assert [slot_of(value) for value in queue.take() or []] == [3]


def test_a_second_batch_is_taken_beside_the_first(memory: Memory, pipes: Pipes) -> None:
    queue = pipes.queue(memory, cap=2)

    def inbox() -> list[int]:
        return [slot_of(value) for value in memory.inbox[1].tolist() if value]

    pipes.put(0, 1, 2, 3, 4)
    assert [slot_of(value) for value in queue.take() or []] == [0, 1]
    queue.swap_halves()
    assert [slot_of(value) for value in queue.take(wait=False) or []] == [2, 3]
    assert inbox() == [0, 1, 2, 3]
    queue.swap_halves()  # the first has been reported
    assert inbox() == [2, 3]
    assert [slot_of(value) for value in queue.take(wait=False) or []] == [4]
    assert sorted(inbox()) == [2, 3, 4]
    queue.swap_halves()
    assert inbox() == [4]
    assert queue.take(wait=False) == []
    queue.clear()
    assert inbox() == []


def test_bulk_waits_for_interactive(memory: Memory, pipes: Pipes) -> None:
    queue = pipes.queue(memory, cap=4)
    pipes.put(0, 1, bulk=True)
    pipes.put(2)
    assert [slot_of(value) for value in queue.take() or []] == [2]
    queue.clear()
    assert [slot_of(value) for value in queue.take() or []] == [0, 1]


@pytest.mark.parametrize(("waiting", "taken"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (7, 4)])
def test_preferred_sizes_are_taken_first(memory: Memory, pipes: Pipes, waiting: int, taken: int) -> None:
    queue = pipes.queue(memory, cap=8, preferred_batch_sizes=[2, 4])
    pipes.put(*range(waiting))
    assert len(queue.take() or []) == taken
    assert count_records(pipes.pairs[0][0]) == waiting - taken


def test_the_delay_counts_from_the_first_items_arrival(memory: Memory, pipes: Pipes) -> None:
    queue = pipes.queue(memory, cap=8, max_queue_delay_us=10_000_000)
    memory.queued_at[5] = time.monotonic() - 11  # it has waited long enough already
    pipes.put(5)
    assert [slot_of(value) for value in queue.take() or []] == [5]


def test_the_queue_ends_with_its_control_pipe(memory: Memory, pipes: Pipes) -> None:
    queue = pipes.queue(memory, cap=1)
    os.write(pipes.pairs[2][1], b"?")
    os.close(pipes.pairs[2][1])
    assert queue.take() is None
    assert memory.heartbeat[1] > 0  # the question before the end was answered
    pipes.pairs[2] = (pipes.pairs[2][0], os.dup(pipes.pairs[2][0]))

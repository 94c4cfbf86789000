"""A worker that is killed at any instruction while it claims a batch and computes it loses no item."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from smallplates.engine.memory import Memory, SlotLayout, State, record, send
from smallplates.models.tensors import Array, Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.supervision.suspects import Suspects
from smallplates.supervision.worker_process import managed_pipe
from smallplates.worker.process import Worker
from tests import killing
from tests.unit.engine.conftest import worker_args

LENGTHS = (9, 3, 8, 3)
SHARING = {"compute_one", "take", "_read", "_claim", "mark", "give_back", "_write", "report"}
"""Functions between whose lines other processes may see what has changed."""

TEXT = Signature(
    "text",
    (TensorSpec("ids", "int64", ("n",)),),
    (TensorSpec("sum", "int64", ()),),
    limits={"n": 10},
    pads=True,
)
LAYOUT = SlotLayout(slots=8, web_processes=1, workers=2, max_batch=4, signatures=(TEXT,))


class Sums:
    """A backend that answers with the sums of its inputs."""

    def infer(self, _: Signature, inputs: list[Array]) -> list[Array]:
        return [inputs[0].sum(axis=1)]


class Engine:
    """Shared memory and pipes with texts of two lengths in the queue, and workers of them."""

    def __init__(self, held: ExitStack) -> None:
        self.memory = Memory.create(LAYOUT)
        held.callback(self.memory.close)
        self._work, self._bulk, self._done, self._control = (managed_pipe(held, 16) for _ in range(4))
        for reader in (self._work[0], self._bulk[0], self._done[0]):
            os.set_blocking(reader, False)
        self.memory.max_batch_elements[0] = 100
        self.memory.serving_workers[0] = 1
        for slot, length in enumerate(LENGTHS):
            self.memory.write_inputs(slot, 0, [np.full(length, slot)])
            self.memory.generation[slot] = 1
            self.memory.deadline[slot] = time.monotonic() + 60
            self.memory.queued_at[slot] = slot
            self.memory.state[slot] = State.QUEUED
            send(self._work[1], record(slot, 1))

    def worker(self, index: int) -> Worker:
        """A worker in this process, with a backend."""
        args = worker_args(
            self.memory,
            index=index,
            work_pipes=(self._work, self._bulk),
            done_fds=(self._done[1],),
            control_fd=self._control[0],
        )
        worker = Worker(args, Settings())
        worker._executor.backend = Sums()  # type: ignore[assignment]  # all that is called of one
        worker._executor.open(4)
        return worker

    def recover(self, index: int) -> Suspects:
        """Does what the supervisor does at once for a worker that was killed."""
        suspects = Suspects(self.memory, (self._work[1], self._bulk[1]), (self._done[1],))
        suspects.empty_inbox(index, is_killed=True)
        return suspects

    def check_answers(self) -> None:
        """Checks that every text has been reported, with its answer."""
        values = memoryview(os.read(self._done[0], 4096)).cast("Q").tolist()
        assert set(values) == {record(slot, 1) for slot in range(len(LENGTHS))}
        for slot, length in enumerate(LENGTHS):
            assert self.memory.state[slot] == State.DONE
            assert self.memory.read_outputs(slot)[0] == slot * length


@contextmanager
def engine() -> Iterator[Engine]:
    with ExitStack() as held:
        yield Engine(held)


def compute_one(worker: Worker) -> int:
    taken = worker._queue.take(wait=False) or []
    worker._compute(taken, None)
    worker._queue.clear()
    return len(taken)


def test_whenever_a_worker_is_killed_another_one_computes_what_it_had_taken() -> None:
    lines, code = 0, 1
    while code:
        with engine() as shared:
            worker, other = shared.worker(0), shared.worker(1)
            if not (child := os.fork()):
                killing.after(lines, SHARING)
                compute_one(worker)
                os._exit(0)
            _, code = os.waitpid(child, 0)
            suspects = shared.recover(0)
            while suspects.release(ready=2, workers=2) or compute_one(other):
                compute_one(other)
            shared.check_answers()
        lines += 1
    assert lines > 40


def test_a_text_that_was_returned_and_taken_by_another_worker_stays_with_it() -> None:
    with engine() as shared:
        worker = shared.worker(1)
        taken = worker._queue.take(wait=False) or []
        slots = worker._claim(taken)
        for place, value in enumerate(taken):  # as if worker 0 had returned them and died at once
            shared.memory.inbox[0][place] = value
        shared.recover(0)
        assert {State(shared.memory.state[slot]) for slot in slots} == {State.RUNNING}
        assert not set(worker._claim(worker._queue.take(wait=False) or [])) & set(slots)

"""The engine's parts that need no processes: records, layout, the work queue, the choice of a cap."""

import errno
import os
import subprocess
import sys
import tempfile
import time
from array import array as array_of
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.backends import batch_sizes
from serving.engine import scratch, warmup, worker_process
from serving.engine.executor import FIRST_INTERVAL, MAX_INTERVAL, SAMPLES, AllCoresTrial
from serving.engine.memory import (
    RECORD_BYTES,
    Memory,
    SlotLayout,
    State,
    generation_of,
    record,
    slot_of,
)
from serving.engine.queue import WorkQueue, waiting_records
from serving.engine.worker_args import WorkerArgs
from serving.engine.worker_process import WorkerProcess, describe_exit
from serving.errors import ConfigurationError
from serving.settings import Settings
from serving.system import cpus
from serving.tasks.image_classification import image_signatures
from serving.tensors import Array, Signature, TensorSpec

LAYOUT = SlotLayout(
    slots=12, frontends=3, workers=2, max_batch=8, signatures=image_signatures((5, 7), 11)
)
IMAGES = LAYOUT.signatures[0]


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A mapping of its own."""
    mapping = Memory.create(LAYOUT)
    yield mapping
    mapping.close()


class Pipes:
    """A worker's ends and ours."""

    def __init__(self) -> None:
        self.pairs = [os.pipe() for _ in range(3)]  # interactive, bulk, control
        for reader, _ in self.pairs[:2]:
            os.set_blocking(reader, False)

    def queue(self, memory: Memory, cap: int, **settings: object) -> WorkQueue:
        """Worker 1's."""
        fds = self.pairs[0][0], self.pairs[1][0]
        chosen = Settings.model_validate(settings)
        queue = WorkQueue(memory, 1, fds, self.pairs[2][0], chosen)
        queue.cap = cap
        return queue

    def put(self, *slots: int, bulk: bool = False) -> None:
        """Queues generation 1 of these slots."""
        for slot in slots:
            os.write(self.pairs[bulk][1], record(slot, 1).to_bytes(RECORD_BYTES, "little"))

    def close(self) -> None:
        """All six."""
        for pair in self.pairs:
            for fd in pair:
                os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    """Three pipes."""
    made = Pipes()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("waiting", "ready", "bulk", "taken"),
    [(5, 2, False, 3), (9, 1, False, 8), (9, 1, True, 4), (1, 2, False, 1)],
)
def test_of_items_that_are_padded_a_worker_takes_its_share_for_two_batches(
    pipes: Pipes, waiting: int, ready: int, bulk: bool, taken: int
) -> None:
    signature = Signature("t", (TensorSpec("x", "int64", ("n",)),), (), limits={"n": 8}, pads=True)
    memory = Memory.create(replace(LAYOUT, max_batch=4, signatures=(signature,)))
    memory.ready_workers[0] = ready
    pipes.put(*range(waiting), bulk=bulk)
    assert len(pipes.queue(memory, 4).take() or []) == taken
    memory.close()


@pytest.mark.parametrize(("slot", "generation"), [(0, 0), (0, 1), (4095, 0x7FFFFFFF), (7, 12)])
def test_a_record_holds_slot_and_generation_and_is_never_zero(slot: int, generation: int) -> None:
    value = record(slot, generation)
    assert 0 < value < 2**64
    assert (slot_of(value), generation_of(value)) == (slot, generation)


def test_arrays_do_not_overlap(memory: Memory) -> None:
    arrays = {name: array for name, array in vars(memory).items() if isinstance(array, memoryview)}
    arrays = {name: array for name, array in arrays.items() if not name.startswith("_")}
    for place, array in enumerate(arrays.values(), start=1):
        for index in range(len(array)):
            array[index] = place
    rows = [row for rows in memory.statistics for row in rows]
    for row in rows:
        row[:] = array_of("q", [99] * len(row))
    tensors = [tensor.array for each in memory.signatures for tensor in (*each.inputs, *each.outputs)]
    for number, tensor in enumerate(tensors, start=100):
        tensor[:] = number
    memory.sizes[:] = 98
    for place, (name, array) in enumerate(arrays.items(), start=1):
        assert set(array.tolist()) == {place}, name
    assert all(set(row.tolist()) == {99} for row in rows)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors, start=100))
    assert (memory.sizes == 98).all()
    assert [tensor.shape for tensor in tensors[:3]] == [(12, 5, 7, 3), (12, 11), (12, 3, 5, 7)]
    assert [memory.owner(slot) for slot in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_another_mapping_of_the_same_descriptor_sees_the_same(memory: Memory) -> None:
    other = Memory(os.dup(memory.fd), LAYOUT)
    memory.state[3] = State.DONE
    memory.signatures[0].inputs[0].array[3] = 9
    assert other.state[3] == State.DONE
    assert (other.signatures[0].inputs[0].array[3] == 9).all()
    other.close()


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
    assert waiting_records(pipes.pairs[0][0]) == waiting - taken


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


@pytest.mark.parametrize(
    ("profile", "cap"),
    [
        ({1: 5.0, 2: 10.0, 4: 20.0}, 1),
        ({1: 5.0, 2: 9.6, 4: 19.2}, 1),  # 4 % more throughput is not worth it
        ({1: 5.0, 2: 9.0, 4: 18.0}, 2),
        ({1: 4.4, 2: 7.5, 4: 13.6, 8: 25.0}, 8),
        ({1: 2.0, 8: 2.5, 64: 4.0}, 64),
    ],
)
def test_the_cap_is_the_smallest_size_that_is_nearly_best(profile: dict[int, float], cap: int) -> None:
    assert warmup.choose_cap(Settings(), profile) == cap
    assert warmup.choose_cap(Settings(max_batch_size=3), profile) == 3


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([4.4, 3.8, 3.4, 3.1], True),
        ([4.4, 4.5, 5.1, 5.5], True),
        ([4.4, 3.8, 3.9, 3.8], True),  # within what a repetition differs by
        ([4.9, 5.95, 5.2, 4.86], False),
        ([4.4, 3.1, 3.8, 3.3], False),
        ([4.4], True),
    ],
)
def test_a_disturbed_profile_is_known_by_its_shape(seconds: list[float], expected: bool) -> None:
    assert warmup.is_undisturbed(seconds) is expected


def test_what_disturbs_warm_up_for_a_while_does_not_choose_the_cap() -> None:
    class Disturbed:
        calls = 0

        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            (batch,) = inputs
            self.calls += len(batch) == 2
            time.sleep(0.08 if len(batch) == 2 and self.calls <= warmup.MIN_ROUNDS else 0.002)
            return [np.zeros((len(batch), 11), np.float32)]

    profile = warmup.measure(Disturbed(), IMAGES, [1, 2, 4])  # type: ignore[arg-type]
    assert profile[2] < 80
    assert warmup.choose_cap(Settings(), profile) == 4


def test_every_power_of_two_and_the_largest_are_run() -> None:
    assert batch_sizes.sizes(Settings(), "cpu") == [1, 2, 4, 8]
    assert batch_sizes.sizes(Settings(), "cuda:0")[-1] == 64
    assert batch_sizes.sizes(Settings(max_batch_size=6), "cpu") == [1, 2, 4, 6]
    assert batch_sizes.sizes(Settings(), "cpu", 2) == [1, 2]


def test_measuring_needs_outputs_of_the_right_shape() -> None:
    class Wrong:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            return [np.zeros((len(inputs[0]), 3), np.float32)]

    with pytest.raises(
        ConfigurationError, match=r"\[1, 3\], not .* \[1, 11\]: model\.json has 11 labels"
    ):
        warmup.measure(Wrong(), IMAGES, [1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("most", "words"), [(1, "SERVING_MAX_BATCH_SIZE=1"), (0, "cannot compute an input"), (4, "finite")]
)
def test_warm_up_says_what_a_model_cannot(most: int, words: str) -> None:
    class Limited:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            (batch,) = inputs
            if len(batch) > most:
                raise RuntimeError("a reason\nof many\nlines")
            return [np.full((len(batch), 11), 1.0 if most == 1 else np.nan, np.float32)]

    with pytest.raises(ConfigurationError, match=words) as caught:
        warmup.measure(Limited(), IMAGES, [1, 2])  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def played(cores: AllCoresTrial, few_s: float, all_s: float, pictures: int) -> list[bool]:
    """Lets it choose for so many pictures that take these times; returns its choices."""
    choices = []
    for _ in range(pictures):
        choices.append(cores.use_all_cores())
        cores.record(choices[-1], all_s if choices[-1] else few_s)
    return choices


def test_all_cores_are_taken_where_they_pay_and_only_there() -> None:
    faster, slower = AllCoresTrial(), AllCoresTrial()
    assert sum(played(faster, 8.0, 5.0, 2 * SAMPLES)) == SAMPLES  # both are known first
    assert sum(played(slower, 8.0, 7.5, 2 * SAMPLES)) == SAMPLES
    assert played(faster, 8.0, 5.0, 4 * MAX_INTERVAL).count(False) < 10
    assert played(slower, 8.0, 7.5, 4 * MAX_INTERVAL).count(True) < 10
    assert played(faster, 8.0, 5.0, MAX_INTERVAL).count(False) == 1
    assert played(slower, 8.0, 7.5, MAX_INTERVAL).count(True) == 1


def test_the_choice_follows_the_machine() -> None:
    cores = AllCoresTrial()
    played(cores, 8.0, 5.0, 10 * MAX_INTERVAL)
    played(cores, 8.0, 16.0, SAMPLES + 1)  # somebody else has the other core now
    assert not any(played(cores, 8.0, 16.0, FIRST_INTERVAL - 2))
    played(cores, 8.0, 5.0, 2)  # and has gone soon
    assert all(played(cores, 8.0, 5.0, FIRST_INTERVAL - 2))
    played(cores, 8.0, 16.0, 10 * MAX_INTERVAL)
    assert sum(played(cores, 8.0, 16.0, MAX_INTERVAL)) == 1
    played(cores, 8.0, 5.0, MAX_INTERVAL)  # and has gone at last
    assert played(cores, 8.0, 5.0, MAX_INTERVAL).count(False) < 6


def test_scratch_of_a_killed_service_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"{scratch.PREFIX}{dead.pid}-abc"
    (left / "weights").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    running = scratch.create()
    second = scratch.create()
    assert running
    assert second
    assert running.is_dir()
    assert not left.exists()
    assert other.is_dir()
    scratch.remove(running)
    assert not running.exists()


def test_without_a_place_to_write_there_is_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert scratch.create() is None
    scratch.remove(None)


@pytest.fixture
def place() -> Iterator[WorkerProcess]:
    """With a program that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as popen:
        yield WorkerProcess(index=0, gpu=0, popen=popen)
        popen.kill()


def test_a_worker_counts_as_hung_at_a_second_look_only(place: WorkerProcess) -> None:
    assert not place.is_hung(True, 100.0, 0.5)  # all processes may just have been paused
    assert not place.is_hung(True, 100.2, 0.5)
    assert not place.is_hung(False, 100.4, 0.5)
    assert not place.is_hung(True, 100.6, 0.5)
    assert place.is_hung(True, 101.2 + 60, 0.5)  # it may have waited for a core, but not for a minute


def test_a_worker_that_gets_no_core_does_not_count_as_hung(
    place: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = {1: 5.0, 2: 7.0}
    monkeypatch.setattr("serving.system.cpus.core_wait_s", lambda _: dict(waited))
    assert not place.is_hung(True, 100.0, 0.5)
    waited |= {1: 5.9, 3: 8.0}  # the third one has just begun
    assert not place.is_hung(True, 101.0, 0.5)
    assert place.is_hung(True, 101.5, 0.5)


def test_the_wait_for_a_core_is_known(place: WorkerProcess) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count it")
    assert place.popen
    assert set(cpus.core_wait_s(place.popen.pid)) == {place.popen.pid}
    place.popen.kill()
    place.popen.wait()
    assert cpus.core_wait_s(place.popen.pid) == {}


@pytest.mark.parametrize("delay_us", [0, 500_000])
def test_a_worker_that_waits_for_a_full_batch_does_not_hang(delay_us: int) -> None:
    for timeout_ms, least in ((100, 0.1), ("auto", worker_process.MIN_HANG_LIMIT_S)):
        values = {"worker_timeout_ms": timeout_ms, "max_queue_delay_us": delay_us}
        settings = Settings.model_validate(values)
        assert worker_process.hang_limit(settings, {}) == pytest.approx(least + delay_us / 1e6)


@pytest.mark.parametrize("pipes_that_open", [1, 2])
def test_a_worker_that_cannot_be_started_leaves_no_descriptor(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, pipes_that_open: int
) -> None:
    opened: list[tuple[int, int]] = []

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    def pipe(_: int) -> tuple[int, int]:
        if len(opened) == pipes_that_open:
            refused()
        opened.append(os.pipe())
        return opened[-1]

    monkeypatch.setattr(worker_process, "pipe", pipe)
    monkeypatch.setattr(subprocess, "Popen", refused)
    arguments = WorkerArgs(
        index=0,
        parent=os.getpid(),
        backend="no:Backend",
        model_dir="",
        version="1",
        scratch=None,
        gpu=0,
        device="cpu",
        layout=LAYOUT,
        memory_fd=memory.fd,
        work_fds=(0, 0),
        done_fds=(),
    )
    with pytest.raises(OSError, match="too many"):
        worker_process.WorkerProcess(0, 0).start(arguments)
    for fd in (fd for ends in opened for fd in ends):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize(
    ("program", "said"),
    [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "want of memory")],
)
def test_how_a_worker_ended_is_said_in_words(program: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program])
    assert said in describe_exit(done.returncode)

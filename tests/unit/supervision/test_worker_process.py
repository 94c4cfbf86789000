"""`smallplates.supervision.worker_process`: when a worker counts as hung, and how its end is
described.
"""

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import structlog
from structlog.testing import capture_logs

from smallplates.engine.memory import Memory
from smallplates.settings import Settings
from smallplates.supervision import worker_process
from smallplates.supervision.worker_process import WorkerProcess, describe_exit
from smallplates.system import cpus
from tests.servers import wait_for
from tests.unit.engine.conftest import worker_args


@pytest.fixture
def place() -> Iterator[WorkerProcess]:
    """With a program that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as popen:
        yield WorkerProcess(index=0, gpu=0, popen=popen)
        popen.kill()


def test_a_worker_counts_as_hung_at_a_second_look_only(
    place: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smallplates.system.cpus.thread_times", lambda _: {})
    assert not place.is_hung(True, 100.0, 0.5)  # all processes may just have been paused
    assert not place.is_hung(True, 100.2, 0.5)
    assert not place.is_hung(False, 100.4, 0.5)
    assert not place.is_hung(True, 100.6, 0.5)
    assert place.is_hung(True, 101.2, 0.5)


def test_a_worker_that_gets_no_core_does_not_count_as_hung(
    place: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(**threads: tuple[float, float, bool]) -> None:
        by_id = {int(name[1:]): cpus.ThreadTimes(*values) for name, values in threads.items()}
        monkeypatch.setattr("smallplates.system.cpus.thread_times", lambda _: by_id)

    times(t1=(0, 5.0, False), t2=(0, 7.0, False))
    assert not place.is_hung(True, 100.0, 0.5)
    times(t1=(0, 5.9, False), t2=(0, 7.0, False), t3=(0, 8.0, True))  # the third one has just begun
    assert not place.is_hung(True, 101.0, 0.5)
    assert place.is_hung(True, 101.5, 0.5)
    times(t1=(0.1, 5.0, True), t2=(0, 7.0, False))  # still in its wait, which is not counted yet
    assert not place.is_hung(True, 101.5, 0.5)
    times(t1=(1.5, 5.0, True), t2=(0, 7.0, False))  # it has a core, and does not end
    assert place.is_hung(True, 101.5, 0.5)


def test_the_times_of_threads_are_known(place: WorkerProcess) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count them")
    times = cpus.thread_times(os.getpid())[os.getpid()]
    assert times.ready
    assert times.on_core_s > 0
    program = place.popen
    assert program
    wait_for(lambda: not cpus.thread_times(program.pid)[program.pid].ready)  # it waits for input
    program.kill()
    program.wait()
    assert cpus.thread_times(program.pid) == {}


@pytest.mark.parametrize("delay_us", [0, 500_000])
def test_a_worker_that_waits_for_a_full_batch_does_not_hang(delay_us: int) -> None:
    for timeout_ms, least in ((100, 0.1), ("auto", worker_process.MIN_HANG_LIMIT_S)):
        values = {"worker_timeout_ms": timeout_ms, "max_queue_delay_us": delay_us}
        settings = Settings.model_validate(values)
        assert worker_process.hang_limit(settings, None) == pytest.approx(least + delay_us / 1e6)


@pytest.mark.parametrize(
    ("ready", "limit_s", "words"),
    [
        (True, 0.0, "exceeded SERVING_WORKER_TIMEOUT_MS"),
        (False, worker_process.LOAD_TIMEOUT_S, "did not load in time"),
    ],
)
def test_the_log_names_the_limit_of_a_worker_that_takes_too_long(
    place: WorkerProcess,
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
    ready: bool,
    limit_s: float,
    words: str,
) -> None:
    monkeypatch.setattr(worker_process, "MIN_GRACE_S", 0.0)
    monkeypatch.setattr("smallplates.system.cpus.thread_times", lambda _: {})
    place.ready, place.started_at = ready, time.monotonic() - worker_process.LOAD_TIMEOUT_S
    memory.busy_since[0] = time.monotonic() - 1
    with capture_logs() as lines:
        for _ in range(2):  # the kernel may take its time to end it
            worker_process.kill_hung([place], memory, 0.0, structlog.get_logger())
    (line,) = lines
    assert words in line["event"]
    assert line["limit_s"] == limit_s
    assert place.is_killed_as_hung


@pytest.mark.parametrize("pipes_that_open", [1, 2])
def test_a_worker_that_cannot_be_started_leaves_no_descriptor(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, pipes_that_open: int
) -> None:
    opened: list[tuple[int, int]] = []
    open_pipe = os.pipe

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    def pipe() -> tuple[int, int]:
        if len(opened) == pipes_that_open:
            refused()
        opened.append(open_pipe())
        return opened[-1]

    monkeypatch.setattr(os, "pipe", pipe)
    monkeypatch.setattr(subprocess, "Popen", refused)
    arguments = worker_args(memory, work_pipes=((0, 0), (0, 0)), done_fds=())
    with pytest.raises(OSError, match="too many"):
        worker_process.WorkerProcess(0, 0).start(arguments)
    for fd in (fd for ends in opened for fd in ends):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize(
    ("program", "said"),
    [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "memory ran out")],
)
def test_how_a_worker_ended_is_said_in_words(program: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program])
    assert said in describe_exit(done.returncode)


def test_a_worker_that_was_killed_for_its_time_limit_is_not_said_to_lack_memory(
    place: WorkerProcess,
) -> None:
    assert place.end_in_words(-signal.SIGKILL) == describe_exit(-signal.SIGKILL)
    place.is_killed_as_hung = True
    assert place.end_in_words(-signal.SIGKILL) == "was killed because it took too long"


def test_process_1_leaves_no_zombie_of_what_a_worker_has_started() -> None:
    libc, inherit_orphans = ctypes.CDLL(None), 36  # PR_SET_CHILD_SUBREAPER: as process 1 does
    libc.prctl(inherit_orphans, 1)
    try:
        program = ["sh", "-c", "sleep 1000 & echo $!; wait"]
        with subprocess.Popen(program, stdout=subprocess.PIPE, process_group=0) as popen:
            assert popen.stdout is not None
            child = int(popen.stdout.readline())
            assert worker_process.end(popen) == -signal.SIGKILL
        assert not psutil.pid_exists(child)
    finally:
        libc.prctl(inherit_orphans, 0)

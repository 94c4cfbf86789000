"""One place for a worker: its process, the pipes to it, how it has fared; for `supervisor.py`."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from serving.engine.memory import RECORD_BYTES, Memory, State, generation_of, record, send, slot_of
from serving.engine.worker_args import WorkerArgs
from serving.logging import logger
from serving.settings import Settings
from serving.system import cpus

MAX_BACKOFF_S = 10.0
FIRST_BACKOFF_S = 0.1
HEALTHY_AFTER_S = 10.0
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032  # Linux


LOAD_TIMEOUT_S = 600
LEAST_HANG_S = 3.0
HANG_BATCHES = 20  # of the slowest measured batch
LEAST_LONGER_S, LONGER_BATCHES = 0.5, 2  # and then
MAX_ATTEMPTS = 2


@dataclass
class WorkerProcess:
    """One place; `popen` changes when the worker is replaced."""

    index: int
    gpu: int
    popen: subprocess.Popen[bytes] | None = None
    status_fd: int = -1
    control_fd: int = -1
    status_buffer: bytes = b""
    ready: bool = False
    begun_at: float = 0.0
    ready_at: float = 0.0
    asked_at: float = 0.0
    """When it was last asked whether it is there."""

    stuck_since: float | None = None
    """When it was first found silent for too long; None while it is not."""

    waited: dict[int, float] = field(default_factory=dict)
    """Seconds for which its threads had waited for a core by then."""

    deaths: int = 0
    """In a row, after it had been ready; a long life resets it."""

    failed_starts: int = 0
    """In a row: it ended before it was ready."""

    start_at: float | None = 0.0
    """When it is to be started; None while it runs, or is not wanted yet."""

    def start(self, arguments: WorkerArgs) -> None:
        """Starts a worker with these arguments, its own pipes filled in. Raises OSError."""
        status = pipe(0)
        try:
            control = pipe(0)
        except OSError:  # there was a descriptor for one, but not for both
            os.close(status[0])
            os.close(status[1])
            raise
        arguments = replace(arguments, control_fd=control[0], status_fd=status[1])
        try:
            self.popen = subprocess.Popen(  # noqa: S603 our own module
                [sys.executable, "-m", "serving.engine.worker", json.dumps(asdict(arguments))],
                pass_fds=arguments.passed_fds,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
        except OSError:
            os.close(status[0])
            os.close(control[1])
            raise
        finally:
            os.close(control[0])
            os.close(status[1])
        os.set_blocking(control[1], False)
        self.status_fd, self.control_fd = status[0], control[1]
        self.status_buffer, self.ready, self.start_at, self.stuck_since = b"", False, None, None
        self.begun_at = time.monotonic()

    def send_command(self, word: bytes) -> None:
        """A word for the worker; of one that has just died will be heard."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.control_fd, word)

    def backoff(self, now: float) -> float:
        """Seconds to wait before the next start; none after a first death in service."""
        if not self.ready:
            self.failed_starts += 1
            return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self.failed_starts)
        self.deaths = 0 if now - self.ready_at > HEALTHY_AFTER_S else self.deaths + 1
        return 0.0 if self.deaths < 2 else min(1.0, FIRST_BACKOFF_S * 2.0**self.deaths)

    def is_stuck(self, silent: bool, now: float, longer_s: float) -> bool:
        """Whether it is `silent` at two looks, `longer_s` apart: after a pause of all, all are at one.

        Time in which it waits for a core does not count: beside busy programs a worker gets little.
        """
        assert self.popen is not None  # noqa: S101 it runs
        if not silent:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since, self.waited = now, cpus.waited(self.popen.pid)
        if now - self.stuck_since < longer_s:
            return False
        now_waited = cpus.waited(self.popen.pid).items()
        waits = [seconds - self.waited.get(thread, seconds) for thread, seconds in now_waited]
        return now - self.stuck_since - max(waits, default=0.0) >= longer_s

    def heartbeat_age(self, memory: Memory, now: float) -> float:
        """Seconds for which it computes one batch, or, idle, leaves a question unanswered."""
        if busy_since := memory.busy_since[self.index]:
            return now - float(busy_since)
        if self.asked_at > memory.seen[self.index]:
            return now - self.asked_at
        self.asked_at = now
        self.send_command(b"?")
        return 0.0


def hang_limit(settings: Settings, profile: Mapping[str, Any]) -> float:
    """Seconds after which a worker that gathers and computes one batch counts as hung.

    `profile` is what the first ready worker has told, or empty.
    """
    delay = settings.max_queue_delay_us / 1e6
    if settings.worker_timeout_ms != "auto":
        return settings.worker_timeout_ms / 1000 + delay
    slowest: float = max(profile.get("batch_ms", {"1": 0.0}).values()) / 1000
    return max(LEAST_HANG_S, HANG_BATCHES * slowest) + delay


def kill_silent(processes: Iterable[WorkerProcess], memory: Memory, limit_s: float) -> None:
    """Kills workers that have stopped answering or never get ready; their pipe tells of the end."""
    now = time.monotonic()
    longer_s = max(LEAST_LONGER_S, limit_s * LONGER_BATCHES / HANG_BATCHES)
    for process in processes:
        if process.popen is None:
            continue
        if process.ready:
            stuck = process.is_stuck(process.heartbeat_age(memory, now) > limit_s, now, longer_s)
        else:
            stuck = now - process.begun_at > LOAD_TIMEOUT_S
        if stuck:
            logger().error("an inference worker does not answer", worker=process.index)
            process.popen.kill()


def end_all(processes: Iterable[WorkerProcess], limit_s: float) -> None:
    """A worker that computes may finish its batch; none outlives `limit_s` seconds."""
    running = [(process, process.popen) for process in processes if process.popen]
    for process, _ in running:
        os.close(process.control_fd)
    end = time.monotonic() + limit_s
    for process, popen in running:
        if not process.ready:
            popen.kill()
        try:
            popen.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        os.close(process.status_fd)


def requeue_inflight(
    memory: Memory, index: int, work_fds: tuple[int, int], done_fds: tuple[int, ...]
) -> None:
    """The worker's inbox: finished items are reported, the others are queued once more.

    `work_fds` and `done_fds` are the ends to write. Who was computed by two workers that died is
    given up.
    """
    inbox = memory.inbox[index]
    for place, value in enumerate(inbox.tolist()):
        slot = slot_of(value)
        if not value or memory.generation[slot] != generation_of(value):
            continue
        inbox[place] = 0
        state = memory.state[slot]
        if state == State.RUNNING and memory.attempts[slot] >= MAX_ATTEMPTS:
            memory.state[slot] = state = State.CRASHED
        if state in (State.QUEUED, State.RUNNING):
            memory.state[slot] = State.QUEUED
            send(work_fds[memory.bulk[slot]], value)
        elif state != State.FREE:
            send(done_fds[memory.owner(slot)], record(slot, memory.generation[slot]))


def ending(code: int) -> str:
    """How a process ended, in words; where memory is short, the kernel kills what has most of it."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL, most likely for want of memory"
    return f"was ended by signal {-code}"


def pipe(records: int) -> tuple[int, int]:
    """(reader, writer) of a pipe that holds so many records."""
    reader, writer = os.pipe()
    if sys.platform == "linux":
        needed = 2 * records * RECORD_BYTES
        if fcntl.fcntl(writer, F_GETPIPE_SZ) < needed:
            fcntl.fcntl(writer, F_SETPIPE_SZ, needed)
    return reader, writer


def held_pipe(held: contextlib.ExitStack, records: int) -> tuple[int, int]:
    """The same, until `held` closes both. Raises OSError."""
    ends = pipe(records)
    for fd in ends:
        held.callback(os.close, fd)
    return ends

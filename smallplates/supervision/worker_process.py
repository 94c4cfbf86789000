"""Worker process as the supervisor sees it: start, pipes, heartbeat, restarts.

Called by `supervisor.py` on the supervisor's thread.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from structlog.typing import FilteringBoundLogger

from smallplates.engine.memory import RECORD_BYTES, Memory, anonymous_file
from smallplates.engine.report import WorkerReport
from smallplates.engine.worker_args import REFRESH_HEARTBEAT, WorkerArgs
from smallplates.settings import Settings
from smallplates.system import cpus, python

FIRST_BACKOFF_S, MAX_BACKOFF_S, MAX_CRASH_BACKOFF_S = 0.1, 10.0, 1.0
HEALTHY_AFTER_S = 10.0
STARTS_IF_KILLED = 3  # of a process that SIGKILL ends before it is ready: others may have sent it

LOAD_TIMEOUT_S = 600
MIN_HANG_LIMIT_S, HANG_LIMIT_BATCHES = 3.0, 20  # in times of the slowest measured batch
MIN_GRACE_S, GRACE_BATCHES = 0.5, 2  # time between the two checks that must both find a worker hung


@dataclass
class WorkerProcess:
    """One worker's place in the engine; `popen` changes when the worker is replaced."""

    index: int
    gpu: int
    popen: subprocess.Popen[bytes] | None = None
    status_fd: int = -1
    control_fd: int = -1
    status_buffer: bytes = b""
    ready: bool = False
    serving: bool = False
    """Whether it takes batches; a ready worker that does not stands by."""

    started_at: float = 0.0
    ready_at: float = 0.0
    heartbeat_asked_at: float = 0.0
    hung_since: float | None = None
    """Time of the first check that found the heartbeat too old; None while the heartbeat is fresh."""

    is_killed_as_hung: bool = False
    """Whether `kill_hung` has killed it."""

    thread_times: dict[int, cpus.ThreadTimes] = field(default_factory=dict)
    """Times of its threads at `hung_since`."""

    crashes: int = 0
    """Consecutive deaths after becoming ready; reset after 10 seconds of being ready."""

    failed_starts: int = 0
    """Consecutive deaths before becoming ready."""

    has_failed: bool = False
    """Whether the last of `failed_starts` was its own fault, or SIGKILL has ended too many of them."""

    error: str | None = None
    """Why it cannot load the model, as it has reported."""

    start_at: float | None = 0.0
    """Time of the next start; None while the worker runs, or until it is needed; infinite while it is
    asleep."""

    @property
    def is_wanted(self) -> bool:
        """Whether it runs or will be started; with `auto`, not all do on a GPU."""
        return self.popen is not None or self.start_at is not None

    def start(self, args: WorkerArgs) -> None:
        """Starts a worker with `args` and new control and status pipes. Raises OSError."""
        with contextlib.ExitStack() as workers_ends, contextlib.ExitStack() as own_ends:
            status = os.pipe()
            own_ends.callback(os.close, status[0])
            workers_ends.callback(os.close, status[1])
            control = os.pipe()
            own_ends.callback(os.close, control[1])
            workers_ends.callback(os.close, control[0])
            args = replace(args, control_fd=control[0], status_fd=status[1])
            text = json.dumps(asdict(args)).encode()  # may be longer than an argument may be
            file = anonymous_file(len(text))
            workers_ends.callback(os.close, file)
            os.pwrite(file, text, 0)
            self.popen = subprocess.Popen(  # noqa: S603 our own module
                python.command("smallplates.worker.process", args.model_dir),  # for `ps`
                pass_fds=args.fds,
                stdin=file,
                env=python.environment(),
                process_group=0,  # see `end`
            )
            own_ends.pop_all()
        os.set_blocking(control[1], False)
        self.status_fd, self.control_fd = status[0], control[1]
        self.status_buffer, self.ready, self.start_at, self.hung_since = b"", False, None, None
        self.error = None
        self.is_killed_as_hung = self.serving = False
        self.started_at = time.monotonic()

    def send_command(self, command: bytes) -> None:
        """Writes to the control pipe. Ignores a dead worker: the status pipe reports its exit."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.control_fd, command)

    def backoff(self, now: float) -> float:
        """Counts a death and returns the seconds until the next start; 0 after the first crash."""
        if not self.ready:
            self.failed_starts += 1
            return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self.failed_starts)
        self.crashes = 0 if now - self.ready_at > HEALTHY_AFTER_S else self.crashes + 1
        if self.crashes < 2:
            return 0.0
        return min(MAX_CRASH_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self.crashes)

    def is_hung(self, heartbeat_is_old: bool, now: float, grace_s: float) -> bool:
        """Returns whether two checks, `grace_s` seconds apart, both found the heartbeat too old.

        One check is not enough: after a pause of the whole machine every heartbeat is old. Time that the
        worker spends waiting for a core does not count, since busy programs may leave it little.
        """
        assert self.popen is not None  # noqa: S101 it runs
        if not heartbeat_is_old:
            self.hung_since = None
            return False
        if self.hung_since is None:
            self.hung_since, self.thread_times = now, cpus.thread_times(self.popen.pid)
        seconds = now - self.hung_since
        if seconds < grace_s:
            return False
        return seconds - cpus.core_wait_s(self.popen.pid, self.thread_times, seconds) >= grace_s

    def end_in_words(self, code: int) -> str:
        """Describes how it ended, with this exit code."""
        if self.is_killed_as_hung:
            return "was killed because it took too long"
        return describe_exit(code)

    def heartbeat_age(self, memory: Memory, now: float) -> float:
        """Returns how long, in seconds, it has computed one batch or, if idle, has owed a heartbeat.

        Asks an idle worker for a heartbeat.
        """
        if busy_since := memory.busy_since[self.index]:
            return now - float(busy_since)
        if self.heartbeat_asked_at > memory.heartbeat[self.index]:
            return now - self.heartbeat_asked_at
        self.heartbeat_asked_at = now
        self.send_command(REFRESH_HEARTBEAT)
        return 0.0


def hang_limit(settings: Settings, report: WorkerReport | None) -> float:
    """Returns the seconds for gathering and computing one batch after which a worker counts as hung.

    `report` is the first ready worker's report, or None before there is one.
    """
    delay = settings.max_queue_delay_us / 1e6
    if settings.worker_timeout_ms != "auto":
        return settings.worker_timeout_ms / 1000 + delay
    slowest_ms = report.slowest_ms if report else 0.0
    return max(MIN_HANG_LIMIT_S, HANG_LIMIT_BATCHES * slowest_ms / 1000) + delay


def kill_hung(
    processes: Iterable[WorkerProcess], memory: Memory, limit_s: float, log: FilteringBoundLogger
) -> None:
    """Kills hung workers and workers that take too long to load; the status pipe reports their exit."""
    now = time.monotonic()
    grace_s = max(MIN_GRACE_S, limit_s * GRACE_BATCHES / HANG_LIMIT_BATCHES)
    for process in processes:
        if process.popen is None or process.is_killed_as_hung:
            continue
        if process.ready:
            event, limit = "an inference worker exceeded SERVING_WORKER_TIMEOUT_MS", limit_s
            hung = process.is_hung(process.heartbeat_age(memory, now) > limit_s, now, grace_s)
        else:
            event, limit = "an inference worker did not load in time", LOAD_TIMEOUT_S
            hung = now - process.started_at > limit
        if hung:
            log.error(event, worker=process.index, limit_s=limit)
            process.is_killed_as_hung = True
            process.popen.kill()


def stop_all(processes: Iterable[WorkerProcess], limit_s: float) -> None:
    """Lets every worker finish its batch and exit; kills those still running after `limit_s` seconds."""
    pairs = [(process, process.popen) for process in processes if process.popen]
    for process, _ in pairs:
        os.close(process.control_fd)
    deadline = time.monotonic() + limit_s
    for process, popen in pairs:
        if not process.ready:
            popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(max(0.0, deadline - time.monotonic()))
        end(popen)
        os.close(process.status_fd)


def end(popen: subprocess.Popen[bytes]) -> int:
    """Kills a worker, and the processes that a Python class has started; returns its exit code."""
    popen.kill()
    code = popen.wait()
    with contextlib.suppress(OSError):  # there is none left
        os.killpg(popen.pid, signal.SIGKILL)
        while True:  # process 1 of a container inherits them; others have no such children
            os.waitpid(-popen.pid, 0)
    return code


def describe_exit(code: int) -> str:
    """Describes how a process ended; SIGKILL mostly comes from the kernel when memory runs out."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL, most likely because memory ran out"
    return f"was ended by signal {-code}"


def managed_pipe(stack: contextlib.ExitStack, records: int) -> tuple[int, int]:
    """Returns (reader, writer) of a pipe with room for `records` records, closed by the stack.

    Raises OSError.
    """
    reader, writer = os.pipe()
    for fd in (reader, writer):
        stack.callback(os.close, fd)
    size = 2 * records * RECORD_BYTES
    if fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) < size:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
    return reader, writer

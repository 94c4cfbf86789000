"""Supervisor: starts, monitors and replaces the workers of one model version without losing requests.

Runs on its own thread, in the web process or in the cluster's parent. That thread also starts every
worker, because a worker dies with the thread that started it. The thread sleeps until a worker sends a
status or dies, or until a web process with items in flight asks it to check the workers.

If no request comes for `idle_unload_s`, it ends the workers: the model is asleep. Memory, pipes and
queue stay, so that web processes notice nothing: a request waits in the queue as usual, and the thread
starts the workers for it.
"""

import contextlib
import json
import math
import os
import signal
import threading
import time

import numpy as np

from smallplates.engine import topology
from smallplates.engine.client import NOTICE
from smallplates.engine.gpu_monitor import GpuMonitor
from smallplates.engine.memory import (
    EngineFds,
    Memory,
    ServiceCounts,
    SlotLayout,
    State,
    record,
    send,
)
from smallplates.engine.report import REPORT, WorkerReport
from smallplates.engine.worker_args import REFRESH_HEARTBEAT, SERVE, WorkerArgs
from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.task_kinds import PYTHON, kind_of
from smallplates.models.tensors import Signature
from smallplates.settings import OF_A_MODEL, Settings
from smallplates.supervision import scratch, worker_process
from smallplates.supervision.suspects import Suspects
from smallplates.supervision.worker_process import (
    STARTS_IF_KILLED,
    WorkerProcess,
    managed_pipe,
)
from smallplates.worker import batch_sizes, queue

RETRY_MS = 20
"""Milliseconds between two checks whether the retry of a suspect has finished."""

MUCH_BYTES = 10**12
"""Size of a mapping that the system may refuse, although unused pages cost nothing."""

FIRST_WORKERS = 2
"""Workers on a CPU: one that computes, and another that computes beside it or stands by."""


class Supervisor:
    """Engine of one model version: `start`, then `engine_fds` for every web process, then `close`."""

    def __init__(
        self,
        backend: str,
        model: Model,
        signatures: tuple[Signature, ...],
        settings: Settings,
        counts: ServiceCounts,
        web_processes: int = 1,
    ) -> None:
        self._backend = backend
        self.model = model
        self._settings = settings
        self._counts = counts
        self._log = logger().bind(model=model.description.name)
        per_device = topology.workers_per_device(settings)
        gpus = topology.gpus(settings)
        is_class = kind_of(model.description.task) is PYTHON
        largest = batch_sizes.largest_batch(settings, "cuda", is_class)
        self.layout = SlotLayout(
            slots=settings.queue_size * web_processes,
            web_processes=web_processes,
            workers=per_device * len(gpus),
            max_batch=max([largest, *(signature.batch_size for signature in signatures)]),
            signatures=signatures,
        )
        self._report: WorkerReport | None = None
        self._error: str | None = None
        """Why the start has failed; another worker's death does not change it."""

        self._processes = [
            WorkerProcess(index, gpus[index % len(gpus)]) for index in range(self.layout.workers)
        ]
        # `auto` starts one worker per GPU, and the others only if there turns out to be no GPU; on a CPU
        # it starts two, and the others only if so many are to compute at a time
        if settings.instances == "auto":
            may_use_gpu = settings.device != "cpu" and topology.gpu_is_possible()
            for process in self._processes[len(gpus) if may_use_gpu else FIRST_WORKERS :]:
                process.start_at = None
        self._wakeup = (-1, -1)
        self._startup_over = threading.Event()
        """Set when all initial workers are ready, or when the start has failed."""

        self._stop = threading.Event()

    def start(self) -> None:
        """Returns when every worker is ready. Raises ConfigurationError if a worker cannot start."""
        try:
            self._allocate()
        except (OSError, OverflowError, RuntimeError) as error:  # of memory, descriptors or threads
            reason = f"{error}{size_in_words(self.layout)}"
            raise ConfigurationError(f"the engine cannot be created: {reason}") from error
        self._startup_over.wait()
        if self._error is not None:
            self.close()
            raise ConfigurationError(self._error)

    def _allocate(self) -> None:
        """Creates memory, pipes and the thread; on OSError or RuntimeError frees them all again."""
        with contextlib.ExitStack() as stack:
            self.memory = Memory.create(self.layout, self._counts.fd)
            stack.callback(self.memory.close)
            self._scratch = stack.enter_context(scratch.folder())
            self._gpus = GpuMonitor(self.memory)
            stack.callback(self._gpus.close)
            slots = self.layout.slots_per_web_process
            # twice the room: records of dead web processes may be left
            self._work = managed_pipe(stack, 2 * slots), managed_pipe(stack, 2 * slots)
            self._work_fds = self._work[0][1], self._work[1][1]
            self._done = [managed_pipe(stack, slots) for _ in range(self.layout.web_processes)]
            self._done_fds = tuple(writer for _, writer in self._done)
            self._suspects = Suspects(self.memory, self._work_fds, self._done_fds)
            self._wakeup = managed_pipe(stack, 0)
            self._lifeline, _ = managed_pipe(stack, 0)
            readers = [reader for reader, _ in self._work]
            for fd in (*self._wakeup, *readers):
                os.set_blocking(fd, False)
            epolls = [queue.exclusive_epoll(readers) for _ in self._processes]
            self._epolls = [epoll and stack.enter_context(epoll) for epoll in epolls]
            self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
            self._thread.start()
            self._resources = stack.pop_all()

    def abort_start(self) -> None:
        """Makes a pending `start` raise ConfigurationError; may be called from any thread."""
        if self._startup_over.is_set():
            return
        self._fail_start("the service is shutting down")
        self._wake()

    def _wake(self) -> None:
        """Wakes the thread, unless `start` has not created it yet."""
        with contextlib.suppress(OSError):  # no pipe yet, or a full one, which wakes the thread anyway
            os.write(self._wakeup[1], b"k")

    def engine_fds(self, web_process: int) -> EngineFds:
        """Returns what a web process needs to use the engine; its descriptors belong to this process."""
        return EngineFds(
            web_process=web_process,
            layout=self.layout,
            memory_fd=self.memory.fd,
            counts_fd=self._counts.fd,
            work_fds=self._work_fds,
            done_fd=self._done[web_process][0],
            wakeup_fd=self._wakeup[1],
        )

    def cancel_requests_of(self, web_process: int) -> None:
        """Cancels the requests of a web process that has died.

        It may have died before it sent the record of a slot that it had marked as queued. So the records
        of slots that no worker has begun are sent again: a worker has to report each of them.
        """
        memory, count = self.memory, self.layout.slots_per_web_process
        for slot in range(web_process * count, (web_process + 1) * count):
            is_new = not (memory.attempts[slot] or memory.cancelled[slot])
            memory.cancelled[slot] = 1
            if is_new and memory.state[slot] == State.QUEUED:
                send(self._work_fds[memory.bulk[slot]], record(slot, memory.generation[slot]))
        memory.in_flight[web_process] = 0

    def stop(self) -> None:
        """Begins to stop the workers, so that those of several engines end together; see `close`."""
        self._stop.set()
        self._wake()

    def close(self) -> None:
        """Stops the workers, letting them finish a batch within the hang limit, and frees the engine."""
        self.stop()
        self._thread.join()
        self._resources.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._start_due()
                self._publish_health()
                self._wait()
                worker_process.kill_hung(self._processes, self.memory, self._hang_limit, self._log)
                self._follow_demand()
        except Exception:  # a bug here must not leave the service looking healthy
            self._log.exception("the supervisor failed")
            self._error = "the supervisor failed"
            self._startup_over.set()
            self._publish_down(True)
        finally:
            worker_process.stop_all(self._processes, self._hang_limit)

    @property
    def report(self) -> WorkerReport:
        """Report of the first ready worker; available after `start`."""
        assert self._report is not None  # noqa: S101 `start` waits for it
        return self._report

    @property
    def _hang_limit(self) -> float:
        return worker_process.hang_limit(self._settings, self._report)

    def _wait(self) -> None:
        """Waits for a worker's status or death, a web process's wake-up, the next start or a timeout."""
        by_fd = {p.status_fd: p for p in self._processes if p.popen}
        poll = queue.poll_of((self._wakeup[0], *by_fd))
        due = [self._idle_at, *(p.start_at for p in self._processes if p.start_at is not None)]
        due += [p.started_at + worker_process.LOAD_TIMEOUT_S for p in by_fd.values() if not p.ready]
        seconds = max(0.0, min(due) - time.monotonic())
        timeout = seconds * 1000 + 1 if seconds < math.inf else None
        ready = sum(process.ready for process in self._processes)
        if self._suspects.release(ready, sum(process.is_wanted for process in self._processes)):
            timeout = min(timeout or RETRY_MS, RETRY_MS)
        for fd, _ in poll.poll(timeout):
            if self._stop.is_set():  # a worker's death before this one's has ended the start
                return
            if fd == self._wakeup[0]:
                os.read(fd, 4096)
            else:
                self._read_status(by_fd[fd])

    @property
    def _idle_at(self) -> float:
        """Time at which the workers end unless a request comes; infinite if they don't."""
        limit_s, memory, now = self._settings.idle_unload_s, self.memory, time.monotonic()
        processes = [process for process in self._processes if process.is_wanted]
        if not limit_s or not all(process.ready for process in processes):
            return math.inf
        if any(memory.in_flight):
            return now + limit_s
        last = max(np.max(memory.queued_at), np.max(memory.finished_at))
        return float(max(last, *(process.ready_at for process in processes))) + limit_s

    def _follow_demand(self) -> None:
        """Ends the workers if no request has come for long; starts them again for the next one."""
        if self._idle_at <= time.monotonic():
            self._fall_asleep()
        if any(self.memory.in_flight):
            for process in self._processes:
                if process.start_at == math.inf:
                    process.start_at = time.monotonic()

    def _fall_asleep(self) -> None:
        """Ends all workers; the records that a request may have queued meanwhile stay in the queue."""
        self._log.info("model asleep", idle_s=self._settings.idle_unload_s)
        self.memory.is_asleep[0] = True
        processes = [process for process in self._processes if process.popen]
        worker_process.stop_all(processes, self._hang_limit)
        for process in processes:
            process.popen, process.start_at = None, math.inf
            process.ready = process.serving = False
            self._suspects.empty_inbox(process.index, is_killed=True)
            self.memory.busy_since[process.index] = 0
        self._let_serve()

    def _read_status(self, process: WorkerProcess) -> None:
        """Reads a worker's status pipe; end of file means that the worker has died."""
        data = os.read(process.status_fd, 65536)
        if not data:
            self._on_death(process)
            return
        process.status_buffer += data
        *lines, process.status_buffer = process.status_buffer.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "error" in message:
                process.error = message["error"]
            else:
                self._on_loaded(process, REPORT.validate_python(message))

    def _start_due(self) -> None:
        """Starts the workers whose start is due."""
        now = time.monotonic()
        for process in self._processes:
            if process.start_at is not None and process.start_at <= now:
                try:
                    process.start(self._worker_args(process))
                except OSError as error:  # out of memory or processes, perhaps only for a while
                    if not self._startup_over.is_set():
                        self._fail_start(f"an inference worker cannot be started: {error}")
                        return
                    self._log.error("an inference worker cannot be started", reason=str(error))
                    process.start_at, process.has_failed = now + process.backoff(now), True

    def _worker_args(self, process: WorkerProcess) -> WorkerArgs:
        """Returns a worker's arguments; `WorkerProcess.start` adds the control and status pipes."""
        epoll = self._epolls[process.index]
        settings = {name: getattr(self._settings, name) for name in OF_A_MODEL}
        settings["device"] = self._report.device_type if self._report else self._settings.device
        settings["devices"] = [process.gpu]
        return WorkerArgs(
            index=process.index,
            parent=os.getpid(),
            settings=settings,
            backend=self._backend,
            model=self.model.description.name,
            model_dir=str(self.model.path),
            version=self.model.description.version,
            scratch=str(self._scratch) if self._scratch else None,
            gpu=process.gpu,
            layout=self.layout,
            memory_fd=self.memory.fd,
            counts_fd=self._counts.fd,
            work_pipes=self._work,
            done_fds=self._done_fds,
            lifeline_fd=self._lifeline,
            epoll_fd=epoll.fileno() if epoll else None,
        )

    def _on_loaded(self, process: WorkerProcess, report: WorkerReport) -> None:
        """Lets a worker serve after it has loaded its model."""
        process.failed_starts, process.has_failed = 0, False
        if self._report is None:
            self._report = report
        if report.device_type != self._report.device_type:
            devices = f"{self._report.device_type}, another on {report.device_type}"
            self._fail_start(f"one worker runs on {devices}: {report.info}")
            return
        if report.gpu_uuid:
            self._gpus.watch(process.index, process.gpu, report.gpu_uuid)
        if not self.memory.batch_cap[0]:
            self.report.batch_cap = min(report.batch_cap, self.layout.max_batch)
            self.memory.batch_cap[0] = self.report.batch_cap
            self.memory.hang_limit_s[0] = self._hang_limit
            for index, most in enumerate(report.max_batch_elements):
                self.memory.max_batch_elements[index] = most
        if not report.on_gpu:
            for other in self._processes[: max(report.workers, FIRST_WORKERS)]:
                if not other.is_wanted:
                    other.start_at = time.monotonic()
        process.ready, process.ready_at = True, time.monotonic()
        self.memory.load_s[0] = process.ready_at - process.started_at
        self.memory.busy_since[process.index] = 0
        self.memory.heartbeat[process.index] = process.ready_at
        self._let_serve()
        if all(p.ready for p in self._processes if p.is_wanted):
            self._startup_over.set()

    def _let_serve(self) -> None:
        """Lets as many ready workers serve as compute at a time; the others stand by."""
        most = self._report.workers if self._report else 0
        for process in self._processes:
            serving = sum(other.serving for other in self._processes)
            if process.ready and not process.serving and serving < most:
                process.serving = True
                process.send_command(SERVE)
        serving = sum(process.serving for process in self._processes)
        if serving and not self.memory.serving_workers[0]:
            self.memory.serving_since[0] = time.monotonic()
        self.memory.serving_workers[0] = serving

    def _on_death(self, process: WorkerProcess) -> None:
        """Hands a dead worker's records to `Suspects` and schedules its restart."""
        popen, process.popen = process.popen, None
        assert popen is not None  # noqa: S101 it was running
        now = time.monotonic()
        process.start_at = now + process.backoff(now)
        process.ready = process.serving = False
        self._publish_health()
        code = worker_process.end(popen)  # perhaps it only closed its status pipe
        os.close(process.status_fd)
        os.close(process.control_fd)
        is_killed = code == -signal.SIGKILL and not process.is_killed_as_hung
        is_failure = not is_killed or process.failed_starts >= STARTS_IF_KILLED
        process.has_failed = is_failure and process.failed_starts > 0
        reason = process.end_in_words(code)
        if not self._startup_over.is_set() and (process.error or is_failure):
            self._fail_start(process.error or f"an inference worker {reason}")
            return
        self.memory.restarts[0] += 1
        self._log.error(
            "an inference worker died",
            worker=process.index,
            exit_code=code,
            reason=f"{reason}: {process.error}" if process.error else reason,
            restart_in_s=round(process.start_at - now, 1),
        )
        self._suspects.empty_inbox(process.index, is_killed, process.is_killed_as_hung)
        self.memory.busy_since[process.index] = 0
        for other in self._processes:
            if other.ready:  # make it look for a record that may have woken only the dead worker
                other.send_command(REFRESH_HEARTBEAT)
        self._let_serve()

    def _fail_start(self, reason: str) -> None:
        """Makes `start` raise ConfigurationError with this reason."""
        self._error = reason
        self._stop.set()
        self._startup_over.set()

    def _publish_health(self) -> None:
        """Publishes how many workers are ready, and whether none is and none can start."""
        ready = sum(p.ready for p in self._processes)
        self.memory.ready_workers[0] = ready
        has_failed = all(p.has_failed for p in self._processes if p.is_wanted)
        is_down = not ready and has_failed and self._startup_over.is_set()
        if self.memory.is_asleep[0] and (ready or is_down):
            self.memory.is_asleep[0] = False  # before requests are refused, so that nobody sees both
            if ready:
                self._log.info("model awake", load_s=round(self.memory.load_s[0], 1))
        self._publish_down(is_down)

    def _publish_down(self, is_down: bool) -> None:
        """Publishes whether the engine is down; if that has changed, notifies every web process."""
        if self.memory.is_down[0] != is_down:
            self.memory.is_down[0] = is_down
            for fd in self._done_fds:
                send(fd, NOTICE)


def size_in_words(layout: SlotLayout) -> str:
    """Returns what makes the memory of an engine large, and the cure; empty if it is not large."""
    if (size := Memory.size(layout)) < MUCH_BYTES:
        return ""
    axes = ", ".join(layout.signatures[-1].axes)
    cure = f", or state smaller limits for {axes} in model.json" if axes else ""
    return f"; its queue may take {size // 10**9:,} GB: lower SERVING_QUEUE_SIZE{cure}"

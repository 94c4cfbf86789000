"""Starts the workers of one model version, watches them, replaces them, and loses nothing.

One thread, because a worker dies with the thread that started it. It sleeps until a worker says
something or ends, or until a web process, which has requests under way, asks it to look around.
"""

import contextlib
import json
import os
import select
import threading
import time
from dataclasses import asdict
from typing import Any

from serving.backends import batch_sizes
from serving.engine import scratch, topology, worker_process
from serving.engine.client import NOTICE
from serving.engine.gpu_monitor import GpuMonitor
from serving.engine.memory import EngineFds, Health, Memory, SlotLayout, send
from serving.engine.worker import SERVE
from serving.engine.worker_args import WorkerArgs
from serving.engine.worker_process import WorkerProcess, ending, held_pipe, requeue_inflight
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.model import Model
from serving.settings import Settings


class Supervisor:
    """`start`, then `attachment` for every web process, then `close`."""

    def __init__(self, backend: str, model: Model, settings: Settings, frontends: int = 1) -> None:
        self._backend = backend
        self._model = model
        self._settings = settings
        self.version = model.description.version
        height, width = model.description.image.output_size
        per_device = topology.instances(settings)
        gpus = topology.gpus(settings)
        self.layout = SlotLayout(
            slots=settings.queue_size * frontends,
            frontends=frontends,
            workers=per_device * len(gpus),
            max_batch=batch_sizes.largest_batch(settings, "cuda"),
            height=height,
            width=width,
            classes=len(model.labels),
        )
        self.profile: dict[str, Any] = {}
        """The first ready worker's message: backend info, batch_ms, batch_cap, idle_threads."""

        self._device: str | None = None
        """`cpu` or `cuda`: where the first worker got; its successors get there, or nowhere."""

        self._error: str | None = None
        self._processes = [
            WorkerProcess(index, gpus[index % len(gpus)]) for index in range(self.layout.workers)
        ]
        if settings.instances == "auto" and settings.device != "cpu" and topology.gpu_is_possible():
            for process in self._processes[len(gpus) :]:
                process.start_at = None
        self._wakeup = (-1, -1)
        self._first_round_over = threading.Event()
        self._closing = threading.Event()

    def start(self) -> None:
        """Returns when every worker is ready. Raises ConfigurationError when one cannot be."""
        try:
            self._make()
        except (OSError, RuntimeError) as error:  # a limit on memory, descriptors or threads
            raise ConfigurationError(f"the engine cannot be made: {error}") from error
        self._first_round_over.wait()
        if self._error is not None:
            self.close()
            raise ConfigurationError(self._error)

    def _make(self) -> None:
        """Memory, pipes, and the thread. Raises OSError or RuntimeError, and then leaves nothing."""
        with contextlib.ExitStack() as held:
            self.memory = Memory.create(self.layout)
            held.callback(self.memory.close)
            self._scratch = scratch.create()
            held.callback(scratch.remove, self._scratch)
            self._gpus = GpuMonitor(self.memory)
            held.callback(self._gpus.close)
            admitted = self.layout.slots_per_frontend  # and as many again that dead frontends left
            self._work = [held_pipe(held, 2 * admitted) for _ in range(2)]
            self._done = [held_pipe(held, admitted) for _ in range(self.layout.frontends)]
            self._wakeup = held_pipe(held, 0)
            for fd in (*self._wakeup, *(reader for reader, _ in self._work)):
                os.set_blocking(fd, False)
            self._thread = threading.Thread(target=self._main, name="supervisor", daemon=True)
            self._thread.start()
            self._held = held.pop_all()

    def give_up(self) -> None:
        """From any thread; `start`, where it has not returned yet, raises ConfigurationError soon."""
        if self._first_round_over.is_set():
            return
        self._refuse("the service is shutting down")
        with contextlib.suppress(OSError):  # `start` has yet to begin
            os.write(self._wakeup[1], b"k")

    def engine_fds(self, frontend: int) -> EngineFds:
        """What the web process needs; the descriptors are this process's."""
        return EngineFds(
            frontend=frontend,
            layout=self.layout,
            memory_fd=self.memory.fd,
            work_fds=(self._work[0][1], self._work[1][1]),
            done_fd=self._done[frontend][0],
            wakeup_fd=self._wakeup[1],
        )

    def abandon(self, frontend: int) -> None:
        """A web process has died: what it had asked for is not computed any more."""
        count = self.layout.slots_per_frontend
        for slot in range(frontend * count, (frontend + 1) * count):
            self.memory.cancelled[slot] = 1
        self.memory.in_flight[frontend] = 0

    def close(self) -> None:
        """Ends the workers; each finishes the batch it computes, if that is soon."""
        self._closing.set()
        os.write(self._wakeup[1], b"k")
        self._thread.join()
        self._held.close()

    # -- the thread --

    def _main(self) -> None:
        try:
            while not self._closing.is_set():
                self._start_due()
                self._set_health()
                self._wait()
                worker_process.kill_silent(self._processes, self.memory, self._hang_limit)
        except Exception:  # a defect here must not pass for a healthy service
            logger().exception("the supervisor failed")
            self._error = "the supervisor failed"
            self._first_round_over.set()
            self._publish(Health.DOWN)
        finally:
            worker_process.end_all(self._processes, self._hang_limit)

    @property
    def _hang_limit(self) -> float:
        return worker_process.hang_limit(self._settings, self.profile)

    def _wait(self) -> None:
        """Until a worker speaks or ends, a web process asks, or something is due."""
        poll = select.poll()
        poll.register(self._wakeup[0], select.POLLIN)
        running = {p.status_fd: p for p in self._processes if p.popen}
        for fd in running:
            poll.register(fd, select.POLLIN)
        due = [p.start_at for p in self._processes if p.start_at is not None]
        due += [p.begun_at + worker_process.LOAD_TIMEOUT_S for p in running.values() if not p.ready]
        timeout = max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None
        for fd, _ in poll.poll(timeout):
            if fd == self._wakeup[0]:
                os.read(fd, 4096)
            else:
                self._hear(running[fd])

    def _hear(self, process: WorkerProcess) -> None:
        data = os.read(process.status_fd, 65536)
        if not data:
            self._on_death(process)
            return
        process.status_buffer += data
        *lines, process.status_buffer = process.status_buffer.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "error" in message:
                self._error = message["error"]
            else:
                self._on_loaded(process, message)

    def _start_due(self) -> None:
        now = time.monotonic()
        for process in self._processes:
            if process.start_at is not None and process.start_at <= now:
                try:
                    process.start(self._arguments(process))
                except OSError as error:  # no memory, or too many processes, for now
                    if not self._first_round_over.is_set():
                        self._refuse(f"an inference worker cannot be started: {error}")
                        return
                    logger().error("an inference worker cannot be started", reason=str(error))
                    process.start_at = now + process.backoff(now)

    def _arguments(self, process: WorkerProcess) -> WorkerArgs:
        """For the worker in this place; its own pipes are still missing."""
        return WorkerArgs(
            index=process.index,
            parent=os.getpid(),
            device=self._device or self._settings.device,
            backend=self._backend,
            model_dir=str(self._model.folder),
            version=self._model.description.version,
            scratch=str(self._scratch) if self._scratch else None,
            gpu=process.gpu,
            layout=asdict(self.layout),
            memory_fd=self.memory.fd,
            work_fds=(self._work[0][0], self._work[1][0]),
            done_fds=tuple(writer for _, writer in self._done),
        )

    def _on_loaded(self, process: WorkerProcess, message: dict[str, Any]) -> None:
        """A worker is warm and may begin; `start` waits for the first ones all."""
        process.failed_starts = 0
        self.profile = self.profile or message
        device = message["info"]["device"].partition(":")[0]
        self._device = self._device or device
        if device != self._device:
            self._refuse(f"one worker runs on {self._device}, another on {device}: {message['info']}")
            return
        if message["gpu_uuid"]:
            self._gpus.watch(process.index, process.gpu, message["gpu_uuid"])
        if not self.memory.batch_cap[0]:
            self.memory.batch_cap[0] = min(message["batch_cap"], self.layout.max_batch)
            self.profile["batch_cap"] = self.memory.batch_cap[0]
        if message["info"]["device"] == "cpu":
            for waiting in self._processes:  # there was no usable GPU after all
                if waiting.popen is None and waiting.start_at is None:
                    waiting.start_at = time.monotonic()
        process.ready, process.ready_at = True, time.monotonic()
        self.memory.busy_since[process.index] = 0
        self.memory.seen[process.index] = process.ready_at
        process.send_command(SERVE)
        if all(p.ready for p in self._processes if p.popen or p.start_at is not None):
            self._first_round_over.set()

    def _on_death(self, process: WorkerProcess) -> None:
        """Requeues what the worker had taken, and plans its successor."""
        popen, process.popen = process.popen, None
        assert popen is not None  # noqa: S101 it was running
        now = time.monotonic()
        process.start_at = now + process.backoff(now)
        process.ready = False
        self._set_health()
        popen.kill()  # where it only closed its descriptors
        code = popen.wait()
        os.close(process.status_fd)
        os.close(process.control_fd)
        if not self._first_round_over.is_set():
            self._refuse(self._error or f"an inference worker {ending(code)}")
            return
        self.memory.restarts[0] += 1
        logger().error(
            "an inference worker died",
            worker=process.index,
            exit_code=code,
            restart_in_s=round(process.start_at - now, 1),
        )
        work = (self._work[0][1], self._work[1][1])
        requeue_inflight(self.memory, process.index, work, tuple(writer for _, writer in self._done))
        self.memory.busy_since[process.index] = 0

    def _refuse(self, reason: str) -> None:
        """The service cannot start; `start` raises."""
        self._error = reason
        self._closing.set()
        self._first_round_over.set()

    def _set_health(self) -> None:
        """Publishes how many workers are ready, and tells the web processes when that matters."""
        ready = sum(p.ready for p in self._processes)
        self.memory.ready_workers[0] = ready
        if ready:
            health = Health.READY
        elif not self._first_round_over.is_set():
            health = Health.STARTING
        elif any(not p.failed_starts for p in self._processes):
            health = Health.RECOVERING
        else:
            health = Health.DOWN
        self._publish(health)

    def _publish(self, health: Health) -> None:
        if self.memory.health[0] != health:
            self.memory.health[0] = health
            for _, writer in self._done:
                send(writer, NOTICE)

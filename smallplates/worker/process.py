"""Inference worker: a process that takes batches, computes them and reports the slots.

The supervisor starts it as `python -m smallplates.worker.process ARGS` and passes its descriptors on.
The worker exits when the supervisor closes the control pipe or dies. The kernel reads records straight
into the worker's inbox in shared memory, where they stay until they are reported, so a worker that is
killed at any moment loses nothing.

On a GPU a second thread calls the backend: while it computes a batch, the main thread reports the
previous batch and gathers the next. On a CPU a second thread would take a core from the computation.
"""

import signal

if __name__ == "__main__":  # Ctrl-C signals the whole process group, but the supervisor stops us
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)  # the last one: our group logs, too

import contextlib
import ctypes
import json
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from smallplates.engine import topology
from smallplates.engine.backend import Backend, BackendInfo, DeclaredBackend, WeightsReader
from smallplates.engine.memory import Memory, State, generation_of, slot_of
from smallplates.engine.report import PROFILE, REPORT, Profile, WorkerReport
from smallplates.engine.worker_args import REFRESH_HEARTBEAT, WorkerArgs
from smallplates.errors import ConfigurationError, summary
from smallplates.logging import configure_logging, logger
from smallplates.models.folder import Model
from smallplates.models.task_kinds import PYTHON, kind_of
from smallplates.settings import Settings
from smallplates.system import cpus
from smallplates.system.pdeathsig import die_with_parent, die_with_writer
from smallplates.worker import batch_sizes, cuda_driver, warmup
from smallplates.worker.choice import device_for
from smallplates.worker.executor import BatchExecutor, InFlightBatch
from smallplates.worker.kept_measurements import dependencies, restore, save
from smallplates.worker.layout import Layout, choose_layout
from smallplates.worker.queue import WorkQueue
from smallplates.worker.shared_choice import shared_choice


class Worker:
    """Loads a model, then takes and computes batches; call `load` before `serve`."""

    def __init__(self, args: WorkerArgs, settings: Settings) -> None:
        self._args = args
        self._settings = settings = settings.model_copy(update=args.settings)
        self._scratch = Path(args.scratch) if args.scratch else None
        self._memory = Memory(args.memory_fd, args.layout, args.counts_fd)
        self._queue = WorkQueue(
            self._memory, args.index, args.work_pipes, args.control_fd, settings, args.epoll_fd
        )
        self._executor = BatchExecutor(self._memory, args.index, self._queue, args.done_fds)

    def load(self) -> WorkerReport:
        """Loads, warms up and measures the model. Raises ConfigurationError."""
        memory, executor, settings = self._memory, self._executor, self._settings
        model = Model.read(Path(self._args.model_dir), self._args.version, self._args.model)
        model.check_digest(settings.model_sha256)  # again: a worker may start long after the service
        is_measured = self._args.index == 0 and not memory.batch_cap[0]
        if is_measured:
            logger().info("loading", folder=self._args.model_dir)
        kept = self._kept_measurements(model)
        measured_at = shared_choice(self._scratch, "reused", lambda: restore(*kept())) if kept else None
        layout = self._layout(model)
        settings = settings.model_copy(update={"intra_op_threads": layout.threads})
        backend, info = self._load_backend(model, settings)
        executor.backend, executor.length_step = backend, info.length_step
        declared = backend if isinstance(backend, DeclaredBackend) else None
        on_gpu, cap = info.device != "cpu", 1 if info.batch_note else memory.batch_cap[0]
        if declared and not cap:
            cap = declared.batch_cap
        sizes = batch_sizes.sizes(settings, info.device, cap)
        if is_measured:
            logger().debug("warming up", folder=self._args.model_dir, batch_sizes=sizes)
        if on_gpu:
            sizes.reverse()  # the largest batch allocates the memory that the smaller ones reuse
            executor.device = ThreadPoolExecutor(1, "device")
        slots = self._args.layout
        largest = 0 if on_gpu or cap or settings.max_batch_size != "auto" else slots.max_batch
        warm_up = partial(self._warm_up, backend, model, sizes, settings, largest)
        if executor.device:
            profile = executor.device.submit(warm_up).result()
        else:
            warmup.try_out(backend, slots.signatures)
            found = shared_choice(self._scratch, "profile", lambda: PROFILE.dump_python(warm_up()))
            profile = PROFILE.validate_python(found)
        threads = None if on_gpu or declared else topology.single_request_threads(settings)
        if on_gpu:
            executor.buckets = list(profile.batch_ms)
        elif threads and self._is_woken_first:
            executor.all_cores_backend = self._load_for_threads(model, threads)
            warmup.try_out(executor.all_cores_backend, slots.signatures)
        report = WorkerReport(
            **vars(profile),
            info=info,
            workers=layout.workers,
            threads=layout.threads,
            layout_reason=layout.reason,
            measured_at=measured_at,
            single_request_threads=threads,
            gpu_uuid=gpu_uuid(self._args.gpu) if on_gpu else None,
            schemas=declared.schemas if declared else {},
        )
        report.batch_cap = cap or report.batch_cap
        if kept and is_measured and not measured_at:
            save(*kept())
        for each in executor.backends:
            each.trim()
        trim_heap()
        return report

    def _kept_measurements(self, model: Model) -> Callable[[], tuple[Path, Any, Path]] | None:
        """Returns what computes the arguments of `restore` and `save`, for which it reads all weights.

        Returns None on a GPU, or if nothing is to be kept.
        """
        folder, scratch, args = self._settings.cache_dir, self._scratch, self._args
        backend = pkgutil.resolve_name(args.backend)()
        if not folder or not scratch or self._may_use_gpu or not isinstance(backend, WeightsReader):
            return None
        call = [args.backend, args.layout.workers, *map(asdict, args.layout.signatures)]

        @cache
        def arguments() -> tuple[Path, Any, Path]:
            key = [call, dependencies(model, backend.weights(model), self._settings)]
            return folder, key, scratch

        return arguments

    def _layout(self, model: Model) -> Layout:
        """Returns the layout of the settings, or the fastest one if they leave it open."""
        settings = self._settings
        is_open = settings.instances == settings.intra_op_threads == "auto"
        if not is_open or self._may_use_gpu or kind_of(model.description.task) is PYTHON:
            return Layout(self._args.layout.workers, settings.threads)
        slots, most = self._args.layout, batch_sizes.largest_batch(settings, "cpu")
        load = partial(self._load_for_threads, model)
        return choose_layout(load, slots.signatures[0], slots.workers, most, self._scratch)

    @property
    def _may_use_gpu(self) -> bool:
        return device_for(self._settings) != "cpu" and topology.gpu_is_possible()

    @property
    def _is_woken_first(self) -> bool:
        """Whether a request that is alone in the service may wake this worker."""
        return self._args.epoll_fd is None or self._args.index < topology.SINGLE_REQUEST_WORKERS

    def _warm_up(self, backend: Backend, model: Model, *arguments: Any) -> Profile:
        """Measures the network; see `warmup.warm_up`. Raises ConfigurationError, also without logits."""
        signatures = self._args.layout.signatures
        profile = warmup.warm_up(backend, signatures, *arguments)
        warmup.check_logits(backend, model, signatures[0])
        return profile

    def _load_for_threads(self, model: Model, threads: int) -> Backend:
        changes = {"intra_op_threads": threads, "device": "cpu"}
        return self._load_backend(model, self._settings.model_copy(update=changes))[0]

    def _load_backend(self, model: Model, settings: Settings) -> tuple[Backend, BackendInfo]:
        backend: Backend = pkgutil.resolve_name(self._args.backend)()
        return backend, backend.load(model, settings, self._scratch)

    def serve(self) -> None:
        """Stands by for the command to serve, then computes until the control pipe is closed."""
        memory, index, executor = self._memory, self._args.index, self._executor
        while (command := os.read(self._args.control_fd, 1)) == REFRESH_HEARTBEAT:
            memory.heartbeat[index] = time.monotonic()
        if not command:
            return
        executor.open(memory.batch_cap[0])  # measured by the first worker for all
        in_flight: InFlightBatch | None = None
        while (taken := self._queue.take(wait=in_flight is None)) is not None:
            in_flight = self._compute(taken, in_flight)
            if in_flight:
                self._queue.swap_halves()
                continue
            self._queue.clear()
            memory.heartbeat[index] = time.monotonic()  # first: an idle worker needs a fresh heartbeat
            memory.busy_since[index] = 0
        executor.close()

    def _compute(self, taken: list[int], in_flight: InFlightBatch | None) -> InFlightBatch | None:
        """Computes a batch of the taken records; returns it if the device is still computing it.

        Requeued items run alone, with nothing else in flight. With a queue delay no batch is taken
        ahead: its items would rather wait for a fuller batch.
        """
        executor = self._executor
        requeued = any(self._memory.attempts[slot_of(value)] > 0 for value in taken)
        take_ahead = executor.device and not self._settings.max_queue_delay_us and not requeued
        if in_flight and requeued:
            executor.finish(in_flight)
            in_flight = None
        slots = self._claim(taken)
        batch = executor.begin(slots) if slots else None
        if in_flight:
            executor.finish(in_flight)
        if batch and not take_ahead:
            executor.finish(batch)
            return None
        return batch

    def _claim(self, values: list[int]) -> list[int]:
        """Chooses a batch among the records, marks its slots, and gives the others back.

        Cancelled and expired items are reported at once and never computed.
        """
        memory, executor, now = self._memory, self._executor, time.monotonic()
        by_slot: dict[int, int] = {}
        late, batch = [], []
        with self._queue.turn():
            for value in values:
                slot = slot_of(value)
                if memory.generation[slot] != generation_of(value) or memory.state[slot] != State.QUEUED:
                    continue
                if memory.cancelled[slot] or memory.deadline[slot] <= now:
                    memory.state[slot] = State.SKIPPED if memory.cancelled[slot] else State.EXPIRED
                    late.append(slot)
                else:
                    by_slot[slot] = value
            if by_slot:
                slots = sorted(by_slot, key=memory.queued_at.__getitem__)
                batch = executor.choose(slots)
                executor.mark(batch)
                self._queue.give_back([by_slot[slot] for slot in slots if slot not in batch])
        if late:
            executor.report(late)
        return batch


def gpu_uuid(index: int) -> str | None:
    """Returns the UUID by which NVML identifies a GPU; None means no metrics for that GPU."""
    with contextlib.suppress(ConfigurationError):
        return cuda_driver.device_uuid(index)
    return None


def trim_heap() -> None:
    """Returns free heap memory to the system; glibc would keep twice the model's size after loading."""
    with contextlib.suppress(AttributeError):  # C libraries other than glibc have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def keep_from_children(fds: Iterable[int], pipes: Iterable[int]) -> None:
    """Closes the supervisor's pipes in child processes, and all of `fds` in those that run a program.

    A child that outlived the worker would hide the worker's death from the supervisor.
    """
    for fd in fds:
        os.set_inheritable(fd, False)
    left = list(pipes)

    def close() -> None:
        while left:  # empty in a child's own children
            os.close(left.pop())

    os.register_at_fork(after_in_child=close)


def load(worker: Worker) -> WorkerReport:
    """Lets a worker load its model; logs what a library or a user's class raises, or exits with.

    Raises ConfigurationError.
    """
    try:
        return worker.load()
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        logger().exception("the model cannot be loaded")
        raise ConfigurationError(f"the model cannot be loaded: {summary(error)}") from error


def main() -> None:
    """Loads the model, reports the result, waits for the command to serve, and serves."""
    args = TypeAdapter(WorkerArgs).validate_python(json.load(sys.stdin))
    if not die_with_writer(args.lifeline_fd):  # which ends what a Python class has started, too
        die_with_parent(args.parent)
    keep_from_children(args.fds, (args.control_fd, args.status_fd))
    settings = Settings()
    configure_logging(settings, model=args.model)
    worker = Worker(args, settings)

    def send_status(message: dict[str, Any]) -> None:
        os.write(args.status_fd, json.dumps(message).encode() + b"\n")

    try:
        report = load(worker)
    except ConfigurationError as error:
        send_status({"error": str(error)})
        raise SystemExit(1) from error
    if not report.on_gpu:
        cpus.lower_priority()
    send_status(REPORT.dump_python(report, mode="json"))
    worker.serve()


if __name__ == "__main__":
    main()

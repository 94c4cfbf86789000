"""One inference worker, a program of its own: takes batches, computes them, reports.

Started by `supervisor.py` as `python -m serving.engine.worker ARGUMENTS`, with its descriptors passed
on. It ends when the supervisor closes the control pipe, and with the supervisor's own death. What it
has taken and not yet reported always stands in its inbox in shared memory, into which the kernel puts
the records itself: whenever it is killed, nothing it had taken is lost.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving import cpus, logs
from serving.backend import Backend
from serving.engine import warmup
from serving.engine.idle import IdleCores
from serving.engine.memory import Geometry, Kind, Memory, State, generation_of, record, send, slot_of
from serving.engine.queue import WorkQueue
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings

PR_SET_PDEATHSIG = 1
SERVE = b"s"
T = TypeVar("T", np.uint8, np.float32)


@dataclass(frozen=True)
class Arguments:
    """What the supervisor hands to a worker, as JSON."""

    index: int
    parent: int
    backend: str
    """`module:class` of a `serving.backend.Backend`."""

    model_dir: str
    version: str
    scratch: str | None
    """A folder that all workers of the engine share."""

    gpu: int
    """Index of the CUDA device; has no meaning on a CPU."""

    geometry: dict[str, int]
    memory_fd: int
    work_fds: tuple[int, int]
    """Ends to read: interactive, bulk."""

    done_fds: tuple[int, ...]
    """Ends to write, one per web process."""

    control_fd: int
    status_fd: int


class Worker:
    """The loop; see the module."""

    def __init__(self, arguments: Arguments, settings: Settings) -> None:
        self.index = arguments.index
        self.settings = settings
        self.memory = Memory(arguments.memory_fd, Geometry(**arguments.geometry))
        self.queue = WorkQueue(
            self.memory, arguments.index, arguments.work_fds, arguments.control_fd, settings
        )
        self._done_fds = arguments.done_fds
        self._pixels: NDArray[np.uint8] = np.empty((0,), np.uint8)
        self._tensors: NDArray[np.float32] = np.empty((0,), np.float32)
        self._narrow: Backend | None = None
        self._wide: Backend | None = None
        self._idle_cores = IdleCores()

    def load(self, arguments: Arguments) -> dict[str, Any]:
        """Loads, warms up and measures; returns what the supervisor is told."""
        module, _, name = arguments.backend.partition(":")
        make = getattr(importlib.import_module(module), name)
        model = Model.read(Path(arguments.model_dir), arguments.version)
        settings = self.settings.model_copy(update={"devices": [arguments.gpu]})
        geometry = self.memory.geometry
        self._narrow = make()
        scratch = Path(arguments.scratch) if arguments.scratch else None
        info = self._narrow.load(model, settings, scratch)
        shape = (geometry.height, geometry.width, 3)
        cap = self.memory.batch_cap[0]
        profile = warmup.warm_up(
            self._narrow, shape, geometry.classes, warmup.sizes(settings, info.device, cap)
        )
        warmup.warm_up_tensors(self._narrow, shape, geometry.classes)
        threads = cpus.usable() if settings.idle_threads == "auto" else settings.idle_threads
        alone: dict[int, float] = {}
        if info.device == "cpu" and threads > settings.intra_op_threads:
            self._wide = make()
            wide = {"intra_op_threads": threads, "device": "cpu"}
            self._wide.load(model, settings.model_copy(update=wide), scratch)
            alone = warmup.warm_up(self._wide, shape, geometry.classes, [1])
            warmup.warm_up_tensors(self._wide, shape, geometry.classes)
        return {
            "info": asdict(info),
            "batch_ms": profile,
            "batch_cap": cap or warmup.choose_cap(settings, profile),
            "idle_threads": threads if self._wide else None,
            "idle_ms": alone.get(1),
        }

    def serve(self) -> None:
        """Takes and computes until it is told to stop."""
        for backend in (self._narrow, self._wide):
            if backend:
                backend.trim()
        give_memory_back()
        memory, index = self.memory, self.index
        self.queue.cap = memory.batch_cap[0]  # the first worker's choice holds for all
        self._pixels = np.empty((memory.batch_cap[0], *memory.inputs.shape[1:]), np.uint8)
        self._tensors = np.empty((memory.batch_cap[0], *memory.tensors.shape[1:]), np.float32)
        while (taken := self.queue.take()) is not None:
            self._run(taken)
            self.queue.clear()
            memory.busy_since[index] = 0
            memory.seen[index] = time.monotonic()

    def _run(self, taken: list[int]) -> None:
        """Sorts out what nobody waits for; computes the rest by kind, suspects one by one."""
        memory = self.memory
        now = time.monotonic()
        fresh: tuple[list[int], ...] = tuple([] for _ in Kind)
        suspects, over = [], []
        for value in taken:
            slot = slot_of(value)
            if memory.generation[slot] != generation_of(value) or memory.state[slot] != State.QUEUED:
                continue
            if memory.cancelled[slot]:
                memory.state[slot] = State.SKIPPED
                over.append(slot)
            elif memory.deadline[slot] <= now:
                memory.state[slot] = State.EXPIRED
                over.append(slot)
            elif memory.attempts[slot]:
                suspects.append(slot)
            else:
                fresh[memory.kind[slot]].append(slot)
        if over:
            self._report(over)
        for slots in (*fresh, *([slot] for slot in suspects)):
            if slots:
                self._compute(slots)

    def _compute(self, slots: list[int]) -> None:
        """One batch, into the slots' outputs; item by item when it fails."""
        memory = self.memory
        started = time.monotonic()
        memory.busy_since[self.index] = started
        for slot in slots:
            memory.attempts[slot] += 1
            memory.started_at[slot] = started
            memory.batch_size[slot] = len(slots)
            memory.state[slot] = State.RUNNING
        try:
            logits = self._infer(slots)
        except Exception:
            if len(slots) > 1:
                logs.logger().warning("a batch failed, its items are tried alone", size=len(slots))
                for slot in slots:
                    memory.attempts[slot] -= 1
                    self._compute([slot])
                return
            logs.logger().exception("inference failed")
            memory.state[slots[0]] = State.FAILED
            self._report(slots)
            return
        finished = time.monotonic()
        good = np.atleast_1d(np.isfinite(logits).all(axis=1))
        if memory.kind[slots[0]] == Kind.TENSOR:  # a client's own numbers have the logits they have
            good[:] = True
        leader = slots[int(good.argmax())]
        for slot, row, usable in zip(slots, logits, good, strict=True):
            memory.outputs[slot] = row
            memory.finished_at[slot] = finished
            memory.leads[slot] = slot == leader
            memory.state[slot] = State.DONE if usable else State.FAILED
            if not usable:
                logs.logger().error("the model answered with numbers that are not finite")
        self._report(slots)

    def _infer(self, slots: list[int]) -> NDArray[np.float32]:
        memory, count = self.memory, len(slots)
        alone = self._wide is not None and sum(memory.in_flight) <= 1
        all_cores = alone and self._idle_cores.pay()
        backend = self._wide if all_cores else self._narrow
        assert backend is not None  # noqa: S101 load comes first
        started = time.perf_counter()
        if memory.kind[slots[0]] == Kind.PIXELS:
            logits = backend.infer(gathered(memory.inputs, slots, self._pixels))
        else:
            logits = backend.infer_tensor(gathered(memory.tensors, slots, self._tensors))
        if alone:
            self._idle_cores.took(all_cores, time.perf_counter() - started)
        if logits.shape != (count, memory.geometry.classes):
            raise ValueError(f"the model answered with shape {logits.shape} to {count} inputs")
        return logits

    def _report(self, slots: list[int]) -> None:
        """Tells each slot's web process; a pipe has room for a record of every slot."""
        memory = self.memory
        by_owner: dict[int, list[int]] = {}
        for slot in slots:
            by_owner.setdefault(memory.owner(slot), []).append(record(slot, memory.generation[slot]))
        for owner, values in by_owner.items():
            send(self._done_fds[owner], *values)


def gathered(inputs: NDArray[T], slots: list[int], room: NDArray[T]) -> NDArray[T]:
    """The slots' inputs as one batch, in `room`; one alone needs no copy."""
    if len(slots) == 1:
        return inputs[slots[0] : slots[0] + 1]
    return np.take(inputs, slots, axis=0, out=room[: len(slots)])


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the supervisor's thread ends; where it can, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


def give_memory_back() -> None:
    """Loading leaves holes in the heap, twice the size of the model; glibc keeps them unless asked."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Loads, reports that it is ready, waits for the word to start, serves."""
    arguments = Arguments(**json.loads(sys.argv[1]))
    die_with_parent(arguments.parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # a whole group may get them: the supervisor ends us
        signal.signal(number, signal.SIG_IGN)
    settings = Settings()
    logs.configure(settings)
    worker = Worker(arguments, settings)

    def tell(message: dict[str, Any]) -> None:
        os.write(arguments.status_fd, json.dumps(message).encode() + b"\n")

    try:
        message = worker.load(arguments)
    except ConfigurationError as error:
        tell({"error": str(error)})
        raise SystemExit(1) from error
    except Exception as error:
        logs.logger().exception("the model cannot be loaded")
        tell({"error": f"the model cannot be loaded: {error}"})
        raise SystemExit(1) from error
    if message["info"]["device"] == "cpu":
        cpus.give_way()
    tell(message)
    if os.read(arguments.control_fd, 1):  # nothing: the supervisor has closed it
        worker.serve()


if __name__ == "__main__":
    main()

"""One inference worker, a program of its own: takes batches, computes them, reports.

Started by `supervisor.py` as `python -m serving.engine.worker ARGUMENTS`, with its descriptors passed
on. It ends when the supervisor closes the control pipe, and with the supervisor's own death. What it
has taken and not yet reported always stands in its inbox in shared memory, into which the kernel puts
the records itself: whenever it is killed, nothing it had taken is lost.
"""

import importlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import buckets, cpus, logs
from serving.backend import Backend, SlotReader
from serving.device_errors import DeviceLostError, OutOfDeviceMemoryError
from serving.engine import warmup
from serving.engine.idle import IdleCores
from serving.engine.memory import Geometry, Kind, Memory, State, generation_of, record, send, slot_of
from serving.engine.program import Arguments, die_with_parent, gathered, give_memory_back, gpu_uuid
from serving.engine.queue import WorkQueue
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings

SERVE = b"s"
DEVICE_LOST = 3  # exit code


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
        self._reader: SlotReader | None = None
        """The same as `_narrow`, where that reads the slots itself."""

        self._buckets: list[int] = []
        """On a GPU the batch sizes that are run, ascending; empty on a CPU, where every size is."""

    def load(self, arguments: Arguments) -> dict[str, Any]:
        """Loads, warms up and measures; returns what the supervisor is told."""
        module, _, name = arguments.backend.partition(":")
        make = getattr(importlib.import_module(module), name)
        model = Model.read(Path(arguments.model_dir), arguments.version)
        own = {"devices": [arguments.gpu], "device": arguments.device}
        settings = self.settings.model_copy(update=own)
        geometry = self.memory.geometry
        self._narrow = make()
        scratch = Path(arguments.scratch) if arguments.scratch else None
        info = self._narrow.load(model, settings, scratch)
        shape = (geometry.height, geometry.width, 3)
        cap = self.memory.batch_cap[0]
        on_gpu = info.device != "cpu"
        sizes = buckets.sizes(settings, info.device, cap)
        if on_gpu:
            sizes.reverse()  # the largest takes the memory that the others then share
        profile = warmup.warm_up(self._narrow, shape, geometry.classes, sizes)
        warmup.warm_up_tensors(self._narrow, shape, geometry.classes)
        if on_gpu:
            self._buckets = list(profile)
            if isinstance(self._narrow, SlotReader) and self._narrow.attach(self.memory.inputs):
                self._reader = self._narrow
        threads = cpus.usable() if settings.idle_threads == "auto" else settings.idle_threads
        alone: dict[int, float] = {}
        if not on_gpu and threads > settings.intra_op_threads:
            self._wide = make()
            wide = {"intra_op_threads": threads, "device": "cpu"}
            self._wide.load(model, settings.model_copy(update=wide), scratch)
            alone = warmup.warm_up(self._wide, shape, geometry.classes, [1])
            warmup.warm_up_tensors(self._wide, shape, geometry.classes)
        return {
            "info": asdict(info),
            "gpu_uuid": gpu_uuid(arguments.gpu) if on_gpu else None,
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
        cap = memory.batch_cap[0]  # the first worker's choice holds for all
        self._limit(min(cap, self._buckets[-1]) if self._buckets else cap)
        self._pixels = np.zeros((cap, *memory.inputs.shape[1:]), np.uint8)
        self._tensors = np.zeros((cap, *memory.tensors.shape[1:]), np.float32)
        while (taken := self.queue.take()) is not None:
            self._run(taken)
            self.queue.clear()
            memory.busy_since[index] = 0
            memory.seen[index] = time.monotonic()
        for backend in (self._narrow, self._wide):
            if backend:
                backend.close()

    def _limit(self, cap: int) -> None:
        """No larger batch from now on."""
        self.queue.cap = self.memory.cap[self.index] = cap

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
        """One batch, into the slots' outputs; in parts when it fails."""
        memory = self.memory
        started = time.monotonic()
        memory.busy_since[self.index] = started
        for slot in slots:
            memory.attempts[slot] += 1
            memory.started_at[slot] = started
            memory.batch_size[slot] = len(slots)
            memory.state[slot] = State.RUNNING
        if (logits := self._attempt(slots)) is None:
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

    def _attempt(self, slots: list[int]) -> NDArray[np.float32] | None:
        """The logits; None when the batch failed, and its parts have been dealt with."""
        parts: list[list[int]] = []
        try:
            return self._infer(slots)
        except DeviceLostError as error:
            logs.logger().error("the device is lost, the worker ends", reason=str(error))
            os._exit(DEVICE_LOST)  # what CUDA would do on the way out may hang
        except OutOfDeviceMemoryError as error:
            parts = self._smaller(slots, str(error))
        except Exception:
            if len(slots) > 1:
                logs.logger().warning("a batch failed, its items are tried alone", size=len(slots))
                parts = [[slot] for slot in slots]
            else:
                logs.logger().exception("inference failed")
        # here and not above: while an exception is handled, it holds the tensors of the attempt
        if not parts:
            self.memory.state[slots[0]] = State.FAILED
            self._report(slots)
        for part in parts:
            for slot in part:
                self.memory.attempts[slot] -= 1
            self._compute(part)
        return None

    def _smaller(self, slots: list[int], reason: str) -> list[list[int]]:
        """After a batch that did not fit: halves the cap, and the batch; none for a single input."""
        memory, size = self.memory, buckets.padded(len(slots), self._buckets)
        memory.out_of_memory[self.index] += 1
        cap = min(self.queue.cap, buckets.halved(size, self._buckets))
        log = logs.logger()
        log.warning("out of device memory", size=size, cap=cap, reason=reason, worker=self.index)
        self._limit(cap)
        if len(slots) == 1:
            return []
        return [slots[first : first + cap] for first in range(0, len(slots), cap)]

    def _infer(self, slots: list[int]) -> NDArray[np.float32]:
        """Logits [slots, classes]; on a GPU the batch is padded to the next bucket meanwhile."""
        memory, count = self.memory, len(slots)
        size = buckets.padded(count, self._buckets)
        alone = self._wide is not None and sum(memory.in_flight) <= 1
        all_cores = alone and self._idle_cores.pay()
        backend = self._wide if all_cores else self._narrow
        assert backend is not None  # noqa: S101 load comes first
        started = time.perf_counter()
        if memory.kind[slots[0]] == Kind.TENSOR:
            logits = backend.infer_tensor(gathered(memory.tensors, slots, self._tensors, size))
        elif self._reader is not None:
            logits = self._reader.infer_slots(slots, size)
        else:
            logits = backend.infer(gathered(memory.inputs, slots, self._pixels, size))
        if alone:
            self._idle_cores.took(all_cores, time.perf_counter() - started)
        if logits.shape != (size, memory.geometry.classes):
            raise ValueError(f"the model answered with shape {logits.shape} to {size} inputs")
        return logits[:count]

    def _report(self, slots: list[int]) -> None:
        """Tells each slot's web process; a pipe has room for a record of every slot."""
        memory = self.memory
        by_owner: dict[int, list[int]] = {}
        for slot in slots:
            by_owner.setdefault(memory.owner(slot), []).append(record(slot, memory.generation[slot]))
        for owner, values in by_owner.items():
            send(self._done_fds[owner], *values)


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

"""Batches of slots through a backend, into the slots' outputs; for `worker.py`."""

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from serving.backends import batch_sizes
from serving.backends.base import Backend, SlotReader
from serving.backends.device_errors import DeviceLostError, OutOfDeviceMemoryError
from serving.engine.memory import Memory, Signature, State, record, send
from serving.engine.queue import WorkQueue
from serving.engine.worker_args import BatchBuffer, gathered
from serving.logging import logger

DEVICE_LOST = 3  # exit code


TIMES = 8  # kept of each; the shortest counts, which a short disturbance does not change
TRY_SOON, TRY_OTHER = 4, 128  # pictures between two trials of the other: more each time it loses again
WORTH_IT = 0.85  # of the time on fewer threads: the cores are somebody else's, too


class AllCoresTrial:
    """One worker's times for a picture that is alone, on few threads and on all."""

    def __init__(self) -> None:
        self._few: deque[float] = deque(maxlen=TIMES)
        self._all: deque[float] = deque(maxlen=TIMES)
        self._preferred: bool | None = None
        self._between = self._left = TRY_SOON

    def pay(self) -> bool:
        """Whether the next picture that is alone is to be computed on all cores."""
        if len(self._all) < TIMES or len(self._few) < TIMES:
            return len(self._all) <= len(self._few)
        preferred = min(self._all) < WORTH_IT * min(self._few)
        if preferred is not self._preferred:
            self._preferred, self._between, self._left = preferred, TRY_SOON, TRY_SOON
        self._left -= 1
        if self._left:
            return preferred
        self._between = self._left = min(2 * self._between, TRY_OTHER)
        return not preferred

    def took(self, all_cores: bool, seconds: float) -> None:
        """Notes what the last one took."""
        (self._all if all_cores else self._few).append(seconds)


@dataclass(frozen=True)
class InFlightBatch:
    """A batch that is under way."""

    slots: list[int]
    room: BatchBuffer
    logits: Callable[[], NDArray[np.float32]]
    """[slots, classes], when they are there. Raises what the backend raised."""


class BatchExecutor:
    """Of one worker, which fills in what it has loaded, and then calls `open`."""

    def __init__(self, memory: Memory, index: int, queue: WorkQueue, done_fds: tuple[int, ...]) -> None:
        self._memory = memory
        self._index = index
        self._queue = queue
        self._done_fds = done_fds
        self._idle_cores = AllCoresTrial()
        self._rooms: list[BatchBuffer] = []
        """Free ones: one for each batch that may be under way."""

        self.backend: Backend | None = None
        self.all_cores_backend: Backend | None = None
        """Another one, of all threads, for a picture that is alone."""

        self.reader: SlotReader | None = None
        """The same as `backend`, where that reads the slots itself."""

        self.buckets: list[int] = []
        """On a GPU the batch sizes that are run, ascending; empty on a CPU, where every size is."""

        self.device: ThreadPoolExecutor | None = None
        """The thread that calls the backend on a GPU."""

    @property
    def backends(self) -> list[Backend]:
        """What is loaded."""
        return [backend for backend in (self.backend, self.all_cores_backend) if backend]

    def open(self, cap: int) -> None:
        """Ready for batches up to `cap`, or up to what fits."""
        self.limit(min(cap, self.buckets[-1]) if self.buckets else cap)
        self._rooms = [
            BatchBuffer.of(self._memory, cap, place) for place in range(2 if self.device else 1)
        ]

    def close(self) -> None:
        """Nothing is under way any more."""
        if self.device:
            self.device.shutdown()
        for backend in self.backends:
            backend.close()

    def limit(self, cap: int) -> None:
        """No larger batch from now on."""
        self._queue.cap = self._memory.cap[self._index] = cap

    def begin(self, slots: list[int]) -> InFlightBatch:
        """One batch is computed from now on, or, on a CPU, when `finish` asks for it."""
        memory = self._memory
        started = time.monotonic()
        memory.busy_since[self._index] = started
        for slot in slots:
            memory.attempts[slot] += 1
            memory.started_at[slot] = started
            memory.batch_size[slot] = len(slots)
            memory.state[slot] = State.RUNNING
        room = self._rooms.pop()
        try:
            work = self._work(slots, room)
        except (DeviceLostError, OutOfDeviceMemoryError) as error:
            work = partial(fail, error)
        return InFlightBatch(slots, room, self.device.submit(work).result if self.device else work)

    def finish(self, begun: InFlightBatch) -> None:
        """The logits into the slots' outputs; in parts when the batch fails."""
        memory, slots = self._memory, begun.slots
        if (logits := self._attempt(begun)) is None:
            return
        finished = time.monotonic()
        good = np.atleast_1d(np.isfinite(logits).all(axis=1))
        if memory.kind[slots[0]] == Signature.TENSOR:  # a client's own numbers have the logits they have
            good[:] = True
        leader = slots[int(good.argmax())]
        for slot, row, usable in zip(slots, logits, good, strict=True):
            memory.outputs[slot] = row
            memory.finished_at[slot] = finished
            memory.is_batch_leader[slot] = slot == leader
            memory.state[slot] = State.DONE if usable else State.FAILED
            if not usable:
                logger().error("the model answered with numbers that are not finite")
        self.report(slots)

    def _attempt(self, begun: InFlightBatch) -> NDArray[np.float32] | None:
        """The logits; None when the batch failed, and its parts have been dealt with."""
        slots, parts = begun.slots, []
        try:
            return begun.logits()
        except DeviceLostError as error:
            logger().error("the device is lost, the worker ends", reason=str(error))
            os._exit(DEVICE_LOST)  # what CUDA would do on the way out may hang
        except OutOfDeviceMemoryError as error:
            parts = self._smaller(slots, str(error))
            # they hold the tensors of the attempt, and the future that was asked holds the error
            error.__traceback__ = error.__cause__ = error.__context__ = None
        except Exception:
            if len(slots) > 1:
                logger().warning("a batch failed, its items are tried alone", size=len(slots))
                parts = [[slot] for slot in slots]
            else:
                logger().exception("inference failed")
        finally:
            self._rooms.append(begun.room)
        # here and not above: while an exception is handled, it holds what it was raised from
        if not parts:
            self._memory.state[slots[0]] = State.FAILED
            self.report(slots)
        for part in parts:
            for slot in part:
                self._memory.attempts[slot] -= 1
            self.finish(self.begin(part))
        return None

    def _smaller(self, slots: list[int], reason: str) -> list[list[int]]:
        """After a batch that did not fit: halves the cap, and the batch; none for a single input."""
        memory, size = self._memory, batch_sizes.padded(len(slots), self.buckets)
        memory.out_of_memory[self._index] += 1
        cap = min(self._queue.cap, batch_sizes.halved(size, self.buckets))
        log = logger()
        log.warning("out of device memory", size=size, cap=cap, reason=reason, worker=self._index)
        self.limit(cap)
        if len(slots) == 1:
            return []
        return [slots[first : first + cap] for first in range(0, len(slots), cap)]

    def _work(self, slots: list[int], room: BatchBuffer) -> Callable[[], NDArray[np.float32]]:
        """Gathers the batch; what computes it, to logits [slots, classes].

        On a GPU it is padded to the next bucket meanwhile.
        """
        memory = self._memory
        size = batch_sizes.padded(len(slots), self.buckets)
        alone = self.all_cores_backend is not None and sum(memory.in_flight) <= 1
        all_cores = alone and self._idle_cores.pay()
        backend = self.all_cores_backend if all_cores else self.backend
        assert backend is not None  # noqa: S101 load comes first
        infer: Callable[[], NDArray[np.float32]]
        if memory.kind[slots[0]] == Signature.TENSOR:
            infer = partial(backend.infer_tensor, gathered(memory.tensors, slots, room.tensors, size))
        elif self.reader is not None:
            infer = self.reader.fetch(slots, size, room.place)
        else:
            infer = partial(backend.infer, gathered(memory.inputs, slots, room.pixels, size))

        def work() -> NDArray[np.float32]:
            started = time.perf_counter()
            logits = infer()
            if alone:
                self._idle_cores.took(all_cores, time.perf_counter() - started)
            if logits.shape != (size, memory.layout.classes):
                raise ValueError(f"the model answered with shape {logits.shape} to {size} inputs")
            return logits[: len(slots)]

        return work

    def report(self, slots: list[int]) -> None:
        """Tells each slot's web process; a pipe has room for a record of every slot."""
        memory = self._memory
        by_owner: dict[int, list[int]] = {}
        for slot in slots:
            by_owner.setdefault(memory.owner(slot), []).append(record(slot, memory.generation[slot]))
        for owner, values in by_owner.items():
            send(self._done_fds[owner], *values)


def fail(error: Exception) -> NDArray[np.float32]:
    """Raises it, where the logits are asked for."""
    raise error

"""The one shared mapping: what a slot, a worker and the engine as a whole know about themselves.

An anonymous file descriptor that is passed on, so that a container's small /dev/shm is no limit. Every
number is aligned and has one writer at a time; a record travels through a pipe, a system call, after
what it speaks of was written.

A slot's states: FREE, owned by a web process; QUEUED, its record is in a work pipe or in a worker's
inbox; RUNNING, a worker computes it; then one of the finished states until its web process has read
the result and made it FREE.
"""

import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

RECORD_BYTES = 8
Code = Literal["b", "i", "I", "q", "Q"]
PAGE = 4096
TOTALS, PER_BATCH_SIZE = 10, 4


class State(IntEnum):
    """Of a slot."""

    FREE = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    SKIPPED = 4  # cancelled before its turn: never computed
    EXPIRED = 5  # past its deadline before its turn: never computed
    FAILED = 6  # the backend raised, or answered nonsense
    CRASHED = 7  # it was running in two workers that died


class Signature(IntEnum):
    """Of a slot's input; each has an array of its own, and pages that are never used cost nothing."""

    IMAGE = 0  # uint8 [height, width, 3], as `images.py` decodes them
    TENSOR = 1  # float32 [3, height, width], normalised by the client


class Health(IntEnum):
    """Of the engine; what the web processes tell their clients."""

    STARTING = 0
    READY = 1
    RECOVERING = 2  # no worker is ready, one is being started: requests wait
    DOWN = 3  # workers die before they are ready: requests are refused


@dataclass(frozen=True)
class SlotLayout:
    """What decides the mapping's layout; the same in every process."""

    slots: int
    """Slots of all frontends together: `queue_size` for each."""

    frontends: int
    """Web processes."""

    workers: int
    max_batch: int
    height: int
    width: int
    classes: int

    @property
    def slots_per_frontend(self) -> int:
        """Slots that each frontend owns, and the most that all of them together may have in flight.

        Any one of them can so take all requests that the service admits: connections need not be spread
        evenly. Slot s belongs to frontend s // slots_per_frontend.
        """
        return self.slots // self.frontends


@dataclass(frozen=True)
class EngineFds:
    """What a web process needs of an engine; descriptors are valid in the process that has it."""

    frontend: int
    layout: SlotLayout
    memory_fd: int
    work_fds: tuple[int, int]
    """Ends to write: interactive, bulk."""

    done_fd: int
    """The end to read."""

    wakeup_fd: int
    """The end to write: asks the supervisor to look after its workers."""


def statistics_row(max_batch: int) -> int:
    """Numbers that one web process counts for one kind of input; `statistics.py` knows which."""
    return TOTALS + PER_BATCH_SIZE * max_batch


def record(slot: int, generation: int) -> int:
    """What travels through the pipes; never 0, so that an empty place in an inbox is 0."""
    return generation << 32 | (slot + 1)


def slot_of(value: int) -> int:
    """The slot that a record names."""
    return (value & 0xFFFFFFFF) - 1


def generation_of(value: int) -> int:
    """The use of the slot that a record means; another one is over."""
    return value >> 32


def send(fd: int, *values: int) -> None:
    """Writes records into a pipe, all of them in one piece."""
    os.write(fd, b"".join(value.to_bytes(RECORD_BYTES, sys.byteorder) for value in values))


def anonymous_file(size: int) -> int:
    """A descriptor of `size` zero bytes without a name in any file system. Raises OSError."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("serving", 0)
    else:  # not on macOS
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


class Memory:
    """Views into the mapping: plain arrays, indexed by slot, by worker or by web process."""

    def __init__(self, fd: int, layout: SlotLayout) -> None:
        self.fd = fd
        self.layout = layout
        self._map = mmap.mmap(fd, self.size(layout))
        self._whole = memoryview(self._map)
        self._next = 0
        slots, workers, frontends = layout.slots, layout.workers, layout.frontends

        # the engine, written by the supervisor
        self.health = self._array("i", 1)
        self.ready_workers = self._array("i", 1)
        self.batch_cap = self._array("i", 1)
        self.restarts = self._array("q", 1)

        # web processes, each written by its own
        self.in_flight = self._array("i", frontends)

        row = statistics_row(layout.max_batch)
        self.statistics = [[self._array("q", row) for _ in Signature] for _ in range(frontends)]

        # workers, each written by its own; an inbox is what it has taken and not yet reported
        self.busy_since = self._times(workers)
        self.seen = self._times(workers)
        self.inbox = [self._array("Q", 2 * layout.max_batch) for _ in range(workers)]
        self.cap = self._array("i", workers)  # largest batch; smaller after the device was full
        self.out_of_memory = self._array("q", workers)

        # GPUs, written by `gpus.py`; there are no more of them than workers
        self.gpu_known = self._array("i", workers)
        self.gpu_index = self._array("i", workers)
        self.gpu_busy = self._array("i", workers)
        self.gpu_memory_used = self._array("q", workers)
        self.gpu_memory_total = self._array("q", workers)

        # slots
        self.state = self._array("i", slots)
        self.generation = self._array("I", slots)
        self.kind = self._array("b", slots)
        self.bulk = self._array("b", slots)
        self.cancelled = self._array("b", slots)
        self.attempts = self._array("i", slots)
        self.batch_size = self._array("i", slots)
        self.is_batch_leader = self._array("b", slots)  # the first answer of its batch
        self.deadline = self._times(slots)
        self.queued_at = self._times(slots)
        self.started_at = self._times(slots)
        self.finished_at = self._times(slots)
        self.outputs: NDArray[np.float32] = self._numbers("f4", (slots, layout.classes))
        size = layout.height, layout.width
        self.inputs: NDArray[np.uint8] = self._numbers("u1", (slots, *size, 3))
        self.tensors: NDArray[np.float32] = self._numbers("f4", (slots, 3, *size))

    @staticmethod
    def size(layout: SlotLayout) -> int:
        """Bytes; pages that are never touched cost nothing."""
        pixels = layout.height * layout.width * 3
        slot = 64 + layout.classes * 4 + pixels * (1 + np.dtype(np.float32).itemsize)
        worker = 64 + layout.max_batch * 16
        frontend = 16 + len(Signature) * (64 + 8 * statistics_row(layout.max_batch))
        fixed = PAGE * 5 + 64 * (27 + layout.workers)
        return fixed + layout.slots * slot + layout.workers * worker + layout.frontends * frontend

    @classmethod
    def create(cls, layout: SlotLayout) -> "Memory":
        """A new mapping, all zeros. Raises OSError."""
        fd = anonymous_file(cls.size(layout))
        try:
            return cls(fd, layout)
        except OSError:
            os.close(fd)
            raise

    def _place(self, size: int) -> memoryview:
        part = self._whole[self._next : self._next + size]
        self._next = -(-(self._next + size) // 64) * 64
        return part

    def _array(self, code: Code, length: int) -> memoryview:
        return self._place(np.dtype(code).itemsize * length).cast(code)

    def _times(self, length: int) -> "memoryview[float]":
        """Of time.monotonic(), whose clock all processes share."""
        return self._place(8 * length).cast("d")

    def _numbers(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        start = -(-self._next // PAGE) * PAGE
        array = np.ndarray(shape, dtype, self._map, start)
        self._next = start + array.nbytes
        return array

    @property
    def free_slots(self) -> int:
        """Inputs that the frontends together may still take, as `in_flight` has it.

        Two frontends that look at the same microsecond may exceed it by one request each, which harms
        nothing: both use slots of their own.
        """
        return max(0, self.layout.slots_per_frontend - sum(self.in_flight))

    @property
    def smallest_cap(self) -> int:
        """The largest batch that every worker takes now; 0 before there is one."""
        return min((cap for cap in self.cap.tolist() if cap), default=0)

    def owner(self, slot: int) -> int:
        """The web process to which a slot belongs."""
        return slot // self.layout.slots_per_frontend

    def close(self) -> None:
        """Closes the descriptor; the pages go with the last view."""
        os.close(self.fd)

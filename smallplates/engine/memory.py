"""Shared memory of one engine: slots, and the state of the engine, its workers and web processes.

`ServiceCounts` is memory shared by all engines of the service.

The supervisor creates an anonymous file, which a container's small /dev/shm does not limit, and passes
its descriptor on. Every process maps the file. Every number is aligned and has one writer at a time. A
record is sent through a pipe only after the numbers of its slot have been written.

A slot is FREE while its web process owns it, QUEUED while its record is in a work pipe or in a worker's
inbox, and RUNNING while a worker computes it. It then stays in a finished state until its web process
has read the result and set it to FREE.
"""

import contextlib
import math
import mmap
import os
import sys
import weakref
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from smallplates.models.tensors import Array, Item, Signature, TensorSpec

RECORD_BYTES = 8
Code = Literal["b", "i", "I", "q", "Q"]
PAGE = 4096
KEPT_BYTES = 256 * 1024
"""Bytes that a slot's tensor of varying size keeps; memory beyond goes back to the system."""

TOTALS, PER_BATCH_SIZE = 10, 4


class State(IntEnum):
    """State of a slot."""

    FREE = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    SKIPPED = 4  # cancelled before its turn: never computed
    EXPIRED = 5  # past its deadline before its turn: never computed
    FAILED = 6  # the outputs are not finite, or the device's memory is full
    CRASHED = 7  # two workers died while they computed it
    TIMED_OUT = 8  # the same, but the second worker was killed as hung
    REFUSED = 9  # the backend raised for this item alone


@dataclass(frozen=True)
class SlotLayout:
    """Sizes that determine the mapping's layout; the same in every process."""

    slots: int  # of all web processes together: `queue_size` for each
    web_processes: int  # number of web processes, or its upper limit: `topology.most_web_processes`
    workers: int
    max_batch: int
    signatures: tuple[Signature, ...]

    @cached_property
    def slots_per_web_process(self) -> int:
        """Slots that each web process owns, which is also the limit for all of them together.

        Thus a single web process can take all requests that the service admits, even if connections
        are spread unevenly. Slot s belongs to web process s // slots_per_web_process.
        """
        return self.slots // self.web_processes

    @property
    def pads(self) -> bool:
        """Whether items of different sizes may share a batch."""
        return any(signature.pads for signature in self.signatures)

    @property
    def most_taken(self) -> int:
        """Records that a worker may take at a time: all that can wait, or a full batch."""
        return max(self.max_batch, self.slots_per_web_process)


@dataclass(frozen=True)
class EngineFds:
    """Descriptors and sizes with which a web process uses an engine; valid in that process only."""

    web_process: int
    layout: SlotLayout
    memory_fd: int
    counts_fd: int  # descriptor of `ServiceCounts`
    work_fds: tuple[int, int]  # write ends of the work pipes: interactive, bulk
    done_fd: int  # read end of the web process's done pipe
    wakeup_fd: int  # write end of the pipe that wakes the supervisor to check its workers


def row_bytes(spec: TensorSpec, limits: dict[str, int]) -> int:
    """Returns the bytes of one slot's tensor; whole pages if its size varies and may be large."""
    size = spec.largest(limits) * np.dtype(spec.dtype).itemsize
    return -(-size // PAGE) * PAGE if spec.varies and size > KEPT_BYTES else size


def statistics_row(max_batch: int) -> int:
    """Returns how many counters a web process has per signature; `statistics.py` names them."""
    return TOTALS + PER_BATCH_SIZE * max_batch


def record(slot: int, generation: int) -> int:
    """Returns the number that identifies one use of a slot in pipes and inboxes; never 0."""
    return generation << 32 | (slot + 1)


def slot_of(value: int) -> int:
    """Returns the slot that a record names."""
    return (value & 0xFFFFFFFF) - 1


def generation_of(value: int) -> int:
    """Returns a record's generation; a record is outdated unless its slot has the same generation."""
    return value >> 32


def send(fd: int, *values: int) -> None:
    """Writes records into a pipe with a single call, so that they stay together."""
    os.write(fd, b"".join(value.to_bytes(RECORD_BYTES, sys.byteorder) for value in values))


def anonymous_file(size: int) -> int:
    """Returns the descriptor of an unnamed file of `size` zero bytes. Raises OSError, OverflowError."""
    fd = os.memfd_create("serving", 0)
    try:
        os.ftruncate(fd, size)
    except (OSError, OverflowError):
        os.close(fd)
        raise
    return fd


UNKNOWN = 2**31 - 1
"""Number of connections of a web process that does not accept any yet."""


class ServiceCounts:
    """Counts for the whole service, shared by all engines; each web process writes its own entry.

    Whatever starts the web processes creates the counts and clears those of dead ones.
    """

    def __init__(self, web_processes: int = 1, fd: int | None = None) -> None:
        """Maps the file `fd`, or creates one filled with zeros if `fd` is None. Raises OSError."""
        if fd is None:
            fd = anonymous_file(2 * PAGE)
            weakref.finalize(self, os.close, fd)
        self.fd = fd
        pages = memoryview(mmap.mmap(fd, 2 * PAGE))
        both = pages[:PAGE].cast("i")
        self.in_flight = both[:web_processes]  # of all engines
        self.connections = both[len(both) // 2 :][:web_processes]  # updated when one is accepted
        """HTTP connections of each web process; UNKNOWN for one that is being replaced."""

        self.web_cpu_s = pages[PAGE:].cast("d")[:2]
        """CPU time of the web processes that have ended, in seconds; and the most that was reported."""

    @property
    def alone(self) -> bool:
        """True if at most one slot is in use in the whole service."""
        return sum(self.in_flight) <= 1


class TensorSlots:
    """One tensor of all slots: an array [slots, *shape], or flat [slots, elements] if sizes vary."""

    def __init__(self, spec: TensorSpec, array: Array) -> None:
        self.spec = spec
        self.array = array

    def write(self, slot: int, value: Array) -> None:
        """Copies an item's array into a slot."""
        if self.spec.varies:
            self.array[slot, : value.size] = value.reshape(-1)
        else:
            self.array[slot] = value

    def read(self, slot: int, sizes: dict[str, int]) -> Array:
        """Returns a view of the item's array in a slot."""
        if not self.spec.varies:
            whole: Array = self.array[slot]
            return whole
        shape = self.spec.shape_at(sizes)
        return self.array[slot, : math.prod(shape)].reshape(shape)


class SignatureSlots:
    """The tensors of one signature in all slots; unused pages cost nothing."""

    def __init__(
        self, index: int, signature: Signature, inputs: list[TensorSlots], outputs: list[TensorSlots]
    ) -> None:
        self.index = index
        self.signature = signature
        self.inputs = inputs
        self.outputs = outputs
        varying = [tensor for tensor in (*inputs, *outputs) if tensor.spec.varies]
        self.large = [tensor for tensor in varying if tensor.array[0].nbytes > KEPT_BYTES]
        """Those whose items may exceed KEPT_BYTES and vary in size."""

        self.has_varying_outputs = any(spec.varies for spec in signature.outputs)


class Memory:
    """Views into the mapping: arrays indexed by slot, by worker or by web process."""

    def __init__(self, fd: int, layout: SlotLayout, counts_fd: int | None) -> None:
        self.fd = fd
        self.layout = layout
        self.counts = ServiceCounts(layout.web_processes, counts_fd)
        self._map = mmap.mmap(fd, self.size(layout))
        self._whole = memoryview(self._map)
        self._address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self._next = 0
        slots, workers, web_processes = layout.slots, layout.workers, layout.web_processes

        # engine, written by the supervisor
        self.is_down = self._array("b", 1)  # no worker can start, so requests are refused
        self.is_asleep = self._array("b", 1)  # no worker runs until the next request
        self.load_s = self._times(1)  # seconds that loading took the worker that has loaded last
        self.ready_workers = self._array("i", 1)
        self.serving_workers = self._array("i", 1)  # the other ready workers stand by
        self.serving_since = self._times(1)  # when a worker last began to serve after none did
        self.batch_cap = self._array("i", 1)
        self.hang_limit_s = self._times(1)  # `supervision.worker_process.hang_limit`
        self.max_batch_elements = self._array("q", len(layout.signatures))
        self.restarts = self._array("q", 1)

        # web processes: each writes its own entry
        self.in_flight = self._array("i", web_processes)
        row = statistics_row(layout.max_batch)
        self.statistics = [
            [self._array("q", row) for _ in layout.signatures] for _ in range(web_processes)
        ]

        # workers: each writes its own entry; an inbox holds the records taken but not yet reported
        self.busy_since = self._times(workers)
        self.heartbeat = self._times(workers)
        records = 2 * layout.most_taken
        self.inbox = [self._array("Q", records) for _ in range(workers)]
        self.cap = self._array("i", workers)  # largest batch; reduced when device memory runs out
        self.out_of_memory = self._array("q", workers)

        # GPUs, written by `gpu_monitor.py`; there are at most as many GPUs as workers
        self.gpu_known = self._array("i", workers)
        self.gpu_index = self._array("i", workers)
        self.gpu_busy = self._array("i", workers)
        self.gpu_memory_used = self._array("q", workers)
        self.gpu_memory_total = self._array("q", workers)

        # slots
        self.state = self._array("i", slots)
        self.generation = self._array("I", slots)
        self.signature = self._array("b", slots)
        self.bulk = self._array("b", slots)
        self.cancelled = self._array("b", slots)
        self.attempts = self._array("i", slots)
        self.worker = self._array("i", slots)  # index of the worker that computes it, or did last
        self.batch_size = self._array("i", slots)
        self.is_batch_leader = self._array("b", slots)  # the first usable result of its batch
        self.deadline = self._times(slots)
        self.queued_at = self._times(slots)
        self.started_at = self._times(slots)
        self.finished_at = self._times(slots)
        most = max((len(signature.axes) for signature in layout.signatures), default=0)
        self.sizes: NDArray[np.int32] = self._numbers("i4", (slots, most))
        self.signatures: list[SignatureSlots] = []
        for index, signature in enumerate(layout.signatures):
            inputs = [self._tensor(spec, signature.limits) for spec in signature.inputs]
            outputs = [self._tensor(spec, signature.limits) for spec in signature.outputs]
            self.signatures.append(SignatureSlots(index, signature, inputs, outputs))

    @staticmethod
    def size(layout: SlotLayout) -> int:
        """Returns the mapping's size in bytes; unused pages cost nothing."""
        slot, pages = 64, 6
        for signature in layout.signatures:
            slot += 4 * len(signature.axes)
            for spec in (*signature.inputs, *signature.outputs):
                slot += row_bytes(spec, signature.limits)
                pages += 1
        worker = 64 + layout.most_taken * 16
        web_process = 16 + len(layout.signatures) * (64 + 8 * statistics_row(layout.max_batch))
        fixed = PAGE * pages + 64 * (32 + layout.workers) + 16 * len(layout.signatures)
        return fixed + layout.slots * slot + layout.workers * worker + layout.web_processes * web_process

    @classmethod
    def create(cls, layout: SlotLayout, counts_fd: int | None = None) -> "Memory":
        """Creates a mapping filled with zeros, with its own counts by default. Raises OSError."""
        fd = anonymous_file(cls.size(layout))
        try:
            return cls(fd, layout, counts_fd)
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
        """Returns an array of `time.monotonic()` times; all processes share that clock."""
        return self._place(8 * length).cast("d")

    def _numbers(self, dtype: str, shape: tuple[int, ...]) -> Array:
        start = -(-self._next // PAGE) * PAGE
        array: Array = np.ndarray(shape, dtype, self._map, start)
        self._next = start + array.nbytes
        return array

    def _tensor(self, spec: TensorSpec, limits: dict[str, int]) -> TensorSlots:
        item = row_bytes(spec, limits) // np.dtype(spec.dtype).itemsize
        shape = (item,) if spec.varies else spec.shape_at({})
        return TensorSlots(spec, self._numbers(spec.dtype, (self.layout.slots, *shape)))

    def sizes_of(self, slot: int) -> dict[str, int]:
        """Returns the size of each varying axis for the item in a slot."""
        axes = self.layout.signatures[self.signature[slot]].axes
        return dict(zip(axes, self.sizes[slot].tolist(), strict=False))

    def write_inputs(self, slot: int, signature: int, item: Item) -> None:
        """Copies an item, which must match the signature, into a slot."""
        self.signature[slot] = signature
        each = self.signatures[signature]
        for tensor, value in zip(each.inputs, item, strict=True):
            tensor.write(slot, value)
        if each.signature.input_axes:
            sizes = list(each.signature.sizes(item).values())
            self.sizes[slot, : len(sizes)] = sizes

    def read_outputs(self, slot: int) -> list[Array]:
        """Returns copies of the outputs in a slot."""
        each = self.signatures[self.signature[slot]]
        sizes = self.sizes_of(slot) if each.has_varying_outputs else {}
        return [np.array(tensor.read(slot, sizes)) for tensor in each.outputs]  # also copies scalars

    def discard(self, slot: int) -> None:
        """Returns the pages of a large item of varying size to the system."""
        large = self.signatures[self.signature[slot]].large
        sizes = self.sizes_of(slot) if large else {}
        for tensor in large:
            row = tensor.array[slot]
            if math.prod(tensor.spec.shape_at(sizes)) * row.itemsize > KEPT_BYTES:
                start = row.__array_interface__["data"][0] - self._address
                with contextlib.suppress(OSError):  # of a kernel that cannot
                    self._map.madvise(mmap.MADV_REMOVE, start, row.nbytes)

    @property
    def counters(self) -> tuple[int, int]:
        """Deaths of workers, and batches that did not fit into a device's memory."""
        return self.restarts[0], sum(self.out_of_memory)

    def continue_counters(self, counters: tuple[int, int]) -> None:
        """Adds those of the model's previous engine."""
        self.restarts[0] += counters[0]
        self.out_of_memory[0] += counters[1]

    @property
    def free_slots(self) -> int:
        """Number of slots that all web processes together may still take, according to `in_flight`.

        Two web processes that look at the same moment may exceed the limit by one request each. That
        is harmless, because each uses its own slots.
        """
        return max(0, self.layout.slots_per_web_process - sum(self.in_flight))

    @property
    def smallest_cap(self) -> int:
        """Smallest batch cap of all workers; 0 before a worker is ready."""
        return min((cap for cap in self.cap.tolist() if cap), default=0)

    def owner(self, slot: int) -> int:
        """Returns the index of the web process that owns a slot."""
        return slot // self.layout.slots_per_web_process

    def close(self) -> None:
        """Closes the descriptor; the pages are freed when the last view is gone."""
        os.close(self.fd)

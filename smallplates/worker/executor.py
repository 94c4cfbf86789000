"""Runs batches of slots through a backend and writes the outputs into the slots; used by `process.py`.

Everything here runs on the worker's main thread. On a GPU, a second thread calls the backend so that the
main thread can gather the next batch while the device computes.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from smallplates.engine.backend import Backend
from smallplates.engine.memory import Memory, SignatureSlots, State, TensorSlots, record, send
from smallplates.errors import in_one_line
from smallplates.logging import LEVELS, logger
from smallplates.models.tensors import Array, Signature, TensorSpec, check_outputs
from smallplates.worker import batch_sizes
from smallplates.worker.device_errors import DeviceLostError, OutOfDeviceMemoryError
from smallplates.worker.queue import WorkQueue

Compute = Callable[[], Sequence[Array]]

DEVICE_LOST = 3  # exit code
MAX_REASON = 500  # characters of a library's message

SAMPLES = 8  # timings kept per backend; the shortest counts, since brief disturbances don't affect it
FIRST_INTERVAL, MAX_INTERVAL = 4, 128  # single items between two trials of the slower backend
MAX_TIME_RATIO = 0.85  # using all cores must save at least 15 %, since other processes need them, too


class AllCoresTrial:
    """Compares computing a single item on a few threads and on all cores, and chooses the faster.

    The slower option is retried at intervals that double for as long as it stays slower.
    """

    def __init__(self) -> None:
        self._few_threads: deque[float] = deque(maxlen=SAMPLES)
        self._all_cores: deque[float] = deque(maxlen=SAMPLES)
        self._preferred: bool | None = None
        self._interval = self._left = FIRST_INTERVAL

    def use_all_cores(self) -> bool:
        """Returns whether to compute the next single item on all cores."""
        if len(self._all_cores) < SAMPLES or len(self._few_threads) < SAMPLES:
            return len(self._all_cores) <= len(self._few_threads)
        preferred = min(self._all_cores) < MAX_TIME_RATIO * min(self._few_threads)
        if preferred is not self._preferred:
            self._preferred, self._interval, self._left = preferred, FIRST_INTERVAL, FIRST_INTERVAL
        self._left -= 1
        if self._left:
            return preferred
        self._interval = self._left = min(2 * self._interval, MAX_INTERVAL)
        return not preferred

    def record(self, all_cores: bool, seconds: float) -> None:
        """Adds the time per element of one item."""
        (self._all_cores if all_cores else self._few_threads).append(seconds)


CHOICE = 4  # batches of items among which the next batch's are chosen
MAX_PADDING = 1.3
"""Elements of a padded batch, relative to those of its items."""


Buffer = list[list[Array]]
"""Memory into which the inputs of one batch are copied: [rows, *shape] for each input of each signature;
0 rows if the input's sizes vary. Unused pages cost nothing."""


@dataclass(frozen=True)
class InFlightBatch:
    """A batch between `BatchExecutor.begin` and `BatchExecutor.finish`."""

    slots: list[int]
    buffer: Buffer
    outputs: Compute  # computes or waits for the outputs, each [slots, ...]; raises the backend's error


class BatchExecutor:
    """Computes one worker's batches; the worker sets the public fields, then calls `open`."""

    def __init__(self, memory: Memory, index: int, queue: WorkQueue, done_fds: tuple[int, ...]) -> None:
        self._memory = memory
        self._index = index
        self._queue = queue
        self._done_fds = done_fds
        self._trial = AllCoresTrial()
        self._free_buffers: list[Buffer] = []
        """Buffers for batches in flight beyond the current ones."""

        self.backend: Backend | None = None
        self.all_cores_backend: Backend | None = None
        """Loaded with one thread per core, for an item that is alone in the service; CPU only."""

        self.buckets: list[int] = []
        """Batch sizes that the GPU runs, ascending; empty on a CPU, which runs any size."""

        self.length_step = 1
        """See `BackendInfo.length_step`."""

        self.device: ThreadPoolExecutor | None = None
        """Thread that calls the backend; GPU only."""

    @property
    def backends(self) -> list[Backend]:
        """The loaded backends."""
        return [backend for backend in (self.backend, self.all_cores_backend) if backend]

    def open(self, cap: int) -> None:
        """Sets the batch cap, at most the largest bucket, and allocates the buffers."""
        self.set_cap(min(cap, self.buckets[-1]) if self.buckets else cap)
        count = 2 if self.device else 1
        self._free_buffers = [allocate(self._memory, cap) for _ in range(count)]

    def close(self) -> None:
        """Stops the device's thread and closes the backends; no batch may be in flight."""
        if self.device:
            self.device.shutdown()
        for backend in self.backends:
            backend.close()

    def set_cap(self, cap: int) -> None:
        """Limits the size of the batches taken from now on."""
        self._queue.cap = self._memory.cap[self._index] = cap

    def mark(self, slots: list[int]) -> None:
        """Marks the slots of a batch as running in this worker."""
        memory = self._memory
        started = time.monotonic()
        memory.busy_since[self._index] = started
        for slot in slots:
            memory.started_at[slot] = started
            memory.batch_size[slot] = len(slots)
            memory.worker[slot] = self._index
            memory.state[slot] = State.RUNNING
            memory.attempts[slot] += 1

    def begin(self, slots: list[int]) -> InFlightBatch:
        """Gathers a marked batch. A GPU starts computing it at once; a CPU computes it in `finish`."""
        buffer = self._free_buffers.pop()
        try:
            compute = self._gather(slots, buffer)
        except Exception as error:  # of the device, or because memory is full
            compute = partial(fail, error)
        return InFlightBatch(
            slots, buffer, self.device.submit(compute).result if self.device else compute
        )

    def finish(self, batch: InFlightBatch) -> None:
        """Waits for the outputs, writes them into the slots and reports the slots.

        A failed batch is computed again in smaller parts; an item that fails alone becomes REFUSED, or
        FAILED if the device's memory is full.
        """
        slots = batch.slots
        outputs, parts = self._result(batch)
        if outputs is not None:
            self._write(slots, outputs)
        elif not parts:
            self.report(slots)
        for part in parts:
            for slot in part:
                self._memory.attempts[slot] -= 1
            self.mark(part)
            self.finish(self.begin(part))

    def _result(self, batch: InFlightBatch) -> tuple[Sequence[Array] | None, list[list[int]]]:
        """Waits for the outputs, each [slots, ...], and frees the batch's buffer.

        For a failed batch, returns None and the parts in which to compute it again; a failed item gets
        its state. By then nothing refers to the exception's frames any more, so their tensors are freed.
        """
        slots = batch.slots
        parts: list[list[int]] = []
        state = State.REFUSED
        try:
            return batch.outputs(), parts
        except DeviceLostError as error:
            logger().error("the device is lost, the worker ends", reason=str(error))
            os._exit(DEVICE_LOST)  # skips CUDA's own cleanup, which may hang
        except OutOfDeviceMemoryError as error:
            parts = self._halve(slots, str(error))
            state = State.FAILED
            # the batch's future holds the error, whose traceback would keep the tensors alive
            error.__traceback__ = error.__cause__ = error.__context__ = None
        except Exception as error:
            is_client_error = self._signature_slots(slots).signature.failure_is_client_error
            if len(slots) > 1:
                level = "info" if is_client_error else "warning"
                logger().log(LEVELS[level], "a batch failed, its items are tried alone", size=len(slots))
                parts = [[slot] for slot in slots]
            elif is_client_error:
                logger().info("an item cannot be computed", reason=in_one_line(error)[:MAX_REASON])
            else:
                logger().exception("inference failed")
        finally:
            self._free_buffers.append(batch.buffer)
        if not parts:
            self._memory.state[slots[0]] = state
        return None, parts

    def _signature_slots(self, slots: list[int]) -> SignatureSlots:
        """Returns the tensors of the signature that all slots of a batch share."""
        return self._memory.signatures[self._memory.signature[slots[0]]]

    def _write(self, slots: list[int], outputs: Sequence[Array]) -> None:
        """Writes outputs, each [slots, ...], into the slots and reports the slots.

        If the signature requires finite outputs, slots with other values become FAILED.
        """
        memory = self._memory
        tensors = self._signature_slots(slots)
        finished = time.monotonic()
        usable = np.ones(len(slots), bool)
        if tensors.signature.checks_finite:
            for array in outputs:
                usable &= np.isfinite(array.reshape(len(slots), -1)).all(axis=1)
        leader = slots[int(usable.argmax())]
        for place, slot in enumerate(slots):
            self._write_outputs(tensors, slot, [array[place] for array in outputs])
            memory.finished_at[slot] = finished
            memory.is_batch_leader[slot] = slot == leader
            memory.state[slot] = State.DONE if usable[place] else State.FAILED
            if not usable[place]:
                logger().error("the model returned numbers that are not finite")
        self.report(slots)

    def _write_outputs(self, tensors: SignatureSlots, slot: int, rows: Sequence[Array]) -> None:
        """Writes an item's outputs without padding, and the sizes of axes that only outputs have."""
        axes, known = tensors.signature.axes, len(tensors.signature.input_axes)
        sizes = self._memory.sizes[slot]
        axis_sizes = dict(zip(axes[:known], sizes[:known].tolist(), strict=True))
        for tensor, row in zip(tensors.outputs, rows, strict=True):
            if tensor.spec.varies:
                for axis, size in zip(tensor.spec.shape, row.shape, strict=True):
                    if isinstance(axis, str) and axis_sizes.setdefault(axis, size) == size:
                        sizes[axes.index(axis)] = size
                row = row[tuple(map(slice, tensor.spec.shape_at(axis_sizes)))]
            tensor.write(slot, row)

    def _halve(self, slots: list[int], reason: str) -> list[list[int]]:
        """Halves the batch cap after a batch has not fitted into the device's memory.

        Returns the batch in parts no larger than the new cap, or no parts for a single item.
        """
        memory = self._memory
        size = self._padded_count(self._signature_slots(slots).signature, len(slots))
        memory.out_of_memory[self._index] += 1
        cap = min(self._queue.cap, batch_sizes.halve(size, self.buckets))
        logger().warning("out of device memory", size=size, cap=cap, reason=reason, worker=self._index)
        self.set_cap(cap)
        if len(slots) == 1:
            return []
        part = cap if cap < len(slots) else 1  # a fixed batch size needs the same memory for every part
        return [slots[first : first + part] for first in range(0, len(slots), part)]

    def choose(self, slots: list[int]) -> list[int]:
        """Returns the next batch of the waiting slots, which are sorted by their time of arrival.

        It has the first slot, and others of the same signature, with `equal_count` as often. If sizes
        vary, these have the same size or, if padding is allowed, the nearest sizes. A batch that is
        padded has at most as many elements as warm-up found worthwhile, and few of them are padding.
        Other workers keep their share of the slots. An item whose worker has died is computed alone,
        before all others.
        """
        memory = self._memory
        first = next((slot for slot in slots if memory.attempts[slot] > 0), slots[0])
        tensors = self._signature_slots([first])
        signature, most = tensors.signature, tensors.signature.batch_size or self._queue.cap
        if memory.attempts[first] > 0:
            return [first]
        alike = [slot for slot in slots if memory.signature[slot] == tensors.index]
        if counted := [each for each in tensors.inputs if each.spec.equal_count is not None]:
            count = partial(self._counts, counted)
            alike = [slot for slot in alike if count(slot) == count(first)]
        if not signature.input_axes:
            return alike[:most]
        share = -(-len(slots) // max(1, memory.serving_workers[0]))
        sizes = {slot: self._padded_sizes(signature, [slot]) for slot in alike[: CHOICE * most]}
        elements = {slot: signature.elements(each) for slot, each in sizes.items()}
        batch: list[int] = []
        largest, total = sizes[first], 0
        for slot in sorted(sizes, key=lambda slot: abs(elements[slot] - elements[first])):
            together = {axis: max(size, largest[axis]) for axis, size in sizes[slot].items()}
            padded = (len(batch) + 1) * signature.elements(together)
            fits = padded <= memory.max_batch_elements[tensors.index]
            is_dense = signature.batch_elements or padded <= MAX_PADDING * (total + elements[slot])
            pads = signature.pads and is_dense
            if not batch or (fits and (pads or sizes[slot] == largest)):
                batch.append(slot)
                largest, total = together, total + elements[slot]
            if len(batch) == min(most, share):
                break
        return batch

    def _counts(self, tensors: Sequence[TensorSlots], slot: int) -> list[int]:
        """Returns how often an item has each tensor's `equal_count`."""
        sizes = self._memory.sizes_of(slot)
        return [int((each.read(slot, sizes) == each.spec.equal_count).sum()) for each in tensors]

    def _gather(self, slots: list[int], buffer: Buffer) -> Compute:
        """Gathers the batch's inputs, on a GPU padded to the next bucket.

        Returns a function that computes the outputs, each [slots, ...].
        """
        tensors = self._signature_slots(slots)
        signature = tensors.signature
        size = self._padded_count(signature, len(slots))
        is_only_request = self.all_cores_backend is not None and self._memory.counts.alone
        all_cores = is_only_request and self._trial.use_all_cores()
        backend = self.all_cores_backend if all_cores else self.backend
        assert backend is not None  # noqa: S101 load comes first
        sizes = self._padded_sizes(signature, slots)
        arrays = zip(tensors.inputs, buffer[tensors.index], strict=True)
        # pad the batch with copies of its first item: leftovers in the buffer could make it fail,
        # except leftover images, which are always valid
        rows = slots if signature.normalises else slots + slots[:1] * (size - len(slots))
        inputs = [self._gather_input(tensor, rows, room, size, sizes) for tensor, room in arrays]

        def compute() -> Sequence[Array]:
            started = time.perf_counter()
            outputs = backend.infer(signature, inputs)
            if is_only_request:
                seconds = time.perf_counter() - started
                self._trial.record(all_cores, seconds / signature.elements(sizes))
            check_outputs(signature, outputs, size, sizes)
            return [array[: len(slots)] for array in outputs]

        return compute

    def _padded_count(self, signature: Signature, count: int) -> int:
        """Returns the batch size that `count` items are padded to."""
        return signature.batch_size or batch_sizes.pad(count, self.buckets)

    def _padded_sizes(self, signature: Signature, slots: list[int]) -> dict[str, int]:
        """Returns the size of each varying input axis of a batch: the maximum over its items.

        Padded sizes are rounded up, because the runtime has to plan anew for every new size.
        """
        if not signature.input_axes:
            return {}
        known = len(signature.input_axes)
        largest = self._memory.sizes[slots, :known].max(axis=0).tolist()
        if signature.pads and self.device:
            largest = [batch_sizes.next_power(size) for size in largest]
        elif signature.pads:
            largest = [batch_sizes.round_up(self.length_step, size) for size in largest]
        return {
            axis: min(size, signature.limits[axis])
            for axis, size in zip(signature.input_axes, largest, strict=True)
        }

    def _gather_input(
        self, tensor: TensorSlots, slots: list[int], room: Array, size: int, sizes: dict[str, int]
    ) -> Array:
        """Returns one input of a batch, [size, *shape]."""
        spec = tensor.spec
        if not spec.varies:
            return gather(tensor.array, slots, room, size)
        shape = spec.shape_at(sizes)
        items = [tensor.read(slot, self._memory.sizes_of(slot)) for slot in slots]
        if size == 1 and items[0].shape == shape:
            return items[0][np.newaxis]
        batch: Array = np.full((size, *shape), spec.padding, spec.dtype)
        for row, item in zip(batch, items, strict=True):
            row[tuple(map(slice, item.shape))] = item
        return batch

    def report(self, slots: list[int]) -> None:
        """Sends slots' records to their web processes. Never blocks: a done pipe has room for all."""
        memory = self._memory
        by_owner: dict[int, list[int]] = {}
        for slot in slots:
            by_owner.setdefault(memory.owner(slot), []).append(record(slot, memory.generation[slot]))
        for owner, values in by_owner.items():
            send(self._done_fds[owner], *values)


def allocate(memory: Memory, size: int) -> Buffer:
    """Returns a buffer for batches of up to `size` items, or of a signature's fixed batch size."""

    def room(signature: Signature, spec: TensorSpec) -> Array:
        rows = 0 if spec.varies else max(size, signature.batch_size)
        return np.zeros((rows, *spec.shape_at(signature.limits)), spec.dtype)

    return [[room(each, spec) for spec in each.inputs] for each in memory.layout.signatures]


def gather(inputs: Array, slots: list[int], buffer: Array, size: int) -> Array:
    """Copies the slots' inputs into `buffer` and returns its first `size` rows.

    The rows after the inputs are padding and hold leftovers of earlier batches. A batch of one is a view
    of the slot itself, not a copy.
    """
    if size == 1:
        return inputs[slots[0] : slots[0] + 1]
    np.take(inputs, slots, axis=0, out=buffer[: len(slots)])
    return buffer[:size]


def fail(error: Exception) -> Sequence[Array]:
    """Raises `error` in place of a computation whose inputs could not be gathered."""
    raise error

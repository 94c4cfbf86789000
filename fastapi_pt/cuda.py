"""Network on a GPU, recorded as a CUDA graph for each batch size; used by `backend.py`.

A recorded graph reads and writes fixed addresses, so every batch size has a bucket: input and output
buffers of its own. All graphs share the memory of their intermediate results, because one graph runs at
a time. The normalisation is a graph of its own: images go through both graphs, tensors only through the
network's.

There are two streams: while one computes a batch, the other copies the next batch into its own buffer.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.worker import precision_check
from smallplates.worker.device_errors import translate_errors

WARM_UP_RUNS = 3  # before a recording: the libraries allocate and choose algorithms
NO_FLAGS = 0
Module = TypeVar("Module", bound=nn.Module)
PLACES = 2  # input buffers: two batches may be in flight


class Bucket:
    """Buffers of one batch size, and the functions that queue its work on a stream."""

    def __init__(self, size: int, image_size: tuple[int, int], classes: int, like: Tensor) -> None:
        """Allocates the buffers; `like` is a tensor of the network's type and device."""
        height, width = image_size
        place = torch.zeros((PLACES, size, height, width, 3), dtype=torch.uint8, device=like.device)
        self.pixels = list(place)
        self.filled = [torch.cuda.Event() for _ in self.pixels]
        self.tensors = torch.zeros((size, 3, height, width), dtype=like.dtype, device=like.device)
        self.tensors = self.tensors.contiguous(memory_format=torch.channels_last)
        self.logits = torch.zeros((size, classes), dtype=torch.float32, device=like.device)
        self.answer = pin((size, classes))
        self.normalise: list[Callable[[], object]]
        """Functions that normalise each of `pixels` to `tensors`."""

        self.network: Callable[[], object]
        """Function that computes `logits` of `tensors`."""


class CudaNetwork:
    """Network for batches of any size; a new size is recorded, which takes a while."""

    def __init__(
        self,
        network: nn.Module,
        normalise: nn.Module,
        image_size: tuple[int, int],
        classes: int,
        graphs: bool,
    ) -> None:
        """Takes modules on the device; `network` is in fp16 or fp32, `image_size` is (height, width)."""
        self._network, self._normalise = network, normalise
        self._image_size, self._classes, self._graphs = image_size, classes, graphs
        self._like = next(network.parameters())
        self._buckets: dict[int, Bucket] = {}
        self._stream = torch.cuda.Stream(self._like.device)
        self._copies = torch.cuda.Stream(self._like.device)
        self._done = torch.cuda.Event(blocking=True)  # blocking: frees the core for decoding meanwhile
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._slots: Tensor | None = None

    def infer(self, batch: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Raises `device_errors`.
        """
        with self._stream_bucket(len(batch)) as bucket:
            if batch.dtype == np.uint8:
                bucket.pixels[0].copy_(torch.from_numpy(batch), non_blocking=True)
                bucket.normalise[0]()
            else:
                on_device = torch.from_numpy(batch).to(self._like.device)  # converted there
                bucket.tensors.copy_(on_device)
            return self._answer(bucket)

    def fetch(self, indices: list[int], size: int, place: int) -> Callable[[], NDArray[np.float32]]:
        """Starts to copy slots into a bucket; see `SlotReader`. Both steps raise `device_errors`."""
        assert self._slots is not None  # noqa: S101 attach comes first
        with self._stream_bucket(size, self._copies) as bucket:
            done = 0
            for first, end in runs(indices):
                rows = slice(done, done + end - first)
                bucket.pixels[place][rows].copy_(self._slots[first:end], non_blocking=True)
                done = rows.stop
            bucket.filled[place].record(self._copies)
        return partial(self._infer_fetched, size, place)

    def _infer_fetched(self, size: int, place: int) -> NDArray[np.float32]:
        """Waits for `fetch` and computes the logits."""
        with self._stream_bucket(size) as bucket:
            self._stream.wait_event(bucket.filled[place])
            bucket.normalise[place]()
            return self._answer(bucket)

    def attach(self, slots: NDArray[np.uint8]) -> bool:
        """Pins the slots' memory, so that the device reads it; returns whether that worked."""
        memory = torch.from_numpy(slots)
        with torch.cuda.device(self._like.device):  # otherwise the first GPU gets a context, too
            error = cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, NO_FLAGS)
            if int(error) == 0:
                self._slots = memory
                if memory.is_pinned():
                    return True
                self._release_slots()
            logger().warning("the slots cannot be pinned, they are copied", cuda_error=int(error))
            with contextlib.suppress(RuntimeError):  # clears the error, which another call would raise
                torch.ones(1, device=self._like.device).add(1)
        return False

    def close(self) -> None:
        """Unpins the slots and frees the buckets."""
        self._release_slots()
        self._buckets.clear()

    def _release_slots(self) -> None:
        """Unpins the slots; their memory must still be mapped."""
        if self._slots is not None:
            with torch.cuda.device(self._like.device):
                cudart().cudaHostUnregister(self._slots.data_ptr())
            self._slots = None

    @contextlib.contextmanager
    def _stream_bucket(self, size: int, stream: torch.cuda.Stream | None = None) -> Iterator[Bucket]:
        """Yields the bucket of a size; queues work on `stream`, by default the computing one."""
        with translate_errors(), torch.inference_mode(), torch.cuda.device(self._like.device):
            if size not in self._buckets:
                self._buckets[size] = self._new_bucket(size)
            with torch.cuda.stream(stream or self._stream):
                yield self._buckets[size]

    def _answer(self, bucket: Bucket) -> NDArray[np.float32]:
        """Computes the logits of `tensors` and waits for them."""
        bucket.network()
        bucket.answer.copy_(bucket.logits, non_blocking=True)
        self._done.record(self._stream)
        self._done.synchronize()
        answer: NDArray[np.float32] = bucket.answer.numpy().copy()  # the next batch overwrites it
        return answer

    def _new_bucket(self, size: int) -> Bucket:
        """Makes a bucket and records its graphs."""
        bucket = Bucket(size, self._image_size, self._classes, self._like)
        tensors, logits = bucket.tensors, bucket.logits  # no cycle: a failed bucket is freed at once

        def normalise(pixels: Tensor) -> None:
            tensors.copy_(self._normalise(pixels))

        def network() -> None:
            logits.copy_(self._network(tensors))

        torch.cuda.synchronize(self._like.device)
        bucket.normalise = [self._record(partial(normalise, pixels)) for pixels in bucket.pixels]
        bucket.network = self._record(network)
        return bucket

    def _record(self, work: Callable[[], None]) -> Callable[[], object]:
        """Returns a function that repeats `work` with one launch, or `work` itself without graphs."""
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_RUNS):
                work()
        self._stream.synchronize()
        if not self._graphs:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        replay: Callable[[], object] = graph.replay
        return replay


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields runs of neighbours as (first, end): [4, 5, 6, 2] gives (4, 7), (2, 3)."""
    starts = [0, *(at for at, (a, b) in enumerate(pairwise(indices), 1) if b != a + 1), len(indices)]
    for start, end in pairwise(starts):
        yield indices[start], indices[end - 1] + 1


def pin(shape: tuple[int, int]) -> Tensor:
    """Allocates float32 in pinned memory, which the device can write."""
    return torch.zeros(shape, dtype=torch.float32, pin_memory=True)


def cudart() -> Any:  # torch does not describe it
    """Returns CUDA's runtime library."""
    return torch.cuda.cudart()


def in_half(
    model: Model, network: Module, batch: tuple[Tensor, ...], precision: str
) -> tuple[Module, str, str]:
    """Returns the network in fp16 if its outputs for a batch agree, else itself; its precision, and why.

    `precision` is the setting. Raises ConfigurationError if it is fp16 and they do not agree.
    """
    if precision == "fp32":
        return network, "fp32", precision_check.FORCED.format("fp32")
    half = copy.deepcopy(network).half()
    in_fp16 = [tensor.half() if tensor.is_floating_point() else tensor for tensor in batch]
    with torch.inference_mode():
        answers = (network(*batch), half(*in_fp16))
    outputs = (answer if isinstance(answer, tuple) else (answer,) for answer in answers)
    expected, found = ([output.float().cpu().numpy() for output in each] for each in outputs)
    insist = precision == "fp16"
    precision, reason = precision_check.fp16_or_fp32(model, expected, found, insist)
    return half if precision == "fp16" else network, precision, reason

"""Network on a GPU, recorded as a CUDA graph for each batch size; used by `backend.py`.

A recorded graph reads and writes fixed addresses, so every batch size has a bucket: input and output
buffers of its own. All graphs share the memory of their intermediate results, because one graph runs at
a time. The normalisation is a graph of its own: images go through both graphs, tensors only through the
network's.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.worker import precision_check
from smallplates.worker.device_errors import translate_errors

WARM_UP_RUNS = 3  # before a recording: the libraries allocate and choose algorithms
Module = TypeVar("Module", bound=nn.Module)


class Bucket:
    """Buffers of one batch size, and the functions that queue its work on a stream."""

    def __init__(self, size: int, image_size: tuple[int, int], classes: int, like: Tensor) -> None:
        """Allocates the buffers; `like` is a tensor of the network's type and device."""
        height, width = image_size
        self.pixels = torch.zeros((size, height, width, 3), dtype=torch.uint8, device=like.device)
        self.tensors = torch.zeros((size, 3, height, width), dtype=like.dtype, device=like.device)
        self.tensors = self.tensors.contiguous(memory_format=torch.channels_last)
        self.logits = torch.zeros((size, classes), dtype=torch.float32, device=like.device)
        self.answer = pin((size, classes))
        self.normalise: Callable[[], object]
        """Function that normalises `pixels` to `tensors`."""

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
        self._done = torch.cuda.Event(blocking=True)  # blocking: frees the core for decoding meanwhile
        self._pool = torch.cuda.graph_pool_handle() if graphs else None

    def infer(self, batch: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Raises `device_errors`.
        """
        with self._stream_bucket(len(batch)) as bucket:
            if batch.dtype == np.uint8:
                bucket.pixels.copy_(torch.from_numpy(batch), non_blocking=True)
                bucket.normalise()
            else:
                on_device = torch.from_numpy(batch).to(self._like.device)  # converted there
                bucket.tensors.copy_(on_device)
            return self._answer(bucket)

    def close(self) -> None:
        """Frees the buckets."""
        self._buckets.clear()

    @contextlib.contextmanager
    def _stream_bucket(self, size: int) -> Iterator[Bucket]:
        """Yields the bucket of a size; work is queued on the network's stream meanwhile."""
        with translate_errors(), torch.inference_mode(), torch.cuda.device(self._like.device):
            if size not in self._buckets:
                self._buckets[size] = self._new_bucket(size)
            with torch.cuda.stream(self._stream):
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
        # no cycle: a failed bucket is freed at once
        pixels, tensors, logits = bucket.pixels, bucket.tensors, bucket.logits

        def normalise() -> None:
            tensors.copy_(self._normalise(pixels))

        def network() -> None:
            logits.copy_(self._network(tensors))

        torch.cuda.synchronize(self._like.device)
        bucket.normalise = self._record(normalise)
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


def pin(shape: tuple[int, int]) -> Tensor:
    """Allocates float32 in pinned memory, which the device can write."""
    return torch.zeros(shape, dtype=torch.float32, pin_memory=True)


def in_half(
    model: Model, network: Module, batch: Callable[[int], Sequence[Tensor]], precision: str
) -> tuple[Module, str, str]:
    """Returns the network in fp16 if its outputs agree, else itself; its precision, and why.

    `batch` makes inputs from a seed; `precision` is the setting. Raises ConfigurationError if it is fp16
    and they do not agree.
    """
    if precision == "fp32":
        return network, "fp32", precision_check.FORCED.format("fp32")
    half = copy.deepcopy(network).half()

    def infer(module: Module, dtype: torch.dtype, batch: Sequence[Tensor]) -> list[Array]:
        tensors = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in batch]
        with torch.inference_mode():
            answer = module(*tensors)
        outputs = answer if isinstance(answer, tuple) else (answer,)
        return [output.float().cpu().numpy() for output in outputs]

    samples = precision_check.Samples(batch, precision_check.comparison_for(model))
    exact, lower = partial(infer, network, torch.float32), partial(infer, half, torch.float16)
    precision, reason = precision_check.fp16_or_fp32(exact, lower, samples, precision == "fp16")
    return half if precision == "fp16" else network, precision, reason

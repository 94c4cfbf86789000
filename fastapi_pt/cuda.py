"""The network on a GPU, recorded as a CUDA graph for each batch size; used by `backend.py`.

A recorded graph reads and writes fixed addresses, so every size has buffers of its own; what lies in
between is shared by all graphs, because one runs at a time. The normalisation is recorded apart: pixels
go through both graphs, tensors through the network's only.

Two streams: while one computes a batch, the other copies the pixels of the next into a place of its own.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from serving.backends.device_errors import translated
from serving.logging import logger

WARM_UP_RUNS = 3  # before a recording: the libraries allocate and choose in them
NO_FLAGS = 0
PLACES = 2  # of batches under way


class Lane:
    """The buffers of one batch size, and how to compute in them; work is queued on a stream."""

    def __init__(self, size: int, photo: tuple[int, int], classes: int, like: Tensor) -> None:
        """`like` is of the network's type, and where the network is."""
        height, width = photo
        place = torch.zeros((PLACES, size, height, width, 3), dtype=torch.uint8, device=like.device)
        self.pixels = list(place)
        self.filled = [torch.cuda.Event() for _ in self.pixels]
        self.photos = torch.zeros((size, 3, height, width), dtype=like.dtype, device=like.device)
        self.photos = self.photos.contiguous(memory_format=torch.channels_last)
        self.logits = torch.zeros((size, classes), dtype=torch.float32, device=like.device)
        self.answer = pinned((size, classes))
        self.normalise: list[Callable[[], object]]
        """From each of `pixels` to `photos`."""

        self.network: Callable[[], object]
        """From `photos` to `logits`."""


class CudaNetwork:
    """Computes batches of any size; a new one is recorded, which takes a while."""

    def __init__(
        self,
        network: nn.Module,
        normalise: nn.Module,
        photo: tuple[int, int],
        classes: int,
        graphs: bool,
    ) -> None:
        """Both modules are on the device, `network` in the type that it computes with."""
        self._network, self._normalise = network, normalise
        self._photo, self._classes, self._graphs = photo, classes, graphs
        self._like = next(network.parameters())
        self._lanes: dict[int, Lane] = {}
        self._stream = torch.cuda.Stream(self._like.device)
        self._copies = torch.cuda.Stream(self._like.device)
        self._done = torch.cuda.Event(blocking=True)  # the core is free for decoding meanwhile
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._slots: Tensor | None = None

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB pixels [N, H, W, 3] -> logits [N, classes]. Raises what `device_errors.py` has."""
        with self._working(len(batch)) as lane:
            lane.pixels[0].copy_(torch.from_numpy(batch), non_blocking=True)
            lane.normalise[0]()
            return self._answer(lane)

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalised photos [N, 3, H, W] -> logits [N, classes]. Raises what `device_errors.py` has."""
        with self._working(len(batch)) as lane:
            lane.photos.copy_(torch.from_numpy(batch).to(self._like.device))  # converted there
            return self._answer(lane)

    def fetch(self, indices: list[int], size: int, place: int) -> Callable[[], NDArray[np.float32]]:
        """See `SlotReader`. Raises what `device_errors.py` has, as does the result."""
        assert self._slots is not None  # noqa: S101 attach comes first
        with self._working(size, self._copies) as lane:
            done = 0
            for first, end in runs(indices):
                rows = slice(done, done + end - first)
                lane.pixels[place][rows].copy_(self._slots[first:end], non_blocking=True)
                done = rows.stop
            lane.filled[place].record(self._copies)
        return partial(self._infer_fetched, size, place)

    def _infer_fetched(self, size: int, place: int) -> NDArray[np.float32]:
        """The second half of `fetch`."""
        with self._working(size) as lane:
            self._stream.wait_event(lane.filled[place])
            lane.normalise[place]()
            return self._answer(lane)

    def attach(self, slots: NDArray[np.uint8]) -> bool:
        """Pins the slots' memory, so that the device fetches them itself; whether that worked."""
        memory = torch.from_numpy(slots)
        with torch.cuda.device(self._like.device):  # the first GPU would get a context, too
            error = cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, NO_FLAGS)
            if int(error) == 0:
                self._slots = memory
                if memory.is_pinned():
                    return True
                self._release_slots()
            logger().warning("the slots cannot be pinned, they are copied", cuda_error=int(error))
            with contextlib.suppress(RuntimeError):  # or another call would raise what is handled here
                torch.ones(1, device=self._like.device).add(1)
        return False

    def close(self) -> None:
        """Gives slots and memory back."""
        self._release_slots()
        self._lanes.clear()

    def _release_slots(self) -> None:
        """Before their memory goes."""
        if self._slots is not None:
            with torch.cuda.device(self._like.device):
                cudart().cudaHostUnregister(self._slots.data_ptr())
            self._slots = None

    @contextlib.contextmanager
    def _working(self, size: int, stream: torch.cuda.Stream | None = None) -> Iterator[Lane]:
        """The lane of a size, to queue work for it; on the stream that computes, or on another."""
        with translated(), torch.inference_mode(), torch.cuda.device(self._like.device):
            if size not in self._lanes:
                self._lanes[size] = self._recorded(size)
            with torch.cuda.stream(stream or self._stream):
                yield self._lanes[size]

    def _answer(self, lane: Lane) -> NDArray[np.float32]:
        """Computes what stands in `photos`; nothing of the batch is under way when this returns."""
        lane.network()
        lane.answer.copy_(lane.logits, non_blocking=True)
        self._done.record(self._stream)
        self._done.synchronize()
        answer: NDArray[np.float32] = lane.answer.numpy().copy()  # the next one is written there
        return answer

    def _recorded(self, size: int) -> Lane:
        """A lane that is ready."""
        lane = Lane(size, self._photo, self._classes, self._like)
        photos, logits = lane.photos, lane.logits  # a lane that held itself would outlive a failure

        def normalise(pixels: Tensor) -> None:
            photos.copy_(self._normalise(pixels))

        def network() -> None:
            logits.copy_(self._network(photos))

        torch.cuda.synchronize(self._like.device)
        lane.normalise = [self._record(partial(normalise, pixels)) for pixels in lane.pixels]
        lane.network = self._record(network)
        return lane

    def _record(self, work: Callable[[], None]) -> Callable[[], object]:
        """What repeats `work` with one launch; `work` itself without graphs."""
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
    """Neighbours as one: [4, 5, 6, 2] -> (4, 7), (2, 3)."""
    starts = [0, *(at for at, (a, b) in enumerate(pairwise(indices), 1) if b != a + 1), len(indices)]
    for start, end in pairwise(starts):
        yield indices[start], indices[end - 1] + 1


def pinned(shape: tuple[int, int]) -> Tensor:
    """float32 in memory that the device reaches by itself."""
    return torch.zeros(shape, dtype=torch.float32, pin_memory=True)


def cudart() -> Any:  # torch does not describe it
    """CUDA's runtime library."""
    return torch.cuda.cudart()

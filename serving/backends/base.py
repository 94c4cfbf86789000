"""What an inference backend must offer; `fastapi_onnx` and `fastapi_pt` implement it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from serving.model import Model
from serving.settings import Settings


@dataclass(frozen=True)
class BackendInfo:
    """What `/model` tells about the computation."""

    backend: str
    """The library and its version."""

    device: str
    """`cpu` or `cuda:0`, as it really is."""

    execution_provider: str
    """ONNX Runtime's provider, or PyTorch's device type."""

    precision: str
    """`fp32` or `fp16`."""

    fallback: str | None = None
    """Why `auto` did not take the GPU; absent when it did or was not asked to."""


class Backend(Protocol):
    """One model on one device. `load` does the work, the constructor none."""

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the weights. Raises ConfigurationError when the device or a file is missing.

        `scratch` is a folder for files that the instances of this model share while they run.
        """

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB pixels [N, height, width, 3] -> logits [N, classes]; called by one thread at a time.

        On a GPU the first call with an N may take long; the engine makes it at warm-up, and pads to
        these N from then on. Raises what `device_errors.py` has, there only.
        """

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalised photos [N, 3, height, width] -> logits [N, classes], by the same network."""

    def trim(self) -> None:
        """Gives memory back that only warm-up needed; called once, when it is over."""

    def close(self) -> None:
        """Frees the device."""


@runtime_checkable
class SlotReader(Protocol):
    """What a backend may offer beside: the device reads the slots, without a copy in between."""

    def attach(self, slots: NDArray[np.uint8]) -> bool:
        """All slots [S, height, width, 3], until `close`. Whether the device can read them."""

    def fetch(self, indices: list[int], size: int, place: int) -> Callable[[], NDArray[np.float32]]:
        """Begins to copy the pixels of these slots; what waits for them and computes.

        That returns logits [size, classes], the batch padded to `size`; nothing reads the slots any more
        then. Two batches may be under way, at `place` 0 and 1: one is fetched by one thread while the
        other is computed by another.
        """

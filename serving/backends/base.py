"""Backend protocol: `fastapi_onnx` and `fastapi_pt` implement it, the engine's workers call it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from serving.model import Model
from serving.settings import Settings
from serving.tensors import Array, Signature


@dataclass(frozen=True)
class Trial:
    """What was measured of one runtime in one precision when the model was loaded."""

    runtime: str
    """`onnxruntime`, `openvino` or `torch`."""

    precision: str
    reason: str
    """Reason why it was taken, or why not."""

    ms: float | None = None
    """Milliseconds of an item; None if it was not measured."""

    difference: float | None = None
    """`precision_check.difference` from the reference."""

    memory_mb: float | None = None
    """Memory that loading and computing took, of the process's own, in MB."""

    chosen: bool = False


@dataclass(frozen=True)
class BackendInfo:
    """Library, device and precision in use; `/model` shows them."""

    backend: str
    """Library and version."""

    device: str
    """Device that is really used, `cpu` or `cuda:0`."""

    execution_provider: str
    """ONNX Runtime's provider, or PyTorch's device type."""

    precision: str
    """`fp32`, `fp16`, `bf16` or `int8`."""

    precision_reason: str
    """Reason why that precision was taken, in words."""

    fallback: str | None = None
    """Reason why `auto` fell back to the CPU; None if it did not."""

    trials: list[Trial] = field(default_factory=list)
    """Every runtime and precision that was considered, on a CPU."""

    length_step: int = 1
    """Padded lengths are rounded up to a multiple of it: a runtime may prepare every new shape anew."""


class Backend(Protocol):
    """One model on one device; the constructor does no work, `load` does."""

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the weights. Raises ConfigurationError if the device or a file is missing.

        `scratch` is a folder for files that this model's instances share while they run.
        """

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch: arrays [N, *shape], one per input of the signature, to one per output.

        One call at a time. On a GPU the first call with a batch size may take long: the engine calls
        every size at warm-up, and pads later batches to these sizes. Raises OutOfDeviceMemoryError and
        DeviceLostError for errors of the GPU.
        """

    def trim(self) -> None:
        """Gives back memory that only warm-up needed; called once, after warm-up."""

    def close(self) -> None:
        """Frees the device's memory."""


@runtime_checkable
class GraphReader(Protocol):
    """Backend that knows from a model's file how it is called in tensors; optional.

    `serving.engine.describe` asks it, in a process of its own, before anything is loaded.
    """

    def signatures(self, model: Model) -> tuple[Signature, ...]:
        """Reads the file's inputs and outputs. Raises ConfigurationError for what cannot be served."""

    def compare_items(self, model: Model, signatures: Sequence[Signature]) -> tuple[Signature, ...]:
        """Computes made-up items together and alone: those that depend on each other share no batch.

        Returns the signatures to serve; raises ConfigurationError if such a graph cannot be served. It
        may end the process, or be ended.
        """


@runtime_checkable
class SlotReader(Protocol):
    """Backend whose device reads the slots itself, without a copy by the CPU; optional.

    Only the first signature is read so, and only if it has one input, of a fixed size.
    """

    def attach(self, slots: NDArray[np.uint8]) -> bool:
        """Makes the input's slots, [S, height, width, 3], readable until `close`.

        Returns whether that worked.
        """

    def fetch(self, indices: list[int], size: int, place: int) -> Callable[[], Sequence[Array]]:
        """Starts to copy the images of these slots into buffer `place`, 0 or 1.

        Returns a function that waits for the copy and computes the outputs, the batch padded to `size`;
        when it returns, nothing reads the slots any more. One thread may fetch into one buffer while
        another thread computes the other.
        """


@runtime_checkable
class DeclaredBackend(Protocol):
    """Backend that declares what warm-up or a file tells of others; optional.

    A worker loads it once, however many cores are idle: its threads are its own affair.
    """

    schemas: dict[str, Any]
    """JSON schemas of `request` and `answer`, as the supervisor's profile has them."""

    batch_cap: int
    """Largest batch; 0: warm-up measures it."""

"""Backend protocol, implemented by `fastapi_onnx` and `fastapi_pt` and called by the workers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings


@dataclass(frozen=True)
class Trial:
    """What was measured of one runtime in one precision when the model was loaded."""

    runtime: str
    """`onnxruntime`, `openvino` or `torch`."""

    precision: str
    reason: str
    """Why it was chosen, or why not."""

    ms: float | None = None
    """Milliseconds per item; None if not measured."""

    difference: float | None = None
    """From the reference, as `models.comparison` computes it; None if not measured."""

    agreement: float | None = None
    """Share of the compared samples whose best class is that of fp32; None if none were compared. For
    int8: of the photos or texts with which the file was judged."""

    samples: int | None = None
    """How many samples that is the share of."""

    memory_mb: float | None = None
    """Private memory that loading and computing took, in MB; None if not measured."""

    largest_size: int | None = None
    """Largest compared size of varying axes; the reference computes items that are larger along any.
    None if no axis varies, or if it was not compared."""

    chosen: bool = False


@dataclass(frozen=True)
class BackendInfo:
    """Library, device and precision in use, as shown by `/model`."""

    backend: str
    """Library and version."""

    device: str
    """Device that is actually used, such as `cpu` or `cuda:0`."""

    execution_provider: str
    """ONNX Runtime's provider, or PyTorch's device type."""

    precision: str
    """`fp32`, `fp16`, `bf16` or `int8`."""

    precision_reason: str
    """Why that precision was chosen, in words."""

    fallback: str | None = None
    """Why `auto` fell back to the CPU; None if it did not."""

    trials: list[Trial] = field(default_factory=list)
    """All runtimes and precisions that were considered on a CPU."""

    length_step: int = 1
    """Padded lengths are rounded up to a multiple of it, for runtimes that prepare each new shape."""

    batch_note: str = ""
    """Why each item is computed alone although the signature allows batches; empty if it is not."""


class Backend(Protocol):
    """One model on one device; `load` does the work, not the constructor."""

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the weights. Raises ConfigurationError if the device or a file is missing.

        `scratch` is a folder for files that the model's instances share while they run, if there is one.
        """

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch, given an array [N, *shape] per input; returns one for each output.

        There is only one call at a time. On a GPU the first call with a batch size may be slow: the
        engine calls every size at warm-up and pads later batches to these sizes. Raises
        OutOfDeviceMemoryError and DeviceLostError for GPU errors.
        """

    def trim(self) -> None:
        """Releases memory that only warm-up needed; called once, after warm-up."""

    def close(self) -> None:
        """Frees the memory on the device."""


@runtime_checkable
class GraphReader(Protocol):
    """Optional interface of a backend that can read a graph's signature from the model's file.

    `smallplates.supervision.describe` calls it in a separate process before anything is loaded.
    """

    def signature(self, model: Model) -> Signature:
        """Reads the file's inputs and outputs. Raises ConfigurationError if they cannot be served."""

    def compare_items(self, model: Model, signature: Signature) -> Iterator[Signature]:
        """Computes made-up items together and alone; items that affect each other cannot share a batch.

        Yields the signature to serve whenever more is known; nothing if that is the given one. Raises
        ConfigurationError if the graph cannot be served. It may crash the process, or take too long.
        """


@runtime_checkable
class WeightsReader(Protocol):
    """Optional interface of a backend whose measurements on a CPU may be reused at the next start."""

    def weights(self, model: Model) -> Iterable[Path]:
        """Returns all files with weights that it may load. Raises ConfigurationError."""


@runtime_checkable
class DeclaredBackend(Protocol):
    """Optional interface of a backend that declares what others learn from warm-up or from a file.

    A worker loads it only once, even if cores are idle, because it manages its own threads.
    """

    schemas: dict[str, Any]
    """JSON schemas of `request` and `answer`, and the `example` if there is one."""

    batch_cap: int
    """Largest batch; 0 means that warm-up measures it."""

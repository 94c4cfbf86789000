"""What an inference worker is as a program: its arguments, its end, its memory; for `worker.py`."""

import contextlib
import ctypes
import signal
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.backends import cuda_driver
from serving.engine.memory import Memory
from serving.errors import ConfigurationError
from serving.system.pdeathsig import signal_at_its_end

T = TypeVar("T", np.uint8, np.float32)


@dataclass(frozen=True)
class WorkerArgs:
    """What the supervisor hands to a worker, as JSON."""

    index: int
    parent: int
    backend: str
    """`module:class` of a `serving.backends.base.Backend`."""

    model_dir: str
    version: str
    scratch: str | None
    """A folder that all workers of the engine share."""

    gpu: int
    """Index of the CUDA device; has no meaning on a CPU."""

    device: str
    """`cpu`, `cuda` or `auto`, as in the settings."""

    layout: dict[str, int]
    memory_fd: int
    work_fds: tuple[int, int]
    """Ends to read: interactive, bulk."""

    done_fds: tuple[int, ...]
    """Ends to write, one per web process."""

    control_fd: int = -1
    status_fd: int = -1

    @property
    def passed_fds(self) -> tuple[int, ...]:
        """All of them, for the worker to inherit."""
        return (self.memory_fd, *self.work_fds, *self.done_fds, self.control_fd, self.status_fd)


@dataclass(frozen=True)
class BatchBuffer:
    """Where a batch is gathered, of pixels or of tensors; pages that are never used cost nothing."""

    place: int
    """0 or 1: which of those it is."""

    pixels: NDArray[np.uint8]
    tensors: NDArray[np.float32]

    @classmethod
    def of(cls, memory: Memory, size: int, place: int) -> "BatchBuffer":
        """For batches up to `size`."""
        return cls(
            place,
            np.zeros((size, *memory.inputs.shape[1:]), np.uint8),
            np.zeros((size, *memory.tensors.shape[1:]), np.float32),
        )


def gathered(inputs: NDArray[T], slots: list[int], room: NDArray[T], size: int) -> NDArray[T]:
    """The slots' inputs as one batch of `size`, in `room`; one alone needs no copy.

    Behind the inputs stands what stood there before: their answers are dropped.
    """
    if size == 1:
        return inputs[slots[0] : slots[0] + 1]
    np.take(inputs, slots, axis=0, out=room[: len(slots)])
    return room[:size]


def gpu_uuid(index: int) -> str | None:
    """By which NVML finds this GPU; without it there are no figures of the GPU, and nothing else."""
    with contextlib.suppress(ConfigurationError):
        return cuda_driver.device_uuid(index)
    return None


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the supervisor's thread ends; where it can, on Linux."""
    if not signal_at_its_end(parent, signal.SIGKILL):
        raise SystemExit(1)


def give_memory_back() -> None:
    """Loading leaves holes in the heap, twice the size of the model; glibc keeps them unless asked."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)

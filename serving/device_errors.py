"""What goes wrong on a GPU, in the engine's two words; the backends translate their libraries' errors.

Of all that CUDA, cuDNN and cuBLAS report, running out of memory leaves a device usable. After the rest
(an illegal address, a failed launch, a GPU that fell off its bus) every further call fails, too: only
another process can go on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

OUT_OF_MEMORY = (
    "out of memory",
    "out_of_memory",
    "alloc_failed",
    "failed to allocate memory",  # ONNX Runtime's arena, where the device is full
    "is smaller than requested bytes",  # and where it may not grow
)
DEVICE = ("cuda error", "cuda failure", "cudaerror", "cudnn", "cublas")


class OutOfDeviceMemoryError(Exception):
    """The batch did not fit into the device's memory; a smaller one may."""


class DeviceLostError(Exception):
    """The device cannot be used by this process any more."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises one of the two above for what a CUDA library raised in the block; the rest as it is."""
    try:
        yield
    except (OutOfDeviceMemoryError, DeviceLostError):
        raise
    except Exception as error:  # each library has types of its own, most of them RuntimeError
        found = meaning(str(error))
        if found is None:
            raise
        try:
            raise found from error
        finally:
            del found  # it and this frame would hold each other, and with them what did not fit


def meaning(text: str) -> OutOfDeviceMemoryError | DeviceLostError | None:
    """What a library's message says of the device; None when it is about something else."""
    lower = text.lower()
    first_line = text.strip().partition("\n")[0]
    if any(words in lower for words in OUT_OF_MEMORY):
        return OutOfDeviceMemoryError(first_line)
    if any(words in lower for words in DEVICE):
        return DeviceLostError(first_line)
    return None

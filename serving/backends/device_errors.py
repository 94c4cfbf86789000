"""What goes wrong on a GPU, in the engine's two words; the backends translate their libraries' errors.

Of all that CUDA, cuDNN and cuBLAS report, running out of memory leaves a device usable. After the rest
(an illegal address, a failed launch, a GPU that fell off its bus) every further call fails, too: only
another process can go on.
"""

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


class Translation:
    """See `translated`; no generator, whose frames would hold what did not fit, on Python 3.13."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        """Raises the other error from this one."""
        if not isinstance(error, Exception) or isinstance(
            error, OutOfDeviceMemoryError | DeviceLostError
        ):
            return
        found = meaning(str(error))  # each library has types of its own, most of them RuntimeError
        if found is None:
            return
        try:
            raise found from error
        finally:
            del found, error, trace  # they and this frame would hold each other


def translated() -> Translation:
    """Raises one of the two above for what a CUDA library raised in the block; the rest as it is."""
    return Translation()


def meaning(text: str) -> OutOfDeviceMemoryError | DeviceLostError | None:
    """What a library's message says of the device; None when it is about something else."""
    lower = text.lower()
    first_line = text.strip().partition("\n")[0]
    if any(words in lower for words in OUT_OF_MEMORY):
        return OutOfDeviceMemoryError(first_line)
    if any(words in lower for words in DEVICE):
        return DeviceLostError(first_line)
    return None

"""Maps CUDA errors to OutOfDeviceMemoryError and DeviceLostError; called by the CUDA backends.

A device stays usable after running out of memory. After any other error of CUDA, cuDNN or cuBLAS (an
illegal address, a failed launch, a GPU that has fallen off the bus) all further calls fail, too, and
only a new process can continue.
"""

OUT_OF_MEMORY = (
    "out of memory",
    "out_of_memory",
    "alloc_failed",
    "resource allocation failed",  # cuBLAS in ONNX Runtime, if the device is full
    "failed to allocate memory",  # ONNX Runtime's arena, if the device is full
    "is smaller than requested bytes",  # ONNX Runtime's arena, if it has reached its limit
)
DEVICE = ("cuda error", "cuda failure", "cudaerror", "cudnn", "cublas")


class OutOfDeviceMemoryError(Exception):
    """A batch did not fit into the device's memory; a smaller batch might."""


class DeviceLostError(Exception):
    """This process cannot use the device any more."""


class translate_errors:  # noqa: N801 used as a function
    """Context manager that turns a CUDA library's exceptions into these errors.

    It is not a generator: on Python 3.13 its frames would keep the tensors that did not fit.
    """

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        """Raises the mapped error if the exception is about the device."""
        if not isinstance(error, Exception) or isinstance(
            error, OutOfDeviceMemoryError | DeviceLostError
        ):
            return
        classified = classify(str(error))  # by text, since most libraries just raise RuntimeError
        if classified is None:
            return
        try:
            raise classified from error
        finally:
            del classified, error, trace  # breaks the reference cycle between errors and frame


def classify(text: str) -> OutOfDeviceMemoryError | DeviceLostError | None:
    """Returns the error for a library's message, or None if it is not about the device."""
    lower = text.lower()
    first_line = text.strip().partition("\n")[0]
    if any(words in lower for words in OUT_OF_MEMORY):
        return OutOfDeviceMemoryError(first_line)
    if any(words in lower for words in DEVICE):
        return DeviceLostError(first_line)
    return None

"""Memory size and UUID of a GPU, read from NVIDIA's driver without a CUDA library.

Indices are CUDA's, so they follow CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. NVML ignores both
variables, so it has to identify a GPU by its UUID.
"""

import ctypes
from typing import Any

from smallplates.errors import ConfigurationError


def driver() -> Any:  # ctypes has no types for a library's functions
    """Returns the initialised driver library. Raises ConfigurationError that says what is missing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ConfigurationError(f"no NVIDIA driver: {error}") from error
    if code := library.cuInit(0):
        raise ConfigurationError(f"the NVIDIA driver does not start: CUDA error {code}")
    return library


def device(library: Any, index: int) -> ctypes.c_int:
    """Returns the driver's handle for a GPU. Raises ConfigurationError if there is no such GPU."""
    count, handle = ctypes.c_int(), ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)) or index >= count.value:
        raise ConfigurationError(f"there is no GPU {index}: the NVIDIA driver finds {count.value}")
    if code := library.cuDeviceGet(ctypes.byref(handle), index):
        raise ConfigurationError(f"GPU {index} cannot be used: CUDA error {code}")
    return handle


def total_memory(index: int) -> int:
    """Returns the size of a GPU's memory in bytes. Raises ConfigurationError."""
    library, total = driver(), ctypes.c_size_t()
    if code := library.cuDeviceTotalMem_v2(ctypes.byref(total), device(library, index)):
        raise ConfigurationError(f"GPU {index} does not report its memory: CUDA error {code}")
    return total.value


def device_uuid(index: int) -> str:
    """Returns a GPU's UUID in the form of nvidia-smi and NVML, `GPU-...`. Raises ConfigurationError."""
    library, uuid = driver(), (ctypes.c_ubyte * 16)()
    if code := library.cuDeviceGetUuid(ctypes.byref(uuid), device(library, index)):
        raise ConfigurationError(f"GPU {index} does not report its UUID: CUDA error {code}")
    text = bytes(uuid).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

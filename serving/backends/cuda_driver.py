"""What NVIDIA's driver tells about a GPU, without any CUDA library: for the backends and `worker.py`.

Indices are CUDA's, so that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER hold; NVML, which knows neither,
is asked by the UUID from here.
"""

import ctypes
from typing import Any

from serving.errors import ConfigurationError


def driver() -> Any:  # ctypes describes no library's functions
    """The driver's library, ready for use. Raises ConfigurationError with what is missing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ConfigurationError(f"no NVIDIA driver: {error}") from error
    if code := library.cuInit(0):
        raise ConfigurationError(f"the NVIDIA driver does not start: CUDA error {code}")
    return library


def device(library: Any, index: int) -> ctypes.c_int:
    """The driver's handle. Raises ConfigurationError where there is no such GPU."""
    count, handle = ctypes.c_int(), ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)) or index >= count.value:
        raise ConfigurationError(f"there is no GPU {index}: the NVIDIA driver finds {count.value}")
    if code := library.cuDeviceGet(ctypes.byref(handle), index):
        raise ConfigurationError(f"GPU {index} cannot be used: CUDA error {code}")
    return handle


def total_memory(index: int) -> int:
    """Bytes of a GPU's memory. Raises ConfigurationError."""
    library, total = driver(), ctypes.c_size_t()
    if code := library.cuDeviceTotalMem_v2(ctypes.byref(total), device(library, index)):
        raise ConfigurationError(f"GPU {index} does not tell its memory: CUDA error {code}")
    return total.value


def device_uuid(index: int) -> str:
    """`GPU-...`, as nvidia-smi and NVML have it. Raises ConfigurationError."""
    library, found = driver(), (ctypes.c_ubyte * 16)()
    if code := library.cuDeviceGetUuid(ctypes.byref(found), device(library, index)):
        raise ConfigurationError(f"GPU {index} does not tell its UUID: CUDA error {code}")
    text = bytes(found).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

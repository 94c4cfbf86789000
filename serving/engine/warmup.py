"""Runs and measures every batch size before a worker is ready, and chooses the batch cap.

On a CPU a convolutional network gains nothing from batches, and they only add latency; on a GPU they
are everything. So the cap is measured, not assumed.
"""

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from serving.backend import Backend
from serving.device_errors import OutOfDeviceMemoryError
from serving.errors import ConfigurationError
from serving.logs import logger
from serving.settings import Settings

GOOD_ENOUGH = 0.9  # of the best throughput
ROUNDS_S = 0.08  # of measuring, per size
MIN_ROUNDS, MAX_ROUNDS = 3, 20


def warm_up(
    backend: Backend, shape: tuple[int, int, int], classes: int, batch_sizes: Iterable[int]
) -> dict[int, float]:
    """The time in ms of each batch size that fits into the device's memory, sizes ascending.

    Raises ConfigurationError for a wrong output shape, and when not even one picture fits.
    """
    profile, too_large = {}, ""
    for size in batch_sizes:
        batch = np.zeros((size, *shape), np.uint8)
        try:
            check_shape(backend.infer(batch), size, classes)
            profile[size] = measure(backend, batch)
        except OutOfDeviceMemoryError as error:
            too_large = str(error)
            logger().warning("a batch size does not fit into the device's memory", size=size)
    if not profile:
        raise ConfigurationError(f"the device's memory is too small for one picture: {too_large}")
    return dict(sorted(profile.items()))


def warm_both(
    backend: Backend, shape: tuple[int, int, int], classes: int, batch_sizes: Iterable[int]
) -> dict[int, float]:
    """Runs both ways in; the time in ms of each batch size. Raises ConfigurationError."""
    profile = warm_up(backend, shape, classes, batch_sizes)
    warm_up_tensors(backend, shape, classes)
    return profile


def warm_up_tensors(backend: Backend, shape: tuple[int, int, int], classes: int) -> None:
    """Runs the other way in once; raises ConfigurationError for a wrong output shape.

    The sizes need no second measuring: behind the normalisation it is the same network.
    """
    height, width, channels = shape
    check_shape(backend.infer_tensor(np.zeros((1, channels, height, width), np.float32)), 1, classes)


def check_shape(logits: NDArray[np.float32], size: int, classes: int) -> None:
    """Raises ConfigurationError when a batch of `size` was answered with another shape."""
    if logits.shape != (size, classes):
        raise ConfigurationError(
            f"the model answers with shape {logits.shape} to {size} pictures, "
            f"but model.json has {classes} labels"
        )


def measure(backend: Backend, batch: NDArray[np.uint8]) -> float:
    """The shortest of some calls in ms: what a quiet machine takes."""
    backend.infer(batch)
    times: list[float] = []
    while len(times) < MIN_ROUNDS or (sum(times) < ROUNDS_S and len(times) < MAX_ROUNDS):
        times.append(timed(backend, batch))
    return round(min(times) * 1000, 3)


def timed(backend: Backend, batch: NDArray[np.uint8]) -> float:
    """The seconds of one call."""
    started = time.perf_counter()
    backend.infer(batch)
    return time.perf_counter() - started


def choose_cap(settings: Settings, profile: dict[int, float]) -> int:
    """The smallest size whose throughput is nearly the best, or the one that is fixed."""
    if settings.max_batch_size != "auto":
        return min(settings.max_batch_size, max(profile))
    throughput = {size: size / ms for size, ms in profile.items()}
    best = max(throughput.values())
    return min(size for size, rate in throughput.items() if rate >= GOOD_ENOUGH * best)

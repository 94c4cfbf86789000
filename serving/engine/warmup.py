"""Runs and measures every batch size before a worker is ready, and chooses the batch cap.

On a CPU some networks compute a batch of eight in five times the time of one picture, others in ten; on
a GPU batches are everything. So the cap is measured, not assumed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.backends.base import Backend
from serving.backends.device_errors import DeviceLostError, OutOfDeviceMemoryError
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.settings import Settings

T = TypeVar("T", np.uint8, np.float32)

GOOD_ENOUGH = 0.95  # of the best throughput
ROUNDS_S = 0.08  # of measuring, per size
LONGEST_S = 1.0  # of measuring what something else disturbs
MIN_ROUNDS, MAX_ROUNDS = 5, 20


def warm_up(
    backend: Backend, shape: tuple[int, int, int], classes: int, batch_sizes: Iterable[int]
) -> dict[int, float]:
    """The time in ms of each batch size that fits into the device's memory, sizes ascending.

    That is the shortest of some calls: what a quiet machine takes. The sizes take turns, so that what
    else the machine does meets all of them alike. Raises ConfigurationError for a wrong output shape,
    and when not even one picture fits.
    """
    batches = {size: np.zeros((size, *shape), np.uint8) for size in batch_sizes}
    times: dict[int, list[float]] = {size: [] for size in sorted(batches)}
    too_large = ""
    for number in range(MAX_ROUNDS):
        for size, batch in list(batches.items()):
            started = time.perf_counter()
            try:
                logits = computed(backend.infer, batch)
            except OutOfDeviceMemoryError as error:
                too_large = str(error)
                logger().warning("a batch size does not fit into the device's memory", size=size)
                del batches[size], times[size]
                continue
            times[size].append(time.perf_counter() - started)
            check(logits, size, classes)
        if not batches:
            raise ConfigurationError(f"the device's memory is too small for one picture: {too_large}")
        measured = sum(sum(one[1:]) for one in times.values())  # a first call plans and allocates
        if number + 1 < MIN_ROUNDS or measured <= ROUNDS_S * len(batches):
            continue
        if measured > LONGEST_S or undisturbed([min(one) / size for size, one in times.items()]):
            break
    return {size: round(min(one) * 1000, 3) for size, one in times.items()}


def undisturbed(seconds: Sequence[float]) -> bool:
    """Whether a picture's time, by ascending batch size, falls and then rises, as it does by itself."""
    best = seconds.index(min(seconds))
    falls = all(after * GOOD_ENOUGH <= before for before, after in pairwise(seconds[: best + 1]))
    return falls and all(after >= before * GOOD_ENOUGH for before, after in pairwise(seconds[best:]))


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
    tensor = np.zeros((1, channels, height, width), np.float32)
    check(computed(backend.infer_tensor, tensor), 1, classes)


def computed(run: Callable[[NDArray[T]], NDArray[np.float32]], batch: NDArray[T]) -> NDArray[np.float32]:
    """What the backend answers. Raises ConfigurationError for what is no trouble of the device."""
    try:
        return run(batch)
    except (OutOfDeviceMemoryError, DeviceLostError):
        raise
    except Exception as error:  # each library has types of its own
        reason = " ".join(str(error).split())
        if len(batch) > 1:
            raise ConfigurationError(
                f"the model cannot compute {len(batch)} pictures at once; if its file is of a fixed "
                f"batch size, export it with an open one, or set SERVING_MAX_BATCH_SIZE=1: {reason}"
            ) from error
        raise ConfigurationError(f"the model cannot compute a picture: {reason}") from error


def check(logits: NDArray[np.float32], size: int, classes: int) -> None:
    """Raises ConfigurationError unless these are finite logits of a batch of `size`."""
    if logits.shape != (size, classes):
        raise ConfigurationError(
            f"the model answers with shape {logits.shape} to {size} pictures, "
            f"but model.json has {classes} labels"
        )
    if not np.isfinite(logits).all():
        raise ConfigurationError(
            "the model answers numbers that are not finite to a black picture: "
            "its weights, or mean and std in model.json, are damaged"
        )


def choose_cap(settings: Settings, profile: dict[int, float]) -> int:
    """The smallest size whose throughput is nearly the best, or the one that is fixed."""
    if settings.max_batch_size != "auto":
        return min(settings.max_batch_size, max(profile))
    throughput = {size: size / ms for size, ms in profile.items()}
    best = max(throughput.values())
    return min(size for size, rate in throughput.items() if rate >= GOOD_ENOUGH * best)

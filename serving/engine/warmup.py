"""Warm-up: runs and measures every batch size before a worker is ready, and chooses the batch cap.

On a CPU some networks compute a batch of eight in five times the time of one input, others in ten; on a
GPU large batches are far faster. So the cap is measured. Called by `worker.py`, on the thread that will
call the backend.
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

NEARLY_BEST = 0.95  # of the best throughput
ROUNDS_S = 0.08  # measured per size, if nothing disturbs
MAX_ROUNDS_S = 1.0  # measured in total, if other programs disturb
MIN_ROUNDS, MAX_ROUNDS = 5, 20


def warm_up(
    backend: Backend, shape: tuple[int, int, int], classes: int, batch_sizes: Iterable[int]
) -> dict[int, float]:
    """Runs images [N, *shape] and one tensor; returns the time in ms of each batch size, ascending.

    Raises ConfigurationError for a wrong output. Tensors need no measurement of their own: behind the
    normalisation the network is the same.
    """
    profile = measure(backend, shape, classes, batch_sizes)
    height, width, channels = shape
    tensor = np.zeros((1, channels, height, width), np.float32)
    check_logits(run(backend.infer_tensor, tensor), 1, classes)
    return profile


def measure(
    backend: Backend, shape: tuple[int, int, int], classes: int, batch_sizes: Iterable[int]
) -> dict[int, float]:
    """Returns the time in ms of each batch size that fits into the device's memory, ascending.

    The time is the shortest of several calls, as on a quiet machine. The sizes take turns, so that other
    programs disturb all sizes alike. Raises ConfigurationError for a wrong output, and if not even one
    image fits into the memory.
    """
    batches = {size: np.zeros((size, *shape), np.uint8) for size in batch_sizes}
    times: dict[int, list[float]] = {size: [] for size in sorted(batches)}
    too_large = ""
    for number in range(MAX_ROUNDS):
        for size, batch in list(batches.items()):
            started = time.perf_counter()
            try:
                logits = run(backend.infer, batch)
            except OutOfDeviceMemoryError as error:
                too_large = str(error)
                logger().warning("a batch size does not fit into the device's memory", size=size)
                del batches[size], times[size]
                continue
            times[size].append(time.perf_counter() - started)
            check_logits(logits, size, classes)
        if not batches:
            raise ConfigurationError(f"the device's memory is too small for one picture: {too_large}")
        measured = sum(sum(one[1:]) for one in times.values())  # the first call plans and allocates
        if number + 1 < MIN_ROUNDS or measured <= ROUNDS_S * len(batches):
            continue
        if measured > MAX_ROUNDS_S or is_undisturbed([min(one) / size for size, one in times.items()]):
            break
    return {size: round(min(one) * 1000, 3) for size, one in times.items()}


def is_undisturbed(seconds: Sequence[float]) -> bool:
    """Returns whether the times per input, by ascending batch size, fall and then rise.

    Times that other programs disturb rise and fall several times.
    """
    best = seconds.index(min(seconds))
    falls = all(after * NEARLY_BEST <= before for before, after in pairwise(seconds[: best + 1]))
    return falls and all(after >= before * NEARLY_BEST for before, after in pairwise(seconds[best:]))


def run(infer: Callable[[NDArray[T]], NDArray[np.float32]], batch: NDArray[T]) -> NDArray[np.float32]:
    """Computes a batch. Turns every error but the device's own into ConfigurationError."""
    try:
        return infer(batch)
    except (OutOfDeviceMemoryError, DeviceLostError):
        raise
    except Exception as error:  # every library has exception types of its own
        reason = " ".join(str(error).split())
        if len(batch) > 1:
            raise ConfigurationError(
                f"the model cannot compute {len(batch)} pictures at once; if its file is of a fixed "
                f"batch size, export it with an open one, or set SERVING_MAX_BATCH_SIZE=1: {reason}"
            ) from error
        raise ConfigurationError(f"the model cannot compute a picture: {reason}") from error


def check_logits(logits: NDArray[np.float32], size: int, classes: int) -> None:
    """Raises ConfigurationError unless the logits are finite and of shape [size, classes]."""
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
    """Returns the set maximum, or the smallest size whose throughput is nearly the best.

    `profile` has the time in ms of each batch size.
    """
    if settings.max_batch_size != "auto":
        return min(settings.max_batch_size, max(profile))
    throughput = {size: size / ms for size, ms in profile.items()}
    best = max(throughput.values())
    return min(size for size, rate in throughput.items() if rate >= NEARLY_BEST * best)

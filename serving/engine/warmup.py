"""Warm-up: runs and measures every batch size before a worker is ready, and chooses the batch cap.

On a CPU some networks compute a batch of eight in five times the time of one input, others in ten; on a
GPU large batches are far faster. So the cap is measured. Called by `worker.py`, on the thread that will
call the backend.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from serving.backends.base import Backend
from serving.backends.device_errors import DeviceLostError, OutOfDeviceMemoryError
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.settings import Settings
from serving.tensors import Signature, check_outputs, examples

NEARLY_BEST = 0.95  # of the best throughput
ROUNDS_S = 0.08  # measured per size, if nothing disturbs
MAX_ROUNDS_S = 1.0  # measured in total, if other programs disturb
MIN_ROUNDS, MAX_ROUNDS = 5, 20


LENGTHS = (16, 64, 256)
"""Sizes of the varying axes for which the batch sizes are measured, where they are not too large."""

MAX_CALL_S = 0.5
"""Batches that would take longer are not measured where sizes vary."""


@dataclass(frozen=True)
class Profile:
    """What warm-up measured of the first signature."""

    batch_ms: dict[int, float]
    """Milliseconds of each batch size, ascending; where sizes vary, for items of a medium size."""

    batch_cap: int
    """Largest batch that pays."""

    element_cap: int
    """Largest batch that pays where sizes vary, in elements of the largest input."""


def warm_up(
    backend: Backend, signatures: Sequence[Signature], batch_sizes: Sequence[int], settings: Settings
) -> Profile:
    """Runs and measures batches of the first signature, and one item of each other signature.

    Raises ConfigurationError for wrong outputs. The other signatures need no measurement of their own:
    they call the same network.
    """
    first, *others = signatures
    lengths = LENGTHS if first.input_axes and not first.batch_elements else LENGTHS[:1]
    profiles = {length: measure(backend, first, batch_sizes, length) for length in lengths}
    for signature in others:
        run(backend, signature, 1, sizes_for(signature, LENGTHS[0]))
    caps = {length: choose_cap(settings, batch_ms) for length, batch_ms in profiles.items()}
    return Profile(
        batch_ms=list(profiles.values())[len(profiles) // 2],
        batch_cap=max(caps.values()),
        element_cap=first.batch_elements
        or max(cap * first.elements(sizes_for(first, length)) for length, cap in caps.items()),
    )


def sizes_for(signature: Signature, length: int) -> dict[str, int]:
    """Returns the sizes of an item whose varying axes are as long, within their limits."""
    return {axis: min(length, signature.limits[axis]) for axis in signature.input_axes}


def measure(
    backend: Backend, signature: Signature, batch_sizes: Iterable[int], length: int = 0
) -> dict[int, float]:
    """Returns the time in ms of each batch size that fits into the device's memory, ascending.

    The time is the shortest of several calls, as on a quiet machine. The sizes take turns, so that other
    programs disturb all sizes alike. Varying axes have the size `length`. Raises ConfigurationError for
    a wrong output, and if not even one item fits into the memory.
    """
    sizes = sizes_for(signature, length)
    left = list(batch_sizes)
    times: dict[int, list[float]] = {size: [] for size in sorted(left)}
    too_large = ""
    for number in range(MAX_ROUNDS):
        for size in list(left):
            started = time.perf_counter()
            try:
                run(backend, signature, size, sizes)
            except OutOfDeviceMemoryError as error:
                too_large = str(error)
                logger().warning("a batch size does not fit into the device's memory", size=size)
                left.remove(size)
                del times[size]
                continue
            times[size].append(time.perf_counter() - started)
            if sizes and times[size][-1] > MAX_CALL_S and size > 1:
                left.remove(size)
                del times[size]
        if not left:
            raise ConfigurationError(f"the device's memory is too small for one input: {too_large}")
        measured = sum(sum(one[1:]) for one in times.values())  # the first call plans and allocates
        if number + 1 < MIN_ROUNDS or measured <= ROUNDS_S * len(left):
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


def run(backend: Backend, signature: Signature, size: int, sizes: dict[str, int]) -> None:
    """Computes a batch of examples and checks the outputs.

    Turns every error but the device's own into ConfigurationError.
    """
    try:
        outputs = backend.infer(signature, examples(signature, size, sizes))
        check_outputs(signature, outputs, size, sizes)
    except (OutOfDeviceMemoryError, DeviceLostError):
        raise
    except Exception as error:  # every library has exception types of its own
        reason = " ".join(str(error).split())
        if size > 1:
            raise ConfigurationError(
                f"the model cannot compute {size} inputs at once; if its file is of a fixed "
                f"batch size, export it with an open one, or set SERVING_MAX_BATCH_SIZE=1: {reason}"
            ) from error
        raise ConfigurationError(f"the model cannot compute an input: {reason}") from error
    if signature.checks_finite and not all(np.isfinite(array).all() for array in outputs):
        raise ConfigurationError(
            "the model answers numbers that are not finite to an input of zeros: "
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

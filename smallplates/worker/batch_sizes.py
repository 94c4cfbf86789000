"""Batch sizes to run: any size up to the cap on a CPU, a few buckets on a GPU.

A GPU needs new planning for every new size, and launches a recorded size as a whole. So a batch is
padded to the next bucket, which is a size that warm-up ran, and the outputs of the padding are dropped.
"""

from bisect import bisect_left
from collections.abc import Sequence

from smallplates.settings import Settings

LARGEST_ON_CPU = 8
LARGEST_ON_GPU = 64
LARGEST = 512
"""Largest batch that settings or models may choose."""


def largest_batch(settings: Settings, device: str, is_class: bool = False) -> int:
    """Returns the maximum from the settings, or for `auto` the largest size that warm-up tries.

    `is_class` means that a Python class may choose its largest batch itself.
    """
    if settings.max_batch_size != "auto":
        return settings.max_batch_size
    return LARGEST if is_class else LARGEST_ON_CPU if device == "cpu" else LARGEST_ON_GPU


def sizes(settings: Settings, device: str, cap: int = 0) -> list[int]:
    """Returns the sizes that warm-up runs: the powers of two up to the largest, and the largest.

    The largest is `cap` if that is known (not 0).
    """
    largest = cap or largest_batch(settings, device)
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return sorted({*powers, largest})


def pad(count: int, buckets: Sequence[int]) -> int:
    """Returns the smallest of the ascending `buckets` that fits `count`; without buckets, `count`."""
    return buckets[bisect_left(buckets, count)] if buckets else count


def halve(cap: int, buckets: Sequence[int]) -> int:
    """Returns the largest bucket up to half of `cap`; without buckets, half of `cap`; at least 1."""
    return max((size for size in buckets if size <= cap // 2), default=max(1, cap // 2))


def next_power(count: int) -> int:
    """Returns the smallest power of two that is at least `count` and at least 16."""
    return max(16, 1 << (count - 1).bit_length())


def round_up(step: int, count: int) -> int:
    """Returns the smallest multiple of `step` that is at least `count`."""
    return -(-count // step) * step

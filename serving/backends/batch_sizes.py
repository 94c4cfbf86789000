"""Batch sizes to run: every size up to the cap on a CPU, a few buckets on a GPU.

A GPU plans every new size anew, and launches a recorded size as a whole. So a batch is padded to the
next bucket, a size that warm-up ran, and the logits of the padding are dropped.
"""

from bisect import bisect_left
from collections.abc import Sequence

from serving.settings import Settings

LARGEST_ON_CPU = 8
LARGEST_ON_GPU = 64


def largest_batch(settings: Settings, device: str) -> int:
    """Returns the set maximum, or the largest size that warm-up tries."""
    if settings.max_batch_size != "auto":
        return settings.max_batch_size
    return LARGEST_ON_CPU if device == "cpu" else LARGEST_ON_GPU


def sizes(settings: Settings, device: str, cap: int = 0) -> list[int]:
    """Returns the sizes that warm-up runs: powers of two and the largest, up to `cap` if it is known."""
    largest = cap or largest_batch(settings, device)
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return sorted({*powers, largest})


def padded(count: int, buckets: Sequence[int]) -> int:
    """Returns the smallest of the ascending `buckets` that holds `count`, or `count` without buckets."""
    return buckets[bisect_left(buckets, count)] if buckets else count


def halved(cap: int, buckets: Sequence[int]) -> int:
    """Returns the largest bucket up to half of `cap`, or half of `cap` without buckets; at least 1."""
    return max((size for size in buckets if size <= cap // 2), default=max(1, cap // 2))


def next_power(count: int) -> int:
    """Returns the smallest power of two that is not below `count`, at least 16."""
    return max(16, 1 << (count - 1).bit_length())


def rounded_up(step: int, count: int) -> int:
    """Returns the smallest multiple of `step` that is not below `count`."""
    return -(-count // step) * step

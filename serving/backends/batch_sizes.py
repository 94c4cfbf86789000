"""The batch sizes that are run: all up to the cap on a CPU, a few on a GPU.

There every new size is planned anew, and a recorded one launches as a whole. So a batch is padded to
the next size that warm-up ran; the answers of the padding are dropped.
"""

from bisect import bisect_left
from collections.abc import Sequence

from serving.settings import Settings

LARGEST_ON_CPU = 8
LARGEST_ON_GPU = 64


def largest_batch(settings: Settings, device: str) -> int:
    """The fixed cap, or the largest size that is tried."""
    if settings.max_batch_size != "auto":
        return settings.max_batch_size
    return LARGEST_ON_CPU if device == "cpu" else LARGEST_ON_GPU


def sizes(settings: Settings, device: str, cap: int = 0) -> list[int]:
    """The batch sizes to run: powers of two and the largest; a known `cap` needs nothing above it."""
    largest = cap or largest_batch(settings, device)
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return sorted({*powers, largest})


def padded(count: int, buckets: Sequence[int]) -> int:
    """The smallest of the ascending `buckets` that holds `count`; `count` itself without any."""
    return buckets[bisect_left(buckets, count)] if buckets else count


def halved(cap: int, buckets: Sequence[int]) -> int:
    """The largest bucket up to half of `cap`, without any half of it; at least 1."""
    return max((size for size in buckets if size <= cap // 2), default=max(1, cap // 2))

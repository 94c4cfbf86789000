"""Precision check: compares a network in fp16 with the same in fp32; backends run it at load."""

import numpy as np
from numpy.typing import NDArray

from serving.errors import ConfigurationError
from serving.logging import logger
from serving.tasks.image.classification import softmax

IMAGES = 8
MAX_DIFFERENCE = 0.02
"""Largest accepted difference of a class's probability."""


def sample_images(size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns patches of colour under noise, uint8 [8, height, width, 3]; always the same."""
    random = np.random.default_rng(0)
    height, width = size
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patches = random.integers(0, 256, (IMAGES, 4, 4, 3))
    large = patches[:, rows][:, :, columns]
    noise = random.integers(-40, 41, large.shape)
    drawn: NDArray[np.uint8] = np.clip(large + noise, 0, 255).astype(np.uint8)
    return drawn


def max_difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Returns the largest difference of a probability between two logits [N, classes].

    Infinite if `found` has values that are not finite.
    """
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(softmax(expected) - softmax(found)).max())


def is_accurate(expected: NDArray[np.float32], found: NDArray[np.float32], insist: bool) -> bool:
    """Returns whether fp16 may be used: `found` in fp16 is close to `expected` in fp32, [N, classes].

    Raises ConfigurationError if it is not and `insist` is set.
    """
    seen = max_difference(expected, found)
    if seen <= MAX_DIFFERENCE:
        return True
    reason = f"in fp16 a probability differs by {seen:.3f} from fp32"
    if insist:
        raise ConfigurationError(f"SERVING_PRECISION=fp16 cannot be used: {reason}")
    logger().warning("fp32 is used", reason=reason)
    return False

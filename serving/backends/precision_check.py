"""Whether a network in half precision answers as it does in full; asked by the backends at load."""

import numpy as np
from numpy.typing import NDArray

from serving.errors import ConfigurationError
from serving.logging import logger
from serving.tasks.image.classification import softmax

PICTURES = 8
LARGEST_DIFFERENCE = 0.02
"""Of any class's probability."""


def pictures(size: tuple[int, int]) -> NDArray[np.uint8]:
    """Patches of colour under noise, uint8 [8, height, width, 3]; always the same."""
    random = np.random.default_rng(0)
    height, width = size
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patches = random.integers(0, 256, (PICTURES, 4, 4, 3))
    large = patches[:, rows][:, :, columns]
    noise = random.integers(-40, 41, large.shape)
    drawn: NDArray[np.uint8] = np.clip(large + noise, 0, 255).astype(np.uint8)
    return drawn


def difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The largest difference of a probability between logits [N, classes]; infinite without numbers."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(softmax(expected) - softmax(found)).max())


def is_enough(expected: NDArray[np.float32], found: NDArray[np.float32], insist: bool) -> bool:
    """Whether half precision may be used. Raises ConfigurationError where it may not and must."""
    seen = difference(expected, found)
    if seen <= LARGEST_DIFFERENCE:
        return True
    reason = f"in fp16 a probability differs by {seen:.3f} from fp32"
    if insist:
        raise ConfigurationError(f"SERVING_PRECISION=fp16 cannot be used: {reason}")
    logger().warning("fp32 is used", reason=reason)
    return False

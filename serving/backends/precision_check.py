"""Precision check: compares a network in fp16 or int8 with the same in fp32; backends run it at load."""

import json

import numpy as np
from numpy.typing import NDArray

from serving.errors import ConfigurationError
from serving.model import Model
from serving.scores import softmax
from serving.task_kinds import kind_of
from serving.tensors import Array

IMAGES, TOKENS = 8, 32
MAX_DIFFERENCE = 0.02
"""Largest accepted difference of a class's probability in fp16."""

MAX_EXCESS = 0.01
"""Largest accepted excess of int8's `mean_difference` over the one where the file was made.

The shipped model has 0.018 there, and 0.041 where the products saturate (0 on a processor of the same
arithmetic, as far as emulated ones tell).
"""

FORCED, INT8_NEEDS_CPU = "SERVING_PRECISION={}", "SERVING_PRECISION=int8 needs a CPU"


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


def samples(model: Model) -> Array:
    """Returns what the network computes in both precisions: `sample_tokens`, or `sample_images`."""
    if "text" in kind_of(model.description.task).needs:
        return sample_tokens(model)
    return sample_images(model.description.pipeline.output_size)


def sample_tokens(model: Model) -> NDArray[np.int64]:
    """Returns numbers of tokens of a text classifier's vocabulary, int64 [8, 32]; always the same."""
    count = len(json.loads(model.tokenizer().read_bytes())["model"]["vocab"])
    length = min(TOKENS, model.description.text_pipeline.max_tokens)
    return np.random.default_rng(0).integers(0, count, (IMAGES, length))


def max_difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Returns the largest difference of a probability between two logits [N, classes].

    Infinite if `found` has values that are not finite.
    """
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(softmax(expected) - softmax(found)).max())


def mean_difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Returns how much probability moves to other classes, the mean over the images of [N, classes].

    0: the same answers; 1: none in common, or values that are not finite. It is the total variation
    distance, half the sum of the differences of all classes' probabilities.
    """
    if not np.isfinite(found).all():
        return 1.0
    return float(np.abs(softmax(expected) - softmax(found)).sum(axis=1).mean() / 2)


def fp16_or_fp32(
    expected: NDArray[np.float32], found: NDArray[np.float32], insist: bool
) -> tuple[str, str]:
    """Returns `fp16` if its answers `found` are close to fp32's `expected`, else `fp32`; and the reason.

    Both are logits [N, classes]. Raises ConfigurationError instead of `fp32` if `insist` is set.
    """
    seen = max_difference(expected, found)
    reason = f"in fp16 a probability differs by {seen:.3f} from fp32"
    if seen <= MAX_DIFFERENCE:
        return "fp16", FORCED.format("fp16") if insist else f"{reason} at most"
    if insist:
        raise ConfigurationError(f"SERVING_PRECISION=fp16 cannot be used: {reason}")
    return "fp32", reason

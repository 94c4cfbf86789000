"""How far outputs are from the expected ones; a task's row names the function for its own outputs."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smallplates.models.scores import sigmoid, softmax
from smallplates.models.tensors import Array


class Difference(NamedTuple):
    """How far an output is from the expected one."""

    worst: float
    """Largest difference of a number."""

    mean: float
    """Mean of the items' differences."""

    margins: Array = np.empty(0)
    """By how much the best expected class of each sample is more probable than the next, flat; infinite
    for numbers without classes. An output has as many samples as it has rows of classes."""

    changed: Array = np.empty(0, bool)
    """Whether the best class of each sample is another one."""


Compare = Callable[[Array, Array], Difference]
"""Compares an output with the expected one, which comes first; both have the same shape and type."""


def probabilities(expected: Array, found: Array) -> Difference:
    """Compares logits [..., classes] by their probabilities; infinite for logits that are not finite.

    The mean is the total variation distance, half the sum of the absolute differences of all
    probabilities: 0 means the same answers; 1 nothing in common.
    """
    if not np.isfinite((expected, found)).all():
        return Difference(math.inf, 1.0)
    if expected.shape[-1] == 1:  # the probability of a single class is its sigmoid, so 0 for the other
        expected, found = (np.concatenate((array, 0 * array), -1) for array in (expected, found))
    gaps = np.abs(softmax(expected) - softmax(found))
    return Difference(
        float(gaps.max()), float(gaps.sum(axis=-1).mean() / 2), *best(softmax(expected), found)
    )


def independent(expected: Array, found: Array) -> Difference:
    """Compares logits [..., classes] of classes that do not exclude each other by their probabilities.

    A class that is far more probable would hide the others in a softmax.
    """
    pairs = (np.stack((array, 0 * array), -1) for array in (expected, found))
    gap = probabilities(*pairs)
    if expected.shape[-1] == 1 or gap.worst == math.inf:
        return gap
    return Difference(gap.worst, gap.mean, *best(sigmoid(expected), found))


def best(expected: Array, found: Array) -> tuple[Array, Array]:
    """Returns `margins` and `changed` of expected probabilities and found logits [..., classes]."""
    second, first = np.moveaxis(np.partition(expected, -2), -1, 0)[-2:]
    return (first - second).ravel(), (expected.argmax(-1) != found.argmax(-1)).ravel()


def directions(expected: Array, found: Array) -> Difference:
    """Compares vectors [..., size] by the distance of their directions, infinite if not finite.

    That is the distance of vectors of the length 1, sqrt(2 - 2 cosine): 0.02 is a cosine of 0.9998.
    """
    if not np.isfinite((expected, found)).all():
        return Difference(math.inf, math.inf)
    one, other = (
        array / np.linalg.norm(array, axis=-1, keepdims=True).clip(1e-12) for array in (expected, found)
    )
    gaps = np.linalg.norm(one - other, axis=-1)
    return Difference(float(gaps.max()), float(gaps.mean()), *without_classes(expected))


def relative(expected: Array, found: Array) -> Difference:
    """Compares numbers of any meaning, as shares of the largest.

    Infinities and NaN must match, and so must integers and truth values: they may be labels.
    """
    finite = np.isfinite(expected) & np.isfinite(found) & (expected.dtype.kind == "f")
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return Difference(math.inf, math.inf)
    exact, seen = (np.where(finite, array, 0).astype(np.float64) for array in (expected, found))
    scale = np.abs(exact).max(initial=np.finfo(np.float32).tiny)
    gaps = np.abs(exact - seen) / scale
    worst, mean = float(gaps.max(initial=0)), float(gaps.sum() / max(1, gaps.size))
    return Difference(worst, mean, *without_classes(expected))


def without_classes(expected: Array) -> tuple[Array, Array]:
    """Returns `margins` and `changed` of items [N, ...] that have no classes."""
    return np.full(expected.shape[:1] or 1, math.inf), np.zeros(expected.shape[:1] or 1, bool)


def difference(expected: Sequence[Array], found: Sequence[Array], compare: Compare) -> Difference:
    """Returns the largest differences of all outputs; infinite for other types or shapes."""
    pairs = list(zip(expected, found, strict=True))
    if any((one.shape, one.dtype) != (other.shape, other.dtype) for one, other in pairs):
        return Difference(math.inf, math.inf)
    worst, mean, *samples = zip(*(compare(*pair) for pair in pairs), strict=True)
    return Difference(max(worst), max(mean), *map(np.concatenate, samples))

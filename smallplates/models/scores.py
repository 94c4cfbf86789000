"""Scores: from logits to probabilities and best classes; used by tasks, backends and `training/`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUM_ERROR = 1e-3
"""Largest difference of a sum of probabilities from 1, by rounding."""


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns probabilities of the same shape, which add up to 1 along the last axis."""
    exponentials = np.exp(np.subtract(logits, logits.max(-1, keepdims=True), dtype=np.float64))
    return exponentials / exponentials.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns probabilities of the same shape, for classes that do not exclude each other."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))


def are_probabilities(numbers: NDArray[Any]) -> bool:
    """Returns whether all numbers [..., classes] are from 0 to 1, and add up to 1 for each item."""
    sums = numbers.sum(-1, dtype=np.float64)
    return numbers.shape[-1] > 1 and bool(numbers.min() >= 0 and (np.abs(sums - 1) < SUM_ERROR).all())


Activation = Callable[[NDArray[np.float32]], NDArray[np.float64]]
ACTIVATIONS: dict[str, Activation] = {"softmax": softmax, "sigmoid": sigmoid}


def best(
    labels: Sequence[str], logits: NDArray[np.float32], top_k: int, activation: Activation = softmax
) -> list[dict[str, Any]]:
    """Returns the `top_k` most probable classes of `logits` [classes], or all if there are fewer.

    Each has its `label`, its `probability`, and its `index` in `labels`.
    """
    probabilities = activation(logits)
    if top_k == 1:
        order = [int(probabilities.argmax())]
    else:
        order = np.argsort(-probabilities, kind="stable")[:top_k].tolist()
    return [{"label": labels[i], "probability": float(probabilities[i]), "index": i} for i in order]

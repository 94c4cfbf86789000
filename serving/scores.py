"""From logits to what a person reads: probabilities, the best classes; called by `classifier.py`."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One class and its probability."""

    label: str
    probability: float
    index: int
    """Of the class among the model's labels."""


def best(labels: list[str], logits: list[float], top_k: int) -> list[Score]:
    """The `top_k` most probable classes, or all where there are fewer."""
    probabilities = softmax(logits)
    if top_k == 1:
        order = [probabilities.index(max(probabilities))]
    else:
        order = sorted(range(len(logits)), key=lambda i: -probabilities[i])[:top_k]
    return [Score(labels[i], probabilities[i], i) for i in order]


def softmax(logits: list[float]) -> list[float]:
    """Probabilities that add up to 1; for the few classes there are, NumPy would be slower."""
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    total = sum(exponentials)
    return [value / total for value in exponentials]

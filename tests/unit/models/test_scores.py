"""`smallplates.models.scores`: logits become scores."""

import numpy as np
import pytest

from smallplates.models.scores import best, softmax


def test_softmax_is_stable() -> None:
    logits = np.array([[1000, 1000, -1000], [0, -3e38, 3e38]], np.float32)
    assert softmax(logits).tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


@pytest.mark.parametrize("top_k", [1, 2, 3, 9])
def test_best_is_sorted_and_has_at_most_all_classes(top_k: int) -> None:
    scores = best(["a", "b", "c"], np.array([0, 2, 1], np.float32), top_k)
    assert [score["label"] for score in scores] == ["b", "c", "a"][:top_k]

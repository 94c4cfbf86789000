"""What a Triton with our models answers: for the stub of `browser/stub_api.py`, and its classes."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.browser.stub_api import MODEL, SURE, Reply


def outputs(scores: Mapping[str, Any] = SURE) -> Reply:
    shape = [1, len(scores)]
    tensors = [
        {"name": "FOOD_LABEL", "datatype": "BYTES", "shape": shape, "data": list(scores)},
        {"name": "PROBABILITY", "datatype": "FP32", "shape": shape, "data": list(scores.values())},
    ]
    return Reply(200, {"model_name": "food_classifier", "model_version": "1", "outputs": tensors})


def failure(status: int, text: str) -> Reply:
    """An error as Triton words it."""
    return Reply(status, {"error": text})


def config() -> dict[str, Any]:
    """Of `food_classifier`, as far as the client reads it."""
    return {
        "name": "food_classifier",
        "backend": "python",
        "instance_group": [{"kind": "KIND_CPU", "count": 2}],
        "parameters": {"model.json": {"string_value": json.dumps(MODEL)}},
    }


def check_same(actual: list[tuple[str, float]], wanted: list[tuple[str, float]]) -> None:
    """The same classes in the same order, probabilities within 1e-3."""
    assert [label for label, _ in actual] == [label for label, _ in wanted]
    np.testing.assert_allclose([p for _, p in actual], [p for _, p in wanted], atol=1e-3)

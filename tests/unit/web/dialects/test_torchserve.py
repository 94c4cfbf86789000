"""TorchServe's answer, an object with a key for each label."""

from types import SimpleNamespace
from typing import Any

from smallplates.tasks.base import Classification
from smallplates.web.dialects.torchserve import answer


def test_classes_of_one_label_keep_the_best_ones_probability_and_place() -> None:
    task: Any = SimpleNamespace(labels=["crane", "heron", "crane"], answer=Classification.answer)
    top = [("crane", 0.6), ("heron", 0.3), ("crane", 0.1)]
    given = answer(task, [{"label": label, "probability": value} for label, value in top])
    assert [*given.items()] == [("crane", 0.6), ("heron", 0.3)]

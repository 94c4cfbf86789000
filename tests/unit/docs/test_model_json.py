"""docs/model-json.md: its examples are read as the service reads them, and leave no field out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from smallplates.models.description import (
    EmbeddingPipeline,
    ImagePipeline,
    Int8Verdict,
    ModelDescription,
    TextPipeline,
    Thresholds,
)
from smallplates.models.folder import Model
from smallplates.models.task_kinds import KINDS, PYTHON, kind_of
from smallplates.settings import ROOT, Settings

PAGE = (ROOT / "docs" / "model-json.md").read_text().partition("## Examples")[2]
EXAMPLES: dict[str, str] = dict(re.findall(r"^### ([^\n]+)$.*?^```json\n(.*?)^```$", PAGE, re.M | re.S))
OBJECTS = (ModelDescription, ImagePipeline, TextPipeline, EmbeddingPipeline, Int8Verdict, Thresholds)


def test_every_task_has_an_example() -> None:
    assert list(EXAMPLES) == [kind.name for kind in (*KINDS, PYTHON)]


@pytest.mark.parametrize("task", EXAMPLES)
def test_an_example_describes_a_model(task: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(EXAMPLES[task])
    model = Model.read(tmp_path)
    assert kind_of(model.description.task).name == task
    assert model.settings(Settings()).precision == "auto"


def keys(value: Any) -> set[str]:  # Any: JSON
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


def test_the_examples_use_every_field() -> None:
    used = set().union(*(keys(json.loads(example)) for example in EXAMPLES.values()))
    assert {name for kind in OBJECTS for name in kind.model_fields} <= used


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_field_has_a_meaning(kind: type[BaseModel]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []

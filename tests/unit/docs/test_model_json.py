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
from tools import tables

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
    """The keys of all objects in a value."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


def test_the_examples_use_every_field() -> None:
    used = set().union(*(keys(json.loads(example)) for example in EXAMPLES.values()))
    assert {name for kind in OBJECTS for name in kind.model_fields} <= used


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_field_has_a_meaning(kind: type[BaseModel]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, "integer from 1 to 9"),
        ({"type": "number", "exclusiveMinimum": 0}, "number above 0"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "number from 0 to 1"),
        ({"anyOf": [{"type": "string"}, {"const": "auto"}, {"type": "null"}]}, 'string or `"auto"`'),
        ({"$ref": "#/$defs/TextPipeline"}, "[object](#text)"),
        ({"type": "array", "prefixItems": [{"type": "number"}], "maxItems": 1}, "array of 1: number"),
        ({"type": "object", "additionalProperties": {"enum": ["a", "b"]}}, 'object: `"a"` or `"b"`'),
    ],
)
def test_a_type_in_words(schema: dict[str, Any], words: str) -> None:
    assert tables.json_type(schema) == words

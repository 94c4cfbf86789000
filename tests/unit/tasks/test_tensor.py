"""Names that model.json gives a graph's inputs and outputs."""

from dataclasses import replace
from pathlib import Path

import pytest

from smallplates.errors import ConfigurationError
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.tasks.tensor import TensorsOnly

GRAPH = Signature(
    "graph",
    (TensorSpec("a", "float32", (2,)), TensorSpec("b", "int64", (2,))),
    (TensorSpec("sum", "float32", (2,)), TensorSpec("more", "bool", (2,))),
)


def plan(names: dict[str, str], graph: Signature = GRAPH) -> tuple[Signature, ...]:
    """What is planned for a graph with these `names` in model.json."""
    description = ModelDescription(name="sums", version="1", task="tensor", names=names)
    return TensorsOnly.plan(Model(Path(), description), Settings(), graph)


@pytest.mark.parametrize(
    "names", [{}, {"a": "x"}, {"a": "predict", "sum": "predict"}, {"a": "b", "b": "a"}]
)
def test_an_input_and_an_output_may_share_a_name(names: dict[str, str]) -> None:
    assert plan(names) == (GRAPH,)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"sums": "x"}, "has 'sums'; the graph has a, b, sum, more"),
        ({"a": "b"}, "repeats a name: b, b"),
        ({"sum": "y", "more": "y"}, "repeats a name: y, y"),
    ],
)
def test_two_inputs_or_two_outputs_may_not(names: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan(names)


def test_a_graph_with_two_outputs_of_one_name_is_told_from_names_in_model_json() -> None:
    twice = replace(GRAPH, outputs=GRAPH.outputs[:1] * 2)
    with pytest.raises(ConfigurationError, match="the graph repeats a name: sum, sum"):
        plan({}, twice)

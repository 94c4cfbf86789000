"""Entities are those of transformers' own pipeline on both backends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from tests.transformers import folders
from tests.transformers.answers import BACKENDS, loaded

TOLERANCE = 1e-3
"""Of a score; tokens whose best labels are closer may change their label."""

STRATEGIES = ["none", "simple", "first", "average", "max"]
LONG = " ".join(folders.WORDS * 6)
TEXTS = [*folders.TEXTS[2:12], LONG]
Entities = Sequence[Mapping[str, Any]]


def cases() -> Iterator[dict[str, Any]]:
    """Fields of requests, which are the pipeline's options, too."""
    for strategy in STRATEGIES:
        yield {"aggregation_strategy": strategy}
    for ignored in ([], ["PER", "B-LOC"]):
        yield {"ignore_labels": ignored}
        yield {"aggregation_strategy": "average", "ignore_labels": ignored}
    for strategy in STRATEGIES[1:]:
        for stride in (0, 128):
            yield {"aggregation_strategy": strategy, "stride": stride}


def assert_same(actual: Entities, expected: Entities) -> None:
    """Checks the scores, and everything else exactly; also the order of the names."""
    assert [list(entity) for entity in actual] == [list(entity) for entity in expected]
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=TOLERANCE)
        assert {**ours, "score": 0} == {**theirs, "score": 0}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", folders.NETWORKS)
def test_entities(backend: str, network: str, kept: Callable[..., Path]) -> None:
    folder, count = kept(folders.token_classifier, network), 0
    find = pipeline("token-classification", model=str(folder), device="cpu")
    answers = loaded(backend, folder)
    for options in cases():
        found = answers([{"text": text, **options} for text in TEXTS])
        for text, (ours,) in zip(TEXTS, found, strict=True):
            assert_same(ours["entities"], find(text, **options))
            count += len(ours["entities"])
    assert count > 1000, "too few entities"

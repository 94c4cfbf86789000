"""Any classes get the scores of transformers' own pipeline on both backends."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from tests.transformers import folders
from tests.transformers.answers import BACKENDS, loaded

TOLERANCE = 1e-3
NLI = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
TEXTS = [folders.TEXTS[number] for number in (0, 4, 6, 10)] + [" ".join(folders.WORDS * 6)]
LABELS = [["soup", "bread", "crème brûlée", "{x}"], "soup, bread ,table,", ["one"]]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"multi_label": True},
    {"hypothesis_template": "{{{}}} is {{it}}"},
    {"hypothesis_template": "{0} and {0}", "multi_label": False},
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("network", "labels"),
    [*((network, NLI) for network in folders.NETWORKS), ("bert", NLI[::-1])],
    ids=[*folders.NETWORKS, "entailment first"],
)
def test_any_classes(
    backend: str, network: str, labels: tuple[str, ...], kept: Callable[..., Path]
) -> None:
    folder, orders = kept(folders.pair_classifier, network, *labels), set()
    classify = pipeline("zero-shot-classification", model=str(folder), device="cpu")
    answers = loaded(backend, folder)
    for names, options in product(LABELS, OPTIONS):
        found = answers([{"text": text, "candidate_labels": names, **options} for text in TEXTS])
        for ours, text in zip(found, TEXTS, strict=True):
            theirs = classify(text, candidate_labels=names, **options)
            scores = dict(zip(theirs["labels"], theirs["scores"], strict=True))
            by_label = {candidate["label"]: candidate["probability"] for candidate in ours}
            assert by_label == pytest.approx(scores, abs=TOLERANCE)
            first, *others = theirs["scores"]
            if not others or first - others[0] > TOLERANCE:
                assert ours[0]["label"] == theirs["labels"][0]
            orders.add(tuple(theirs["labels"]))
    assert len(orders) > len(LABELS), "the cases cannot tell labels apart"

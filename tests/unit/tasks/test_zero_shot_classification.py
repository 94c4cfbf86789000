"""`smallplates.tasks.zero_shot_classification`: from exports of classifiers of pairs to any classes.

`tests/transformers` compares the scores with those of transformers' pipeline.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smallplates.errors import ConfigurationError, RequestError
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.worker import precision_check
from tests import exports
from tests.served_task import ServedTask, loaded

LABELS = ["awful", "warm", "table"]


def saved(folder: Path, **config: Any) -> Path:
    return exports.compared(folder / "made", exports.word_piece(), config)


def answer(folder: Path, top_k: int = 100, **fields: Any) -> Any:
    served = ServedTask(folder)
    (candidates,) = served.answers([{"text": "soup", **fields}], top_k)
    return served.task.to_json(candidates, with_top=False)


def test_labels_are_sorted_by_how_well_they_follow(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    found = answer(folder, candidate_labels=LABELS, hypothesis_template="{}")
    mean = 12 / 5  # of the word's logit, over [CLS] soup [SEP] word [SEP]
    total = np.exp(mean) + 2
    assert found == {
        "sequence": "soup",
        "labels": ["warm", "table", "awful"],
        "scores": pytest.approx([np.exp(mean) / total, 1 / total, 1 / total]),
    }
    best = answer(folder, 1, candidate_labels=" awful,, warm ,table", hypothesis_template="{0}")
    assert best == {"sequence": "soup", "labels": ["warm"], "scores": found["scores"][:1]}


def test_independent_labels_are_compared_with_contradiction(tmp_path: Path) -> None:
    folder, mean = saved(tmp_path), 12 / 5
    found = answer(folder, candidate_labels=LABELS, hypothesis_template="{}", multi_label=True)
    assert found["labels"] == ["warm", "table", "awful"]
    expected = [1 / (1 + np.exp(-mean)), 0.5, 1 / (1 + np.exp(mean))]
    assert found["scores"] == pytest.approx(expected)
    alone = answer(folder, candidate_labels=["warm"], hypothesis_template="{}")
    assert alone["scores"] == pytest.approx(expected[:1])


def test_a_neutral_pair_does_not_hide_a_difference_from_fp32(tmp_path: Path) -> None:
    compare = precision_check.comparison_for(Model.read(saved(tmp_path)))
    expected, found = (np.array([[0, 9, entailment]], np.float32) for entailment in (0, 2))
    assert compare(expected, found).worst > precision_check.MAX_DIFFERENCE


def test_entailment_may_be_the_first_label(tmp_path: Path) -> None:
    names = {"0": "entailed", "1": "neutral", "2": "no"}
    found = answer(
        saved(tmp_path, id2label=names),
        candidate_labels=LABELS,
        hypothesis_template="{}",
        multi_label=True,
    )
    assert found["labels"] == ["awful", "table", "warm"]
    assert found["scores"][1] == pytest.approx(0.5)


def test_without_labels_it_classifies(tmp_path: Path) -> None:
    found = answer(saved(tmp_path), text="warm")
    assert found["prediction"] == "Entailment"
    assert answer(saved(tmp_path), text="soup", text_pair="awful")["prediction"] == "contradiction"


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_the_text_is_cut(side: str, tmp_path: Path) -> None:
    folder, tokenizer = saved(tmp_path), exports.word_piece()
    (folder / "tokenizer_config.json").write_text(json.dumps({"truncation_side": side}))
    task = loaded(folder, long_text="truncate")
    text, labels = "warm soup on the table " * 20, ["bread", "and " * 40]
    prepared = task.preprocess(
        {"text": text, "candidate_labels": labels, "hypothesis_template": "the {}"}
    )
    tokenizer.enable_truncation(64, strategy="only_first", direction=side)
    expected = [tokenizer.encode(text, f"the {label}").ids for label in labels]
    assert [item[0].tolist() for item in prepared.items] == expected
    assert prepared.truncated
    assert prepared.tokens == 128
    with pytest.raises(RequestError, match="text and element 0 of candidate_labels together have"):
        task.preprocess({"text": text, "candidate_labels": ["and " * 62]})


@pytest.mark.parametrize(
    ("template", "hypothesis"),
    [("{}", "{x} {0.a}"), ("a {0} {0}", "a {x} {0.a} {x} {0.a}"), ("{{}} {}", "{} {x} {0.a}")],
)
def test_braces_in_labels_are_no_template(template: str, hypothesis: str, tmp_path: Path) -> None:
    task = loaded(saved(tmp_path))
    prepared = task.preprocess(
        {"text": "warm", "candidate_labels": ["{x} {0.a}"], "hypothesis_template": template}
    )
    assert prepared.items[0][0].tolist() == exports.word_piece().encode("warm", hypothesis).ids


@pytest.mark.parametrize(
    "template",
    [
        *("", "a class", "{{}}", "{", "}", "{} {}", "{} {0}", "{1}", "{x}", "{0.__class__}", "{0[0]}"),
        *("{!r}", "{:>99999999}", "{:{}}", "{}" + "a" * 1024, "{" * 10**6, "{0}" * 10**5),
    ],
)
def test_other_templates_are_refused(template: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="hypothesis_template must have"):
        loaded(saved(tmp_path)).preprocess(
            {"text": "warm", "candidate_labels": ["a"], "hypothesis_template": template}
        )


def test_pairs_of_all_texts_and_labels_are_limited(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path), max_request_items=8)
    shared = {"candidate_labels": ["a", "b"], "hypothesis_template": "{}"}
    task.check_all([{"text": "warm", **shared}] * 4)
    with pytest.raises(RequestError, match="up to 8 pairs of a text and a label"):
        task.check_all([{"text": "warm", **shared}] * 5)


def test_which_models_take_labels(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    described = Model.read(folder).description
    assert described.task == "zero-shot-classification"
    other = exports.saved(tmp_path / "other", exports.word_piece(), {})
    assert Model.read(other).description.task == "text-classification"
    content = {**described.model_dump(exclude={"image", "int8", "files"}, exclude_none=True)}
    (folder / "model.json").write_text(json.dumps({**content, "task": "text-classification"}))
    model = Model.read(folder)
    names = [field.name for field in kind_of(model.description.task).load().request]
    assert names == ["text", "text_pair"]
    content["labels"] = ["no", "yes", "perhaps"]
    (folder / "1").mkdir()
    (folder / "model.onnx").rename(folder / "1" / "model.onnx")
    (folder / "model.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="no label whose name begins with entail"):
        loaded(folder)

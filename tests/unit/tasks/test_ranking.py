"""`smallplates.tasks.ranking`: from exports of pair classifiers with one label to scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smallplates.errors import ConfigurationError, InvalidTextError
from smallplates.models.folder import Model
from smallplates.tasks.base import Candidate
from tests import exports
from tests.served_task import answers, loaded

TEXTS = ["awful", "bread", "wonderful", "warm", "awful"]
CROSS_ENCODER = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}


def saved(folder: Path, **config: Any) -> Path:
    return exports.ranked(folder / "made", exports.word_piece(), config)


def ranking(folder: Path, top_k: int = 100, **fields: Any) -> list[Candidate]:
    (found,) = answers(folder, [{"query": "bread", **fields}], top_k)
    return found


def test_texts_are_sorted_and_equal_ones_keep_their_order(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    raw = ranking(folder, texts=TEXTS, raw_scores=True)
    assert [rank["index"] for rank in raw] == [2, 3, 1, 0, 4]
    logits = [12 / 5, 12 / 5, 0, -12 / 5, -12 / 5]  # the mean over [CLS] bread [SEP] text [SEP]
    assert [rank["score"] for rank in raw] == pytest.approx(logits, abs=1e-6)
    scores = ranking(folder, texts=TEXTS)
    assert [rank["index"] for rank in scores] == [2, 3, 1, 0, 4]
    expected = [1 / (1 + np.exp(-logit)) for logit in logits]
    assert [rank["score"] for rank in scores] == pytest.approx(expected, abs=1e-6)
    assert ranking(folder, 2, texts=TEXTS) == scores[:2]


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("config", "stated", "is_raw"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, None, True),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, None, False),
        ({"sentence_transformers": {"version": "5.4.0"}}, None, False),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, IDENTITY, True),
        ({}, SIGMOID, False),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, True),
        ({}, None, False),
    ],
)
def test_scores_are_those_of_the_stored_activation_function(
    tmp_path: Path, config: dict[str, Any], stated: str | None, is_raw: bool
) -> None:
    folder = saved(tmp_path, **config)
    if stated:
        written = {"model_type": "CrossEncoder", "activation_fn": stated}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(written))
    assert ranking(folder, texts=TEXTS) == ranking(folder, texts=TEXTS, raw_scores=is_raw)
    assert ranking(folder, texts=TEXTS) != ranking(folder, texts=TEXTS, raw_scores=not is_raw)


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.Tanh", "mine.Sigmoid", "", 3])
def test_another_activation_function_is_refused(tmp_path: Path, name: Any) -> None:
    folder = saved(tmp_path, sentence_transformers={"activation_fn": name or "Identity"})
    with pytest.raises(ConfigurationError, match=r"its activation_fn is .*; supported are Identity and"):
        Model.read(folder)


TEMPLATE = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", TEMPLATE),
        ("chat_template.json", json.dumps({"chat_template": TEMPLATE})),
        ("additional_chat_templates/rank.jinja", TEMPLATE),
        ("tokenizer_config.json", json.dumps({"chat_template": TEMPLATE})),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "default", "template": TEMPLATE}]}),
        ),
    ],
)
def test_only_classifiers_may_have_a_chat_template(tmp_path: Path, name: str, content: str) -> None:
    for config in ({}, CROSS_ENCODER, {"id2label": {"0": "NO", "1": "YES"}, **CROSS_ENCODER}):
        folder = saved(tmp_path, **config)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        with pytest.raises(ConfigurationError, match="chat template"):
            Model.read(folder)
    folder = saved(tmp_path, id2label={"0": "toxic"})
    (folder / name).write_text(content)
    assert Model.read(folder).description.task == "text-classification"


def test_equal_texts_are_computed_once(tmp_path: Path) -> None:
    prepared = loaded(saved(tmp_path)).preprocess(
        {"query": "warm", "texts": ["soup"] * 9 + ["bread"] * 9}
    )
    assert len(prepared.items) == 2
    assert prepared.tokens == 18 * 5


def test_an_empty_text_is_ranked_like_any_other(tmp_path: Path) -> None:
    texts = ["", " ", "bread", "\u200b"]
    folder = saved(tmp_path)
    prepared = loaded(folder).preprocess({"query": "warm", "texts": texts})
    pairs = exports.word_piece().encode_batch([("warm", text) for text in texts])
    assert [item[0].tolist() for item in prepared.items] == [pair.ids for pair in pairs]
    assert sorted(rank["index"] for rank in ranking(folder, texts=texts)) == [0, 1, 2, 3]
    with pytest.raises(InvalidTextError, match="query"):
        loaded(folder).preprocess({"query": "\u200b", "texts": texts})


def test_items_are_the_pairs(tmp_path: Path) -> None:
    tokenizer = exports.word_piece()
    long, longer = "warm " * 50, "bread " * 90
    for direction in ("left", "right"):
        task = loaded(saved(tmp_path), long_text="truncate")
        tokenizer.enable_truncation(64, direction=direction)
        for query in ("warm", long, longer):
            prepared = task.preprocess(
                {"query": query, "texts": ["soup", longer, long], "truncation_direction": direction}
            )
            expected = tokenizer.encode_batch([(query, text) for text in ("soup", longer, long)])
            assert [item[0].tolist() for item in prepared.items] == [pair.ids for pair in expected]
            assert prepared.truncated


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({}, "ranking"),
        ({"problem_type": "regression"}, "ranking"),
        ({"problem_type": "regression", "id2label": {"0": "similarity"}}, "ranking"),
        ({"id2label": {"0": "relevant"}, **CROSS_ENCODER}, "ranking"),
        (
            {"id2label": {"0": "relevant"}, "sbert_ce_default_activation_function": "torch.nn.Identity"},
            "ranking",
        ),
        ({"id2label": {"0": "toxic"}}, "text-classification"),
        ({"problem_type": "multi_label_classification"}, "text-classification"),
        ({"problem_type": "single_label_classification"}, "text-classification"),
        ({"id2label": {"0": "NO", "1": "YES"}, **CROSS_ENCODER}, "text-classification"),
    ],
)
def test_what_one_label_means(tmp_path: Path, config: dict[str, Any], task: str) -> None:
    assert Model.read(saved(tmp_path, **config)).description.task == task


def test_modules_without_pooling_are_those_of_a_cross_encoder(tmp_path: Path) -> None:
    folder = saved(tmp_path, id2label={"0": "relevance"})
    exports.modules(folder)
    options = folder / "config_sentence_transformers.json"
    options.write_text('{"model_type": "CrossEncoder", "default_prompt_name": null, "prompts": {}}')
    assert Model.read(folder).description.task == "ranking"
    options.write_text('{"prompts": {"query": "query: "}, "default_prompt_name": "query"}')
    with pytest.raises(ConfigurationError, match="its default_prompt_name puts a prompt before queries"):
        Model.read(folder)

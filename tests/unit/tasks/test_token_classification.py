"""`smallplates.tasks.token_classification`: from exports of token classifiers to entities.

`tests/transformers` compares the entities with those of transformers' pipeline.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from smallplates.errors import RequestError
from smallplates.models.folder import Model
from tests import exports
from tests.served_task import ServedTask, loaded

TEXT = "\U0001f600 The Warm soup, bread table"
"""Its first token is unknown; `The` and the comma have no entity."""


def saved(folder: Path, **config: Any) -> Path:
    return exports.tagged(folder / "made", exports.word_piece(), config)


def found(folder: Path, text: str, settings: dict[str, Any] | None = None, **fields: Any) -> Any:
    """The entities of a text, by the names that the answer has."""
    served = ServedTask(folder, **settings or {})
    (candidates,) = served.answers([{"text": text, **fields}])
    return served.task.to_json(candidates, False)["entities"]


def score(*logits: float) -> float:
    return math.exp(logits[0]) / sum(map(math.exp, logits))


def test_tokens_are_entities_without_a_strategy(tmp_path: Path) -> None:
    entities = found(saved(tmp_path), TEXT)
    assert entities == [
        {"entity": name, "score": pytest.approx(number), "index": index, "word": word, **span}
        for name, number, index, word, span in [
            ("B-DISH", score(3, 0, 1, 0), 3, "warm", {"start": 6, "end": 10}),
            ("I-DISH", score(3, 0, 1, 0), 4, "soup", {"start": 11, "end": 15}),
            ("B-DISH", score(3, 0, 2, 0), 6, "bread", {"start": 17, "end": 22}),
            ("PLACE", score(5, 0, 0, 0), 7, "table", {"start": 23, "end": 28}),
        ]
    ]
    assert list(entities[0]) == ["entity", "score", "index", "word", "start", "end"]


def test_a_model_json_may_name_the_sigmoid(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    content = json.loads(Model.read(folder).description.model_dump_json(exclude_none=True))
    content["text"]["activation"] = "sigmoid"
    (folder / "1").mkdir()
    (folder / "model.onnx").rename(folder / "1" / "model.onnx")
    (folder / "model.json").write_text(json.dumps(content))
    assert found(folder, TEXT)[0]["score"] == pytest.approx(1 / (1 + math.exp(-3)))


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_neighbours_of_the_same_label_are_one_entity(strategy: str, tmp_path: Path) -> None:
    entities = found(saved(tmp_path), TEXT, aggregation_strategy=strategy)
    names = [(entity["entity_group"], entity["word"]) for entity in entities]
    assert names == [("DISH", "warm soup"), ("DISH", "bread"), ("PLACE", "table")]
    assert [TEXT[each["start"] : each["end"]] for each in entities] == ["Warm soup", "bread", "table"]
    assert entities[0]["score"] == pytest.approx(score(3, 0, 1, 0))
    assert list(entities[0]) == ["entity_group", "score", "word", "start", "end"]


def test_what_is_ignored_is_left_out_by_its_final_name(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    every = found(folder, TEXT, ignore_labels=[])
    assert [entity["word"] for entity in every][:3] == ["\U0001f600", "the", "warm"]
    assert [each["word"] for each in found(folder, TEXT, ignore_labels="O, PLACE ,I-DISH")] == [
        "warm",
        "bread",
    ]
    groups = found(folder, TEXT, aggregation_strategy="simple", ignore_labels=["DISH", "O"])
    assert [group["word"] for group in groups] == ["table"]


LETTERS = {"w": (0, 3, 0, 0), "##f": (0, 0, 2, 0), "##u": (0, 0, 0, 6), "##l": (0, 0, 2, 0)}
PROBABILITIES = [np.exp(logits) / np.exp(logits).sum() for logits in LETTERS.values()]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("simple", [("DISH", "wf", None), ("PLACE", "##u", None), ("DISH", "##l", None)]),
        ("first", [("DISH", "wful", PROBABILITIES[0][1])]),
        ("average", [("DISH", "wful", np.mean(PROBABILITIES, axis=0)[2])]),
        ("max", [("PLACE", "wful", PROBABILITIES[2][3])]),
    ],
)
def test_a_words_label_is_decided_by_its_tokens(
    strategy: str, expected: list[tuple[str, str, float | None]], tmp_path: Path
) -> None:
    tokenizer, names = exports.word_piece(), [*exports.SPECIAL, *LETTERS]
    tokenizer.model = models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer.decoder = decoders.WordPiece()
    folder = exports.tagged(tmp_path / "made", tokenizer, {}, LETTERS)
    entities = found(folder, "x wful", aggregation_strategy=strategy)
    assert [(each["entity_group"], each["word"]) for each in entities] == [one[:2] for one in expected]
    assert (entities[0]["start"], entities[-1]["end"]) == (2, 6)
    if expected[0][2]:
        assert entities[0]["score"] == pytest.approx(expected[0][2])


def test_without_marks_a_token_behind_a_space_begins_a_word(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "-": 2, "b": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    logits = {"a": (0, 3, 0, 0), "-": (0, 0, 0, 9), "b": (0, 2, 0, 0)}
    folder = exports.tagged(tmp_path / "made", tokenizer, {}, logits)
    entities = found(folder, "a-b b a-z", aggregation_strategy="first")
    spans = [(each["entity_group"], each["start"], each["end"]) for each in entities]
    assert spans == [("DISH", 0, 3), ("DISH", 4, 5), ("DISH", 6, 8)]
    assert entities[0]["word"] == "a - b"


def test_long_texts_are_cut_refused_or_read_in_windows(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    text = "and " * 61 + "warm soup " + "and " * 100 + "table"
    simple: dict[str, Any] = {"aggregation_strategy": "simple"}
    with pytest.raises(RequestError, match="has 166 tokens; at most 64 are accepted"):
        loaded(folder).preprocess({"text": text})
    cut = {"long_text": "truncate"}
    assert [each["word"] for each in found(folder, text, cut, **simple)] == ["warm"]
    for stride in (0, 1, 20, 50):
        entities = found(folder, text, **simple, stride=stride)
        words = [(each["word"], each["start"]) for each in entities]
        assert words[-1] == ("table", len(text) - 5)
        expected = [("warm", 244), ("soup", 249)] if stride == 0 else [("warm soup", 244)]
        assert words[:-1] == expected, stride


def test_places_count_from_the_beginning_of_a_text_that_is_cut_there(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    text = "bread " * 4000 + "Warm soup"
    for strategy in ("none", "max"):
        entities = found(folder, text, {"long_text": "truncate"}, aggregation_strategy=strategy)
        assert text[entities[-1]["start"] : entities[-1]["end"]] in ("soup", "Warm soup")

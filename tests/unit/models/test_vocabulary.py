"""Folders that have only BERT's `vocab.txt`."""

import json
from pathlib import Path
from typing import Any

import pytest

from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.worker.independence import vocabulary
from smallplates.worker.precision_check import sample_tokens
from tests import exports
from tests.served_task import answers, loaded

WORD_PIECE = exports.word_piece()
TEXT = "The SOUP was wärm\tand wonderful 今天 [SEP] <dish> \0"


def bare(folder: Path, without: str = "", **config: Any) -> Path:
    """The folder, then an export whose tokeniser is only a list of tokens."""
    exports.saved(folder, WORD_PIECE, config)
    (folder / "tokenizer.json").unlink()
    tokens = sorted(WORD_PIECE.get_vocab(), key=WORD_PIECE.get_vocab().__getitem__)
    lines = "".join(f"{token}\n" for token in tokens if token != without)
    (folder / "vocab.txt").write_text(lines, encoding="utf-8")
    return folder


def test_texts_are_those_of_the_same_tokenizer_json(tmp_path: Path) -> None:
    folder, other = bare(tmp_path / "bare"), exports.saved(tmp_path / "made", WORD_PIECE, {})
    for each in (folder, other):
        (each / "added_tokens.json").write_text('{"<dish>": 900}')
    ours, theirs = (loaded(each).preprocess({"text": TEXT}).items[0] for each in (folder, other))
    assert [array.tolist() for array in ours] == [array.tolist() for array in theirs]
    assert vocabulary(Model.read(folder)) == vocabulary(Model.read(other))
    assert (sample_tokens(Model.read(folder)) == sample_tokens(Model.read(other))).all()


def test_entities_are_found_with_it(tmp_path: Path) -> None:
    exports.tagged(tmp_path / "made", WORD_PIECE, {})
    bare(tmp_path / "bare")
    for name in ("config.json", "model.onnx"):
        (tmp_path / "bare" / name).write_bytes((tmp_path / "made" / name).read_bytes())
    request = {"text": "wonderful soup on the table"}
    ours, theirs = (answers(tmp_path / name, [request], 100) for name in ("bare", "made"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("config", "stated", "without", "words"),
    [
        ({"model_type": "roberta"}, {}, "", r"tokenizer\.json is missing.*save_pretrained"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "", r"tokenizer\.json is missing"),
        ({}, {"tokenizer_class": "BertJapaneseTokenizer"}, "", r"tokenizer\.json is missing"),
        ({}, {"tokenizer_class": "BertTokenizerFast"}, "[SEP]", r"vocab\.txt cannot .*sep_token"),
        ({}, {}, "[UNK]", r"vocab\.txt cannot .*\[UNK\]"),
    ],
)
def test_lists_of_other_tokens_are_refused(
    tmp_path: Path, config: dict[str, Any], stated: dict[str, Any], without: str, words: str
) -> None:
    folder = bare(tmp_path / "bare", without, **config)
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    with pytest.raises(ConfigurationError, match=words):
        Model.read(folder)

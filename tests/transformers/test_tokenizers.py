"""Tokens are those of transformers, also of folders with older files, or with only a vocabulary."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from smallplates.models.folder import Model
from smallplates.tasks.tokenizer import load_tokenizer
from tests.transformers import folders

TEXTS = [*folders.TEXTS, "a <dish> and <DISH>, salt and Salt [SALT]"]
CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert")


def saved(folder: Path, name: str, **options: Any) -> Path:
    """The folder, then a tokeniser of a class, as before transformers 4.34."""
    folder.mkdir()
    kind = getattr(transformers, f"{name}TokenizerFast")
    folders.word_piece(folder, kind)
    vocabulary = str(folder / "vocab.txt")
    kind(vocabulary, model_max_length=folders.TOKENS, **options).save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    network = {"architectures": [f"{name}Model"], "model_type": name.lower(), "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(network))
    return folder


def compare(folder: Path) -> None:
    """Asserts that texts and pairs have the tokens of transformers, and the types of these."""
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(Model.read(folder))
    for text, pair in [*((text, None) for text in TEXTS), *folders.PAIRS]:
        expected, found = theirs(text, pair, return_token_type_ids=True), ours.encode(text, pair)
        assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_a_folder_with_only_a_vocabulary(tmp_path: Path, name: str, options: dict[str, bool]) -> None:
    folder = saved(tmp_path / "made", name, **options)
    (folder / "tokenizer.json").unlink()
    compare(folder)


@pytest.mark.parametrize("name", CLASSES)
def test_tokens_that_only_older_files_have(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "made", name)
    (folder / "added_tokens.json").write_text(json.dumps({"salt": 901, "<dish>": 900}))
    special = {"additional_special_tokens": ["<dish>"], "mask_token": "[SALT]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    compare(folder)

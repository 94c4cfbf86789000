"""Tokenisers in the form of `tokenizer.json`, also of folders that have only BERT's `vocab.txt`."""

import json
from pathlib import Path

from smallplates.errors import ConfigurationError
from smallplates.models.huggingface import CONFIG, Config, File, read

VOCABULARY = "vocab.txt"
NETWORKS = ("bert", "distilbert", "electra", "mobilebert")
"""Networks whose tokenisers need nothing but the vocabulary; the classes have the same names."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
STEPS = {
    "version": "1.0",
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}
WORD_PIECE = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


class TokenizerClass(File):
    """The field of `tokenizer_config.json` that replaces the network's type."""

    tokenizer_class: str | None = None


def tokenizer_json(path: Path) -> str:
    """Returns the content of `tokenizer.json`, or what transformers would write there.

    Raises OSError, also if there is neither; ValueError if it is not UTF-8; and ConfigurationError.
    """
    folder = path.parent
    if path.exists() or not is_berts(folder):
        return path.read_text(encoding="utf-8")
    with (folder / VOCABULARY).open(encoding="utf-8") as lines:
        ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    if lacking := {*SPECIAL[1:4]}.difference(ids):
        raise ConfigurationError(f"{folder / VOCABULARY} has no {' and no '.join(sorted(lacking))}")
    around = {name: (token, ids[token]) for name, token in (("cls", "[CLS]"), ("sep", "[SEP]"))}
    return json.dumps(
        {
            **STEPS,
            "added_tokens": [
                {"id": number, "content": token, **FLAGS}
                for token, number in ids.items()
                if token in SPECIAL
            ],
            "post_processor": {"type": "BertProcessing", **around},
            "model": {**WORD_PIECE, "vocab": ids},
        }
    )


def is_berts(folder: Path) -> bool:
    """Returns whether a folder's `vocab.txt` is that of a BERT. Raises ConfigurationError."""
    config, stated = folder / CONFIG, folder / "tokenizer_config.json"
    if not ((folder / VOCABULARY).is_file() and config.is_file()):
        return False
    network = read(config, Config)
    own = read(stated, TokenizerClass).tokenizer_class if stated.is_file() else None
    name = own or network.tokenizer_class or network.model_type or ""
    return name.removesuffix("Fast").removesuffix("Tokenizer").lower() in NETWORKS

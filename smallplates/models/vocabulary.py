"""Tokenisers in the form of `tokenizer.json`, also of folders that have only BERT's `vocab.txt`."""

from pathlib import Path

from smallplates.errors import library_errors
from smallplates.models.huggingface import CONFIG, Config, File, read

VOCABULARY = "vocab.txt"
NETWORKS = ("bert", "distilbert", "electra", "mobilebert")
"""Networks whose tokenisers need nothing but the vocabulary; the classes have the same names."""


class TokenizerClass(File):
    """The field of `tokenizer_config.json` that replaces the network's type."""

    tokenizer_class: str | None = None


def tokenizer_json(path: Path) -> str:
    """Returns the content of `tokenizer.json`, or what transformers would write there.

    Raises OSError, also if there is neither, ValueError and ConfigurationError.
    """
    folder = path.parent
    if path.exists() or not is_berts(folder):
        return path.read_text(encoding="utf-8")
    from tokenizers.implementations import BertWordPieceTokenizer  # workers need none of it

    with library_errors(f"{folder / VOCABULARY} cannot be read as a tokeniser"):
        with (folder / VOCABULARY).open(encoding="utf-8") as lines:
            ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
        if "[UNK]" not in ids:  # the class looks for the others
            raise ValueError("it has no [UNK]")
        return str(BertWordPieceTokenizer(ids).to_str())


def is_berts(folder: Path) -> bool:
    """Returns whether a folder's `vocab.txt` is that of a BERT. Raises ConfigurationError."""
    config, stated = folder / CONFIG, folder / "tokenizer_config.json"
    if not ((folder / VOCABULARY).is_file() and config.is_file()):
        return False
    network = read(config, Config)
    own = read(stated, TokenizerClass).tokenizer_class if stated.is_file() else None
    name = own or network.tokenizer_class or network.model_type or ""
    return name.removesuffix("Fast").removesuffix("Tokenizer").lower() in NETWORKS

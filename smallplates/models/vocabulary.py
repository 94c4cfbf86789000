"""Tokenisers in the form of `tokenizer.json`, also of folders that have only BERT's `vocab.txt`."""

from pathlib import Path

from smallplates.errors import library_errors
from smallplates.models.huggingface import CONFIG, Config, read

VOCABULARY = "vocab.txt"
NETWORKS = ("bert", "distilbert", "electra", "mobilebert")
"""Networks whose tokenisers need nothing but the vocabulary; the classes have the same names."""


def tokenizer_json(path: Path) -> str:
    """Returns the content of `tokenizer.json`, or what transformers would write there.

    Raises OSError, also if there is neither, ValueError and ConfigurationError.
    """
    folder = path.parent
    if path.exists() or not is_berts(folder):
        return path.read_text(encoding="utf-8")
    from tokenizers import BertWordPieceTokenizer  # workers need none of it

    with library_errors(f"{folder / VOCABULARY} cannot be read as a tokeniser"):
        with (folder / VOCABULARY).open(encoding="utf-8") as lines:
            ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
        if "[UNK]" not in ids:  # the class looks for the others
            raise ValueError("it has no [UNK]")
        return str(BertWordPieceTokenizer(ids).to_str())


def is_berts(folder: Path) -> bool:
    """Returns whether a folder has the `vocab.txt` of one of NETWORKS. Raises ConfigurationError."""
    files = [folder / name for name in ("tokenizer_config.json", CONFIG) if (folder / name).is_file()]
    configs = [read(path, Config) for path in files if (folder / VOCABULARY).is_file()]
    stated = [config.tokenizer_class for config in configs] + [config.model_type for config in configs]
    name = next(filter(None, stated), "")
    return name.removesuffix("Fast").removesuffix("Tokenizer").lower() in NETWORKS

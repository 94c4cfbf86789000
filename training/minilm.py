"""all-MiniLM-L6-v2, which the networks for texts start from: its vocabulary is cut to a part."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from re import Pattern
from typing import Any

from tokenizers import Tokenizer

FOLDER = "weights/all-MiniLM-L6-v2"
"""Where it is in the folder of the data."""

PAD, UNKNOWN = "[PAD]", "[UNK]"
SPECIAL = (PAD, UNKNOWN, "[CLS]", "[SEP]", "[MASK]")

OFTEN = 12
"""Number of texts in which a piece is sure to stay; the others stay in the order of the vocabulary."""


def settings(max_tokens: int, inputs: Sequence[str]) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json, for transformers."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": max_tokens,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }


def kept_pieces(
    description: Mapping[str, Any], texts: Sequence[str], known: Pattern[str], count: int
) -> list[str]:
    """Returns `count` pieces of a vocabulary: the special ones, and those of texts like these.

    `description` is the tokenizer's file. All of a piece must match `known`.
    """
    complete = Tokenizer.from_str(json.dumps({**description, "truncation": None, "padding": None}))
    counts = Counter(
        piece for encoding in complete.encode_batch(texts) for piece in set(encoding.tokens)
    )
    pieces = ranking(description["model"]["vocab"], counts, known)
    return [*SPECIAL, *(piece for piece in pieces if piece not in SPECIAL)][:count]


def ranking(vocabulary: Mapping[str, int], counts: Counter[str], known: Pattern[str]) -> Iterator[str]:
    """Yields known pieces: single characters, frequent pieces, then the vocabulary's order."""
    bare = {piece: piece.removeprefix("##") for piece in vocabulary}
    pieces = [piece for piece, text in bare.items() if known.fullmatch(text)]

    def rank(piece: str) -> tuple[bool, bool, int]:
        return len(bare[piece]) > 1, counts[piece] < OFTEN, vocabulary[piece]

    yield from sorted((piece for piece in pieces if not piece.startswith("[unused")), key=rank)


def tokenizer_with(
    description: Mapping[str, Any], pieces: Sequence[str], normalizer: Mapping[str, Any]
) -> Tokenizer:
    """Returns a tokenizer like the described one, with these pieces and this normalizer."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    processor = deepcopy(description["post_processor"])
    for name, token in processor["special_tokens"].items():
        token["ids"] = [ids[name]]
    changes = {
        "truncation": None,
        "padding": None,
        "added_tokens": [token | {"id": ids[token["content"]]} for token in description["added_tokens"]],
        "normalizer": normalizer,
        "post_processor": processor,
        "model": description["model"] | {"vocab": ids},
    }
    return Tokenizer.from_str(json.dumps({**description, **changes}))

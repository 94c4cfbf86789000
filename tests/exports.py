"""Exports of networks for texts, made on the spot as transformers would write them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests import graphs

LABELS = ["NEGATIVE", "NEUTRAL", "POSITIVE"]
WORDS = {"awful": 0, "dull": 0, "bread": 1, "table": 1, "wonderful": 2, "warm": 2}
"""Words, each for the label of this index."""

SPANS = {"warm": (9, 2), "soup": (2, 9), "wonderful": (6, 6), "[CLS]": (4, 4), "<s>": (4, 4)}
"""Logits of words as the first and the last one of an answer; those of all others are 0."""

TAG_NAMES = ["O", "B-DISH", "I-DISH", "PLACE"]
TAGS = {
    "wonderful": (0, 3, 0, 0),
    "warm": (0, 3, 1, 0),
    "soup": (0, 1, 3, 0),
    "bread": (0, 3, 2, 0),
    "table": (0, 0, 0, 5),
}
"""Logits of words for each of TAG_NAMES."""

TEXTS = ["the soup was wonderful and warm", "awful and dull", "the bread on the table was cold"] * 20
HOSTILE_BYTES = 256 * 1024
HOSTILE = {
    "one letter": "a" * HOSTILE_BYTES,
    "combining marks": "e" + "\u0301" * 100_000,
    "marks of two classes": "e" + "\u0323\u0301" * 50_000,
    "NUL": "\0" * HOSTILE_BYTES,
    "emoji": "\U0001f600" * (HOSTILE_BYTES // 4),
    "joined emoji": "\U0001f468\u200d" * 30_000,
    "ideographs": "\u4e2d" * 80_000,
    "a byte order mark": "\ufeff" * 80_000,
    "no characters": "\ufffe\uffff" * 40_000,
    "words": "warm " * 50_000,
}
"""Texts as long as any that are tokenised."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def word_piece() -> Tokenizer:
    """A tokeniser like BERT's; [PAD] is 0."""
    return Tokenizer.from_str(trained_word_piece())


def byte_level() -> Tokenizer:
    """A tokeniser like RoBERTa's: BPE of bytes; <pad> is 1."""
    return Tokenizer.from_str(trained_byte_level())


@cache
def trained_word_piece() -> str:
    """Its JSON; every training would number the tokens in another way."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(special_tokens=SPECIAL, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return str(tokenizer.to_str())


@cache
def trained_byte_level() -> str:
    """The same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<s>", "<pad>", "</s>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return str(tokenizer.to_str())


def embeddings(tokenizer: Tokenizer, labels: int = len(LABELS)) -> NDArray[np.float32]:
    """What makes `graphs.text_classifier` answer the label of each of WORDS."""
    of_labels = 12 * np.eye(labels, dtype=np.float32)
    return logits(tokenizer, {word: of_labels[label % labels] for word, label in WORDS.items()}, labels)


def logits(tokenizer: Tokenizer, of_words: Mapping[str, Any], width: int) -> NDArray[np.float32]:
    """Numbers [vocabulary, width]: those of words, 0 of all other tokens."""
    made = np.zeros((tokenizer.get_vocab_size(), width), np.float32)
    for word, numbers in of_words.items():
        for name in (word, f"Ġ{word}"):
            if (number := tokenizer.token_to_id(name)) is not None:
                made[number] = numbers
    return made


def saved(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **graph: Any) -> Path:
    """The folder, then an export; `config` changes config.json, `graph` is of `text_classifier`."""
    names = {str(index): name for index, name in enumerate(LABELS)}
    content = {"architectures": ["BertForSequenceClassification"], "id2label": names, **config}
    files(folder, tokenizer, content)
    labels = len(content["id2label"] or LABELS[:2])
    return graphs.saved(graphs.text_classifier(embeddings(tokenizer, labels), **graph), folder)


def asked(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **graph: Any) -> Path:
    """The same for question answering; the answers are those of SPANS."""
    files(folder, tokenizer, {"architectures": ["BertForQuestionAnswering"], **config})
    return graphs.saved(graphs.question_answering(logits(tokenizer, SPANS, 2), **graph), folder)


def tagged(
    folder: Path,
    tokenizer: Tokenizer,
    config: dict[str, Any],
    tags: Mapping[str, Sequence[float]] = TAGS,
    **graph: Any,
) -> Path:
    """The same for token classification; tokens have the logits `tags`, all others those of `O`."""
    names = {str(index): name for index, name in enumerate(TAG_NAMES)}
    content = {"architectures": ["BertForTokenClassification"], "id2label": names, **config}
    files(folder, tokenizer, content)
    made = logits(tokenizer, tags, len(TAG_NAMES))
    made[~made.any(1), 0] = 4
    return graphs.saved(graphs.token_classifier(made, **graph), folder)


def compared(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **graph: Any) -> Path:
    """The same for pairs of texts: `warm` makes entailment likely, `awful` contradiction."""
    names = {"0": "contradiction", "1": "neutral", "2": "Entailment"}
    return saved(folder, tokenizer, {"id2label": names, **config}, **graph)


def encoded(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **graph: Any) -> Path:
    """The same for embeddings: the export of an encoder, whose states are those of `states`."""
    files(folder, tokenizer, {"architectures": ["BertModel"], **config})
    return graphs.saved(graphs.encoder(states(tokenizer), **graph), folder)


def states(tokenizer: Tokenizer) -> NDArray[np.float32]:
    """What `encoded` computes for each token of the vocabulary, [vocabulary, 4]; always the same."""
    random = np.random.default_rng(0)
    return random.normal(size=(tokenizer.get_vocab_size(), 4)).astype(np.float32)


def modules(folder: Path, *steps: tuple[str, dict[str, Any]]) -> Path:
    """The folder, then with modules.json: the network, and the steps with their config.json."""
    names = ["", *(f"{number}_{kind}" for number, (kind, _) in enumerate(steps, 1))]
    kinds = ["Transformer", *(kind for kind, _ in steps)]
    listed = [
        {"idx": idx, "name": str(idx), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for idx, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    for name, (_, content) in zip(names[1:], steps, strict=True):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(content))
    return folder


def ranked(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **graph: Any) -> Path:
    """The same for ranking: texts of awful words have a lower score, of wonderful ones a higher one."""
    content = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    files(folder, tokenizer, {**content, **config})
    scores = logits(tokenizer, {word: 12 * (label - 1) for word, label in WORDS.items()}, 1)
    return graphs.saved(graphs.text_classifier(scores, **graph), folder)


def each(folder: Path, *names: str, **graph: Any) -> None:
    """One export each for classes, questions, vectors, ranking, entities and labels of a request."""
    for make, name in zip((saved, asked, encoded, ranked, tagged, compared), names, strict=True):
        make(folder / name, word_piece(), {}, **graph)


def files(folder: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Writes config.json, tokenizer.json, and what the class would change of it otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    common = {"model_type": "bert", "pad_token_id": 0, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps({**common, **config}))
    tokenizer.enable_padding(length=5)  # as some files have it; the service pads itself
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_padding()

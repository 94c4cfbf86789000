"""Question answering: a question and a context in, the best answers from the context out.

Every step matches the defaults of the pipeline in transformers 4.57.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from smallplates.errors import ConfigurationError
from smallplates.models.huggingface import Config
from smallplates.models.tensors import Array
from smallplates.tasks.base import Candidate, Fields, Outputs, Prepared
from smallplates.tasks.text import MAX_WINDOWS, WINDOW, Span, TextTask
from smallplates.tasks.tokenizer import TOKENIZER_CONFIG, TokenizerConfig, read_config

USUAL_QUESTION = 32
"""Tokens of a question, assumed when `limits` states the longest context."""

MAX_ANSWER = 15
"""Maximum number of tokens in an answer."""

MAX_ANSWERS = 20
INLINE_CHARACTERS = 8192
"""Maximum characters of a context whose answers are found in a few ms, even if its words are long."""

MASKED = np.float32(-10000)


class QuestionRequest(BaseModel):
    """A question, and the text that answers it."""

    question: str = Field(min_length=1)
    context: str = Field(min_length=1)
    allow_no_answer: bool = Field(
        default=False, description="Whether the answer may be empty, if the context has none."
    )


class Answer(BaseModel):
    """A part of the context, or nothing."""

    answer: str
    score: float = Field(
        ge=0,
        description="The sum over all places and windows with this text, which may exceed 1.",
        json_schema_extra={"format": "float"},
    )
    start: int = Field(ge=0, description="In characters (code points) of the context.")
    end: int = Field(ge=0, description="Exclusive.")


class AnswerResponse(Answer):
    """The best answer; `top` only when `top_k` was asked for."""

    top: list[Answer] | None = Field(default=None, description="Best first.")


@dataclass(slots=True)
class Passage:
    """Data that `QuestionAnswering.postprocess` needs; places are indices of the context's tokens."""

    context: str
    allow_no_answer: bool
    windows: list[Span]

    unmasked: Array
    """Whether each token before the context counts; only the token that means no answer does."""

    words: Array
    """[places, 2]: first and last place of the word that each token belongs to."""

    characters: Array
    """[places, 2]: first character of each token, and the one after its last."""


class QuestionAnswering(TextTask, request=QuestionRequest, answer=AnswerResponse, candidate=Answer):
    """Tokenises question and context, splits the context into windows, and finds the best spans."""

    most_candidates = MAX_ANSWERS
    window = WINDOW
    reads_offsets = True
    prepares_together = False
    example = MappingProxyType(
        {"question": "What was wonderful?", "context": "The bread was dull, but the soup was wonderful."}
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        file = TokenizerConfig() if self._model.digest else read_config(self._model.folder)
        self._has_no_answer = bool(file.cls_token or not file.bos_token)
        """Whether a special token in front means no answer; one that only begins texts does not."""

        specials = self.tokenizer.num_special_tokens_to_add(is_pair=True)
        room = max(1, self.max_tokens - specials - USUAL_QUESTION)
        windows = MAX_WINDOWS if room > self._stride else 1
        self.limits = {
            **self.limits,
            "question_tokens": max(1, self.max_tokens - specials - self._stride - 1),
            "context_tokens": room + (windows - 1) * (room - self._stride),
        }

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `text`; see `Task.from_export`."""
        if read_config(folder).padding_side == "left":
            raise ConfigurationError(
                f"{folder / TOKENIZER_CONFIG} cannot be served: padding_side is left, which would put "
                "the context first"
            )
        return super().from_export(folder, config)

    def preprocess(self, fields: Fields) -> Prepared:
        """Tokenises to one item per window, with an array [tokens] per input of the graph.

        Raises InvalidTextError, TextTooLongError, or InternalError if the tokeniser fails.
        """
        texts = {name: fields[name] for name in ("question", "context")}
        (encoding,) = self.encode([self.to_reading(texts, None).texts])
        self.check_known(texts, encoding)
        part, windows = self.windows(encoding, [*texts], self._stride)
        ids = np.array(encoding.ids[: part.start])
        passage = Passage(
            texts["context"],
            fields.get("allow_no_answer", False),
            windows,
            (ids == ids[:1]) & (encoding.special_tokens_mask[0] == 1) & self._has_no_answer,
            word_places(np.array(encoding.word_ids[part], float)),
            np.array(encoding.offsets[part]),
        )
        runs_inline = len(passage.context) <= INLINE_CHARACTERS
        items = self.items(encoding, part, windows)
        tokens = sum(len(item[0]) for item in items)
        return Prepared(items, passage, runs_inline=runs_inline, tokens=tokens)

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the best answers; scores of texts that differ only in case are added up."""
        passage: Passage = prepared.context
        by_text: dict[str, dict[str, Any]] = {}
        by_place: dict[tuple[int, int], dict[str, Any]] = {}
        no_answer = 1.0
        for (first, behind), logits in zip(passage.windows, outputs, strict=True):
            before, count = len(passage.unmasked), behind - first
            counts = np.zeros(len(logits[0]), bool)
            counts[:before], counts[before : before + count] = passage.unmasked, True
            start, end = (softmax(numbers, counts) for numbers in logits)
            no_answer = min(no_answer, float(start[0] * end[0]))
            window = slice(before, before + count)
            # more than needed, since some spans become equal when they are extended to whole words
            starts, ends, scores = best_spans(start[window], end[window], 2 * top_k + 10)
            starts = np.maximum(passage.words[first + starts, 0], first)
            ends = np.minimum(passage.words[first + ends, 1], behind - 1)
            places = zip(
                passage.characters[starts, 0].tolist(), passage.characters[ends, 1].tolist(), strict=True
            )
            for place, score in zip(places, scores.tolist(), strict=True):
                if place not in by_place:
                    answer = passage.context[slice(*place)]
                    new = {"answer": answer, "score": 0.0, "start": place[0], "end": place[1]}
                    by_place[place] = by_text.setdefault(answer.lower(), new)
                by_place[place]["score"] += score
        answers: list[Candidate] = [*by_text.values()]
        if passage.allow_no_answer:
            answers.append({"answer": "", "score": no_answer, "start": 0, "end": 0})
        return sorted(answers, key=lambda answer: -answer["score"])[:top_k]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the best answer; `with_top` adds all candidates."""
        return {**candidates[0], "top": candidates} if with_top else {**candidates[0]}


def word_places(numbers: Array) -> Array:
    """Returns for each token the first and the last token of its word, [tokens, 2].

    `numbers` [tokens] are word numbers; a token without one, NaN, is a word by itself.
    """
    edges = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1], True])
    return np.repeat(np.c_[edges[:-1], edges[1:] - 1], np.diff(edges), axis=0)


def softmax(logits: Array, counts: Array) -> Array:
    """Returns probabilities [tokens]; tokens that do not count get 0."""
    numbers = np.where(counts, logits.astype(np.float32), MASKED)
    exponentials = np.exp(numbers - numbers.max())
    return np.asarray(exponentials / exponentials.sum())


def best_spans(start: Array, end: Array, count: int) -> tuple[Array, Array, Array]:
    """Returns first tokens, last tokens and scores of the best spans of up to MAX_ANSWER tokens.

    `start` and `end` are probabilities [tokens]. The result has at least one and at most `count` spans.
    """
    lasts = np.add.outer(np.arange(start.size), np.arange(MAX_ANSWER))  # [tokens, MAX_ANSWER]
    scores = np.where(lasts < end.size, start[:, None] * end.take(lasts, mode="clip"), -1).ravel()
    best = np.argpartition(-scores, count)[:count] if count < scores.size else np.arange(scores.size)
    best.sort()  # so that among equal scores the first span in the text comes first
    best = best[np.argsort(-scores[best], kind="stable")]
    best = best[scores[best] >= 0]
    return best // MAX_ANSWER, lasts.ravel()[best], scores[best]

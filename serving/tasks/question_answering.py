"""Question answering: a question and a context in; out the parts of the context that answer best.

As the pipeline of transformers 4.57 does by default, in every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from serving.errors import ConfigurationError, InvalidTextError, TextTooLongError
from serving.model import Model
from serving.settings import Settings
from serving.tasks import text
from serving.tasks.base import Candidate, Fields, Prepared, fields_of
from serving.tensors import Array, Signature

WINDOW, STRIDE = 384, 128
"""Tokens of a window, and those that two windows share; less where the model takes less."""

MAX_WINDOWS = 64
"""Of a request: about 15,000 tokens."""

USUAL_QUESTION = 32
"""Tokens of the question for which `limits` tells the longest context."""

MAX_ANSWER = 15
"""Tokens of an answer."""

MOST_ANSWERS = 20
CHEAP_CHARACTERS = 8192
"""Of a context: making its answers takes a few milliseconds, even if its words are long."""

MASKED = np.float32(-10000)
LOGITS = ("start_logits", "end_logits")


class QuestionRequest(BaseModel):
    """A question, and the text that answers it."""

    question: str = Field(min_length=1)
    context: str = Field(min_length=1)
    allow_no_answer: bool = Field(
        default=False, description="Whether the answer may be empty: that the context has none."
    )


class Answer(BaseModel):
    """A part of the context, or nothing."""

    answer: str
    score: float = Field(
        ge=0,
        description="The sum over all places and windows with this text; it may exceed 1.",
        json_schema_extra={"format": "float"},
    )
    start: int = Field(ge=0, description="In characters (code points) of the context.")
    end: int = Field(ge=0, description="Exclusive.")


class AnswerResponse(Answer):
    """The best answer; `top` only when `top_k` was asked for."""

    top: list[Answer] | None = Field(default=None, description="Best first.")


@dataclass(slots=True)
class Passage:
    """What `QuestionAnswering.postprocess` needs of a request; places are tokens of the context."""

    context: str
    allow_no_answer: bool
    windows: list[tuple[int, int]]
    """First place of each window, and the one behind its last."""

    unmasked: Array
    """Whether each token in front of the context counts: that for no answer does."""

    words: Array
    """[places, 2]: first place of the word of each, and its last."""

    characters: Array
    """[places, 2]: first character of each, and the one behind its last."""


class QuestionAnswering(text.TextTask):
    """Tokenises question and context, the context in windows; the best spans over all windows."""

    request_schema = QuestionRequest.model_json_schema()
    request = fields_of(request_schema)
    answer_schema = AnswerResponse.model_json_schema()
    answer = fields_of(Answer.model_json_schema())
    most_candidates = MOST_ANSWERS
    example = MappingProxyType(
        {"question": "What was wonderful?", "context": "The bread was dull, but the soup was wonderful."}
    )

    def __init__(self, model: Model, settings: Settings, signature: Signature) -> None:
        """`signature` is the one that requests become. Raises ConfigurationError."""
        super().__init__(model, signature)
        self._from_left = model.description.text_pipeline.truncation_side == "right"
        self._window = signature.limits[text.LENGTH]
        self._stride = min(self._window // 2, STRIDE)
        self._most_windows = max(1, min(MAX_WINDOWS, settings.queue_size // 2))
        specials = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        room = max(1, self._window - specials - USUAL_QUESTION)
        windows = self._most_windows if room > self._stride else 1
        self.limits = {
            **self.limits,
            "question_tokens": max(1, self._window - specials - self._stride - 1),
            "context_tokens": room + (windows - 1) * (room - self._stride),
        }

    def preprocess(self, fields: Fields, hint: object | None = None) -> Prepared:  # noqa: ARG002
        """Tokenises to an item for each window, with an array [tokens] per input.

        Raises InvalidTextError, TextTooLongError, or InternalError where the tokeniser fails.
        """
        context = fields["context"]
        encoding = self.encode({"question": fields["question"], "context": context})
        sequences = np.array(encoding.sequence_ids, float)  # NaN: special tokens
        places = np.flatnonzero(sequences == 1)
        if not places.size:
            raise InvalidTextError("the context has no characters that the model knows")
        first, behind = int(places[0]), int(places[-1]) + 1
        windows = self._windows(behind - first, len(sequences), int((sequences == 0).sum()))
        arrays, ids = self.arrays(encoding), np.array(encoding.ids[:first])
        passage = Passage(
            context,
            fields.get("allow_no_answer", False),
            windows,
            (ids == ids[:1]) & (encoding.special_tokens_mask[0] == 1),
            word_places(np.array(encoding.word_ids[first:behind], float)),
            np.array(encoding.offsets[first:behind]),
        )
        items = [
            [
                np.concatenate((each[:first], each[first + start : first + end], each[behind:]))
                for each in arrays
            ]
            for start, end in windows
        ]
        return Prepared(items, passage, is_cheap=len(context) <= CHEAP_CHARACTERS)

    def _windows(self, places: int, tokens: int, of_question: int) -> list[tuple[int, int]]:
        """Returns the windows of a context of so many places, beside which other tokens stand in each.

        Raises TextTooLongError.
        """
        room = self._window - (tokens - places)
        if places <= room:
            return [(0, places)]
        if room <= self._stride:
            most = room + of_question - self._stride - 1
            raise TextTooLongError(
                f"the question has {of_question} tokens; at most {most} are accepted for a context "
                f"that does not fit into one window of {self._window}"
            )
        step = room - self._stride
        starts = range(0, places - room + step, step)
        if len(starts) > self._most_windows:
            raise TextTooLongError(
                f"the context makes {len(starts)} windows of {self._window} tokens; "
                f"at most {self._most_windows} are accepted"
            )
        found = [(start, min(start + room, places)) for start in starts]
        return found if self._from_left else [(places - end, places - start) for start, end in found]

    def postprocess(
        self, prepared: Prepared, outputs: Sequence[Sequence[Array]], top_k: int
    ) -> list[Candidate]:
        """Returns the best answers; the scores of equal texts, but for their case, are added up."""
        passage: Passage = prepared.context
        by_text: dict[str, dict[str, Any]] = {}
        by_place: dict[tuple[int, int], dict[str, Any]] = {}
        no_answer = 1.0
        for (first, behind), logits in zip(passage.windows, outputs, strict=True):
            before, count = len(passage.unmasked), behind - first
            counts = np.zeros(len(logits[0]), bool)
            counts[:before], counts[before : before + count] = passage.unmasked, True
            start, end = (softmax(each, counts) for each in logits)
            no_answer = min(no_answer, float(start[0] * end[0]))
            own = slice(before, before + count)
            # some spans become equal when they are extended to words
            starts, ends, scores = best_spans(start[own], end[own], 2 * top_k + 10)
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
        found: list[Candidate] = [*by_text.values()]
        if passage.allow_no_answer:
            found.append({"answer": "", "score": no_answer, "start": 0, "end": 0})
        return sorted(found, key=lambda each: -each["score"])[:top_k]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the best answer, and with `with_top` all candidates."""
        return {**candidates[0], "top": candidates} if with_top else {**candidates[0]}


def word_places(numbers: Array) -> Array:
    """Returns for each token the first and the last one of its word, [tokens, 2].

    `numbers` [tokens] are those of the words; a token without one, NaN, is a word.
    """
    edges = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1], True])
    return np.repeat(np.c_[edges[:-1], edges[1:] - 1], np.diff(edges), axis=0)


def softmax(logits: Array, counts: Array) -> Array:
    """Returns probabilities [tokens]; those of tokens that do not count are 0."""
    kept = np.where(counts, logits.astype(np.float32), MASKED)
    numbers = np.exp(kept - kept.max())
    return np.asarray(numbers / numbers.sum())


def best_spans(start: Array, end: Array, count: int) -> tuple[Array, Array, Array]:
    """Returns first tokens, last tokens and scores of the best spans of up to MAX_ANSWER tokens.

    `start` and `end` are probabilities [tokens]; there are at least one and at most `count` spans.
    """
    lasts = np.add.outer(np.arange(start.size), np.arange(MAX_ANSWER))  # [tokens, MAX_ANSWER]
    scores = np.where(lasts < end.size, start[:, None] * end.take(lasts, mode="clip"), -1).ravel()
    best = np.argpartition(-scores, count)[:count] if count < scores.size else np.arange(scores.size)
    best.sort()  # of equal spans, the first in the text is the first here
    best = best[np.argsort(-scores[best], kind="stable")]
    best = best[scores[best] >= 0]
    return best // MAX_ANSWER, lasts.ravel()[best], scores[best]


def signatures(model: Model, graph: Signature) -> tuple[Signature, ...]:
    """Returns how the graph is called, see `text.signatures`. Raises ConfigurationError."""
    by_name = {spec.name: spec for spec in graph.outputs}
    for name in LOGITS:
        shape = by_name[name].shape if name in by_name else ()
        if len(shape) != 1 or not isinstance(shape[0], str):
            raise ConfigurationError(
                f"{model.description.name} cannot be served: the graph needs an output {name} "
                f"with a number for each token; it has {', '.join(by_name)}"
            )
    outputs = [replace(by_name[name], shape=(text.LENGTH,)) for name in LOGITS]
    most = min(model.description.text_pipeline.max_tokens, WINDOW)
    return text.signatures(model, graph, outputs, most)

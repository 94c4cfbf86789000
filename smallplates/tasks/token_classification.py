"""Token classification: a text in, its entities out, such as names of people and places.

Every step matches the pipeline in transformers 4.57 and 5.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, Field
from tokenizers import Encoding

from smallplates.errors import InvalidRequestError
from smallplates.models.huggingface import Config
from smallplates.models.scores import ACTIVATIONS
from smallplates.models.tensors import Array
from smallplates.models.vocabulary import tokenizer_json
from smallplates.tasks.base import Candidate, Fields, Outputs, Prepared
from smallplates.tasks.text import Reading, Span, TextTask, names_of
from smallplates.tasks.tokenizer import text_pipeline

Strategy = Literal["none", "simple", "first", "average", "max"]
NONE, SIMPLE, _, AVERAGE, MAX = STRATEGIES = get_args(Strategy)
OUTSIDE = "O"
"""Label of tokens that belong to no entity, in the usual naming."""

MAX_IGNORED = 1024
INLINE_TOKENS = 1024
"""Maximum number of tokens whose entities are found in a few ms."""


class EntitiesRequest(BaseModel):
    """A text, and how its tokens become entities."""

    text: str = Field(min_length=1)
    aggregation_strategy: Strategy = Field(
        default="none",
        description="none: each token is an entity. simple: neighbours of the same label are one. "
        "first, average, max: words get one label first, from these of their tokens.",
    )
    ignore_labels: list[str] | str | None = Field(
        default=None,
        description=f"Labels to leave out, a list or separated by commas; {OUTSIDE} if unset.",
    )
    stride: int | None = Field(
        default=None,
        ge=0,
        description="Tokens that two windows share if a long text is split into windows. "
        "If unset, long texts are cut or refused, as SERVING_LONG_TEXT says.",
    )


class EntityResponse(BaseModel):
    """A part of the text, with `entity_group` in place of `entity` and `index` if tokens are joined."""

    entity: str | None = None
    entity_group: str | None = None
    score: float = Field(ge=0, le=1, json_schema_extra={"format": "float"})
    index: int | None = Field(default=None, description="Place among the text's tokens.")
    word: str = Field(description="The tokens as text, in which case and accents may be lost.")
    start: int = Field(ge=0, description="In characters (code points) of the text.")
    end: int = Field(ge=0, description="Exclusive.")


class EntitiesResponse(BaseModel):
    """The entities, in the order of the text."""

    entities: list[EntityResponse]


@dataclass(frozen=True, slots=True)
class Passage:
    """Data that `TokenClassification.postprocess` needs."""

    text: str
    strategy: str
    ignored: frozenset[str]
    stride: int | None
    tokens: Sequence[tuple[int, Span, int]] = ()  # id, characters, and whether it is a special token
    windows: Sequence[Array] = ()  # places of each window's tokens


Entity = dict[str, Any]
"""A token, a word or several words, by the names of `EntityResponse`."""


class TokenClassification(TextTask, request=EntitiesRequest, answer=EntitiesResponse):
    """Tokenises texts, and joins the tokens of an entity."""

    list_fields = ("text",)
    reads_offsets = True
    example = MappingProxyType({"text": "Ada Lovelace lived in London.", "aggregation_strategy": SIMPLE})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._activation = ACTIVATIONS[self._model.description.activation]
        model = json.loads(tokenizer_json(self._model.tokenizer()))["model"]
        self._marks_subwords = bool(model.get("continuing_subword_prefix"))
        self._unknown = model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any]:
        """Returns `labels` and `text`; see `Task.from_export`."""
        return {"labels": config.labels, "text": text_pipeline(folder, config)}

    def read(self, fields: Fields) -> Reading:
        """Returns the text and the request's options. Raises RequestError."""
        strategy, stride = fields.get("aggregation_strategy", NONE), fields.get("stride")
        if strategy not in STRATEGIES:
            raise InvalidRequestError(f"aggregation_strategy must be one of {', '.join(STRATEGIES)}")
        room = self.max_tokens - self.tokenizer.num_special_tokens_to_add(is_pair=False)
        if stride is not None and strategy == NONE:
            raise InvalidRequestError("stride needs an aggregation_strategy other than none")
        if stride is not None and not 0 <= stride < room:
            raise InvalidRequestError(f"stride must be from 0 to {room - 1}, not {stride}")
        ignored = names_of("ignore_labels", fields.get("ignore_labels", OUTSIDE), MAX_IGNORED)
        side = self.side_of({}) if stride is None else None
        passage = Passage(fields["text"], strategy, frozenset(ignored), stride)
        return self.to_reading({"text": passage.text}, side, passage)

    def prepare_item(self, reading: Reading, encoding: Encoding) -> Prepared:
        """Returns an item per window, or one that is cut; see `TextTask.prepare_item`."""
        self.check_known(reading.texts, encoding)
        passage: Passage = reading.context
        places = np.arange(len(encoding))
        if passage.stride is None:
            windows = [places[self.kept(reading, encoding)]]
        else:
            part, spans = self.windows(encoding, [*reading.texts], passage.stride)
            before, inner, behind = np.split(places, [part.start, part.stop])
            windows = [np.concatenate((before, inner[slice(*span)], behind)) for span in spans]
        arrays, count = self.arrays(encoding), sum(map(len, windows))
        ahead = len(passage.text) - len(reading.texts["text"]) if reading.side == "left" else 0
        offsets = [(start + ahead, end + ahead) for start, end in encoding.offsets]
        tokens = [*zip(encoding.ids, offsets, encoding.special_tokens_mask, strict=True)]
        return Prepared(
            [[array[window] for array in arrays] for window in windows],
            replace(passage, tokens=tokens, windows=windows),
            truncated=reading.is_cut or count < len(encoding),
            tokens=count,
            runs_inline=count <= INLINE_TOKENS,
        )

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns all entities as one candidate."""
        passage: Passage = prepared.context
        entities: list[Entity] = []
        for window, (logits,) in zip(passage.windows, outputs, strict=True):
            parts = self._parts(passage, window, self._activation(logits))
            if passage.strategy == NONE:
                entities += parts
            else:
                entities += map(self._together, neighbours(parts))
        ignored = passage.ignored
        kept = [each for each in entities if each.get("entity_group", each.get("entity")) not in ignored]
        return [{"entities": kept if len(outputs) == 1 else without_overlaps(kept)}]

    def _parts(self, passage: Passage, window: Array, scores: Array) -> Iterator[Entity]:
        """Generates a window's tokens, or its words; `scores` are probabilities [tokens, labels]."""
        by_word = passage.strategy not in (NONE, SIMPLE)
        words: list[list[tuple[int, str, Span]]] = []  # row of `scores`, token, characters
        for row, place in enumerate(window.tolist()):
            number, (start, end), is_special = passage.tokens[place]
            if is_special:
                continue
            token = self.tokenizer.id_to_token(number) or ""
            if self._marks_subwords:
                continues = len(token) != end - start
            else:
                continues = start > 0 and " " not in passage.text[start - 1 : start + 1]
            if number == self._unknown:
                token, continues = passage.text[start:end], False
            if not (by_word and continues and words):
                words.append([])
            words[-1].append((row, token, (start, end)))
        for word in words:
            rows, tokens, spans = zip(*word, strict=True)
            numbers = scores[[*rows]]
            if passage.strategy == AVERAGE:
                numbers = numbers.mean(axis=0, keepdims=True)
            elif passage.strategy == MAX:
                numbers = numbers[numbers.max(axis=1).argmax() :]
            best = int(numbers[0].argmax())
            yield {
                "entity": self._model.labels[best],
                "score": float(numbers[0, best]),
                "index": rows[0],
                "word": self._text_of(tokens) if by_word else tokens[0],
                "start": spans[0][0],
                "end": spans[-1][1],
            }

    def _together(self, parts: Sequence[Entity]) -> Entity:
        """Returns the entity of successive parts."""
        return {
            "entity_group": parts[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([part["score"] for part in parts])),
            "word": self._text_of([part["word"] for part in parts]),
            "start": parts[0]["start"],
            "end": parts[-1]["end"],
        }

    def _text_of(self, tokens: Sequence[str]) -> str:
        """Returns tokens as text."""
        decoder = self.tokenizer.decoder
        return decoder.decode([*tokens]) if decoder else " ".join(tokens)


def neighbours(parts: Iterable[Entity]) -> list[list[Entity]]:
    """Groups successive parts of the same label without B- or I-; one with B- begins a group."""
    groups: list[list[Entity]] = []
    latest = None
    for part in parts:
        label = part["entity"]
        tag = label[2:] if label.startswith(("B-", "I-")) else label
        if tag != latest or label.startswith("B-"):
            groups.append([])
        groups[-1].append(part)
        latest = tag
    return groups


def rank(entity: Entity) -> tuple[int, float]:
    """Returns an entity's length and score, by which entities that overlap are compared."""
    return entity["end"] - entity["start"], entity["score"]


def without_overlaps(entities: Iterable[Entity]) -> list[Entity]:
    """Returns windows' entities by their start; of those that overlap, the longest or most probable."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=itemgetter("start")):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        else:
            kept[-1] = max(kept[-1], entity, key=rank)
    return kept

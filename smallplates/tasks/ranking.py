"""Ranking: a query and texts in, a score for each text out, by a classifier of pairs with one label."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from smallplates.errors import ConfigurationError, InvalidRequestError
from smallplates.models.description import TextPipeline
from smallplates.models.huggingface import REGRESSION, Config
from smallplates.models.scores import sigmoid
from smallplates.models.sentence_transformers import CROSS_ENCODER, read_options
from smallplates.tasks.base import Candidate, Fields, Outputs, Prepared
from smallplates.tasks.text import Direction, TextTask, Truncate, check_bytes, size_of
from smallplates.tasks.tokenizer import TOKENIZER_CONFIG, has_chat_template

MAX_TEXTS_BYTES = 2 * 1024 * 1024
"""Maximum UTF-8 bytes of the texts of one request, which take up to two seconds to tokenise."""

ACTIVATIONS = {"Identity": True, "Sigmoid": False}
"""Functions of torch for scores, and whether they leave the network's own numbers."""

UNNAMED = "LABEL_0"
"""Name of a label that nobody has named."""


class RankingRequest(BaseModel):
    """A query, and texts that may answer it."""

    query: str = Field(min_length=1)
    texts: list[str] = Field(min_length=1)
    raw_scores: bool | None = Field(
        None,
        description="Whether scores are of any size, or from 0 to 1. By default, the model decides.",
    )
    truncate: Truncate = None
    truncation_direction: Direction = None


class Rank(BaseModel):
    """One of the texts."""

    index: int = Field(ge=0, description="Place in `texts`, from 0.")
    score: float = Field(json_schema_extra={"format": "float"})


class RankingResponse(BaseModel):
    """The texts, best first; of equal ones the first in the request comes first."""

    ranking: list[Rank]


class Ranking(TextTask, request=RankingRequest, answer=RankingResponse, candidate=Rank):
    """Tokenises the query with each text, and sorts the texts by their scores."""

    prepares_together = False
    needed_texts = 1  # an empty document among others gets a score
    example = MappingProxyType(
        {"query": "Is the soup good?", "texts": ["The soup was wonderful.", "The table was cold."]}
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.most_candidates = self.usual_candidates = self._settings.max_request_items
        self.limits = {**self.limits, "texts": self.most_candidates, "texts_bytes": MAX_TEXTS_BYTES}

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `text` for a network with one label that is no class; see `Task.from_export`.

        It is none if the label has no name, if problem_type is regression, or if the export is of
        sentence-transformers' CrossEncoder.
        """
        options = read_options(folder)
        is_cross_encoder = (
            options.model_type == CROSS_ENCODER
            or config.sentence_transformers
            or config.sbert_ce_default_activation_function
        )
        has_score = len(config.labels) == 1 and config.problem_type in (None, REGRESSION)
        is_reranker = has_score and (config.problem_type or config.labels == [UNNAMED])
        if (is_cross_encoder or is_reranker) and has_chat_template(folder):
            raise ConfigurationError(
                f"{folder} cannot be served: it has a chat template, in a file or in "
                f"{TOKENIZER_CONFIG}, and rerankers are supported without one only; remove the template "
                "if the network was trained on plain pairs of texts"
            )
        if not has_score:
            return None
        if options.prompts.get(options.default_prompt_name or ""):
            raise ConfigurationError(
                f"{folder} cannot be served: its default_prompt_name puts a prompt before queries; "
                "rerankers are supported without prompts only"
            )
        if not (is_cross_encoder or is_reranker):
            return None
        fields = super().from_export(folder, config) or {}
        text: TextPipeline = fields["text"]
        raw = has_raw_scores(options.activation_fn, config)
        return {**fields, "text": text.model_copy(update={"raw_scores": raw})}

    def parts_of(self, fields: Fields) -> list[tuple[str, int]]:
        """Returns the query, which counts with each text, and the texts."""
        return [(fields["query"], len(fields["texts"])), *((text, 1) for text in fields["texts"])]

    def preprocess(self, fields: Fields) -> Prepared:
        """Tokenises the query with each different text to an item.

        Raises InvalidRequestError, InvalidTextError, TextTooLongError, or InternalError if the tokeniser
        fails.
        """
        query, texts, side = fields["query"], fields["texts"], self.side_of(fields)
        if not 1 <= len(texts) <= self.most_candidates:
            raise InvalidRequestError(
                f"send 1 to {self.most_candidates} texts or documents, not {len(texts)}"
            )
        check_bytes("the texts have", sum(map(size_of, texts)), MAX_TEXTS_BYTES)
        names: dict[str, str] = {}
        for index, text in enumerate(texts):
            names.setdefault(text, f"text {index}")
        readings = [self.to_reading({"query": query, name: text}, side) for text, name in names.items()]
        order = {text: place for place, text in enumerate(names)}
        places = [order[text] for text in texts]
        return self.prepare_pairs(readings, (places, fields.get("raw_scores")), places)

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the index and the score of each text, best first."""
        places, is_raw = prepared.context  # the item of each text
        if is_raw is None:
            is_raw = self._model.description.text_pipeline.raw_scores
        logits = np.array([numbers[0] for (numbers,) in outputs], np.float32)[places]
        scores = logits if is_raw else sigmoid(logits)
        order = np.argsort(-logits, kind="stable")[:top_k]
        return [{"index": int(place), "score": float(scores[place])} for place in order]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns all candidates."""
        return {"ranking": candidates}


def has_raw_scores(stated: str | None, config: Config) -> bool:
    """Returns whether CrossEncoder returns the network's own numbers; `stated` precedes config.json.

    Raises ValueError for other functions than those of ACTIVATIONS.
    """
    path = stated or (config.sentence_transformers or {}).get("activation_fn")
    path = path or config.sbert_ce_default_activation_function or "torch.nn.Sigmoid"
    package, _, name = str(path).rpartition(".")
    if not package.startswith("torch.nn") or name not in ACTIVATIONS:
        raise ValueError(
            f"its activation_fn is {path}; supported are {' and '.join(ACTIVATIONS)} of torch"
        )
    return ACTIVATIONS[name]

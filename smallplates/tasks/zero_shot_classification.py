"""Zero-shot classification: a text and the names of classes in, the classes by their probability out.

The network compares two texts (natural language inference): does `This example is NAME.` follow from the
text? Every step matches the pipeline in transformers 4.57 and 5. A request without `candidate_labels` is
one of text classification.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter

from smallplates.errors import ConfigurationError, InvalidRequestError, RequestError
from smallplates.models.huggingface import Config
from smallplates.models.scores import softmax
from smallplates.tasks.base import Candidate, Fields, Outputs, PredictResponse, Prepared, Task
from smallplates.tasks.text import check, names_of
from smallplates.tasks.text_classification import TextClassification, TextRequest

TEMPLATE = "This example is {}."
PLAIN = re.compile(r"(?=.{,1024}\Z)(?:[^{}]|\{\{|\}\}|\{0?\})*+", re.DOTALL)
"""What a template may be; other things that `str.format` knows could read attributes of objects."""

ENTAILMENT = "entail"
"""Beginning of the label's name, in any case, that means that the second text follows from the first."""


class ZeroShotRequest(TextRequest):
    """A text, and the names of the classes that it may belong to."""

    candidate_labels: list[str] | str | None = Field(
        default=None, description="Names of classes, a list or separated by commas."
    )
    hypothesis_template: str | None = Field(
        default=None, description=f"Sentence with {{}} in place of the name. By default: {TEMPLATE}"
    )
    multi_label: bool | None = Field(
        default=None, description="Whether several classes may apply, so that scores do not add up to 1."
    )


class ZeroShotResponse(BaseModel):
    """The classes, the most probable first."""

    sequence: str = Field(description="The text.")
    labels: list[str]
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Classes:
    """Data that `ZeroShotClassification.postprocess` needs."""

    text: str
    labels: Sequence[str]
    independent: bool


class ZeroShotClassification(TextClassification, request=ZeroShotRequest):
    """Tokenises a text with a hypothesis for each class, and compares how well the hypotheses follow."""

    answer_schema = TypeAdapter(ZeroShotResponse | PredictResponse).json_schema()
    most_bytes = 2 * 1024 * 1024
    example = MappingProxyType(
        {"text": "The soup was cold.", "candidate_labels": "complaint, praise, question"}
    )

    def __init__(self, *arguments: Any) -> None:
        """Raises ConfigurationError for labels of which none means entailment."""
        super().__init__(*arguments)
        self.most_candidates = self.usual_candidates = self._settings.max_request_items
        self.limits = {**self.limits, "texts_bytes": self.most_bytes}
        entailment = entailment_of(self.labels)
        if entailment is None:
            raise ConfigurationError(
                f"{self._model.description.name} has no label whose name begins with {ENTAILMENT}"
            )
        self._entailment = entailment

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `labels` and `text` if a label means entailment; see `Task.from_export`."""
        is_known = entailment_of(config.labels) is not None
        return super().from_export(folder, config) if is_known else None

    def check_all(self, requests: Sequence[Fields]) -> None:
        """Limits the number and the size of all pairs of a text and a label. Raises RequestError."""
        pairs = 0
        for fields in requests:
            pairs += len(hypotheses_of(fields, self.most_candidates)[1])
            if pairs > self.most_candidates:
                raise InvalidRequestError(
                    f"a request may have up to {self.most_candidates} pairs of a text and a label "
                    "(SERVING_MAX_REQUEST_ITEMS)"
                )
        super().check_all(requests)

    def parts_of(self, fields: Fields) -> list[tuple[str, int]]:
        """Returns what all pairs of the text and a label consist of."""
        template, labels = hypotheses_of(fields, self.most_candidates)
        times = template.count("{")
        return [(fields["text"] + template, len(labels)), *((label, times) for label in labels)]

    def preprocess(self, fields: Fields) -> Prepared:
        """Tokenises the text with each label's hypothesis to an item; if too long, the text is cut.

        Raises InvalidRequestError, InvalidTextError, TextTooLongError, or InternalError if the tokeniser
        fails.
        """
        template, labels = hypotheses_of(fields, self.most_candidates)
        if not labels:
            return super().preprocess(fields)
        readings = []
        for index, label in enumerate(labels):
            name = f"element {index} of candidate_labels"
            check({name: label})
            texts = {"text": fields["text"], name: template.format(label)}
            readings.append(replace(self.to_reading(texts, self.side_of({})), cuts_first=True))
        is_independent = fields.get("multi_label", False) or len(labels) == 1
        classes = Classes(fields["text"], labels, is_independent)
        return self.prepare_pairs(readings, classes, range(len(labels)))

    def preprocess_all(self, requests: Sequence[Fields]) -> list[Prepared | RequestError]:
        """Turns the fields of many inputs into items; see `Task.preprocess_all`."""
        return Task.preprocess_all(self, requests)

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the classes of the request by their probability; without any, those of the model."""
        classes: Classes | None = prepared.context
        if classes is None:
            return super().postprocess(prepared, outputs, top_k)
        logits = np.array([numbers for (numbers,) in outputs])
        if classes.independent:
            contradiction = -1 if self._entailment == 0 else 0
            scores = softmax(logits[:, [contradiction, self._entailment]])[:, 1]
        else:
            scores = softmax(logits[:, self._entailment])
        order = np.argsort(scores, kind="stable")[::-1][:top_k].tolist()
        return [
            {
                "label": classes.labels[place],
                "probability": float(scores[place]),
                "index": place,
                "text": classes.text,
            }
            for place in order
        ]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the text, and all candidates; without `candidate_labels` the best class."""
        if "text" not in candidates[0]:
            return super().to_json(candidates, with_top)
        return {
            "sequence": candidates[0]["text"],
            "labels": [candidate["label"] for candidate in candidates],
            "scores": [candidate["probability"] for candidate in candidates],
        }


def entailment_of(labels: Sequence[str]) -> int | None:
    """Returns the index of the label that means entailment; None if there is none."""
    places = (index for index, name in enumerate(labels) if name.lower().startswith(ENTAILMENT))
    return next(places, None)


def hypotheses_of(fields: Fields, most: int) -> tuple[str, Sequence[str]]:
    """Returns a request's template and labels; none for text classification.

    Raises InvalidRequestError.
    """
    if "candidate_labels" not in fields:
        if unused := [name for name in ("hypothesis_template", "multi_label") if name in fields]:
            raise InvalidRequestError(f"{unused[0]} needs candidate_labels")
        return "", ()
    if "text_pair" in fields:
        raise InvalidRequestError("send text_pair or candidate_labels, not both")
    labels = names_of("candidate_labels", fields["candidate_labels"], most)
    if not labels:
        raise InvalidRequestError("candidate_labels is empty")
    template = fields.get("hypothesis_template", TEMPLATE)
    try:
        has_place = PLAIN.fullmatch(template) and template.format("") != template.format("_")
    except (IndexError, ValueError):  # several {}, or {} and {0}
        has_place = False
    if not has_place:
        raise InvalidRequestError(
            "hypothesis_template must have {} once, in place of the label, no other braces, and at most "
            "1024 characters"
        )
    return template, labels

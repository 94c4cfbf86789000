"""Classification: what tasks with classes share, from logits to the best labels."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from serving.scores import ACTIVATIONS, best
from serving.tasks.base import Candidate, Prepared, Task, TaskParts, fields_of
from serving.tensors import Array


class LabelProbability(BaseModel):
    """One class."""

    label: str
    probability: float = Field(ge=0, le=1, json_schema_extra={"format": "float"})


class PredictResponse(BaseModel):
    """The most probable class; `top` only when `top_k` was asked for."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"prediction": "Bread", "probability": 0.97}}
    )

    prediction: str
    probability: float = Field(ge=0, le=1)
    top: list[LabelProbability] | None = Field(default=None, description="Most probable first.")


class Classification(Task):
    """Softmax or sigmoid, and the best classes of the only item's logits."""

    answer_schema = PredictResponse.model_json_schema()
    answer = fields_of(LabelProbability.model_json_schema())

    def __init__(self, parts: TaskParts) -> None:
        super().__init__(parts)
        text = parts.model.description.text
        self.labels = parts.model.labels
        self.most_candidates = len(self.labels)
        self._activation = ACTIVATIONS[text.activation if text else "softmax"]

    def postprocess(
        self, prepared: Prepared, outputs: Sequence[Sequence[Array]], top_k: int
    ) -> list[Candidate]:
        """Returns the most probable classes."""
        ((logits,),) = outputs
        return [vars(score) for score in best(self.labels, logits, top_k, self._activation)]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the best class, and with `with_top` all candidates."""
        first = candidates[0]
        content = {"prediction": first["label"], "probability": first["probability"]}
        if with_top:
            content["top"] = [
                {"label": candidate["label"], "probability": candidate["probability"]}
                for candidate in candidates
            ]
        return content

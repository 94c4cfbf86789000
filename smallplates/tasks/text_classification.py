"""Text classification: a text or a pair of texts in, the most probable classes out."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, Field

from smallplates.models.huggingface import REGRESSION, Config
from smallplates.tasks.base import Classification
from smallplates.tasks.text import TextTask
from smallplates.tasks.tokenizer import text_pipeline


class TextRequest(BaseModel):
    """A text, or a pair of texts, such as a premise and a hypothesis."""

    text: str = Field(min_length=1)
    text_pair: str | None = Field(
        default=None, min_length=1, description="The second text, if the model compares two."
    )


class TextClassification(TextTask, Classification, request=TextRequest):
    """Tokenises texts; returns the most probable classes by softmax or sigmoid."""

    list_fields = ("text", "text_pair")
    example = MappingProxyType({"text": "The film was wonderful."})

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `labels` and `text`; see `Task.from_export`."""
        if config.problem_type == REGRESSION:
            raise ValueError(
                f"problem_type is regression, with {len(config.labels)} labels instead of one; to call "
                'the graph with token ids, write a model.json with "task": "tensor"'
            )
        activation = "sigmoid" if config.independent else "softmax"
        text = text_pipeline(folder, config).model_copy(update={"activation": activation})
        return {"labels": config.labels, "text": text}

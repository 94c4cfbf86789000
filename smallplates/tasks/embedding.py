"""Embedding: a text in, a vector out, with the pooling and the prompts of sentence-transformers."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from smallplates.errors import ConfigurationError, InvalidRequestError
from smallplates.logging import logger
from smallplates.models.description import EmbeddingPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import Config
from smallplates.models.sentence_transformers import embedding_pipeline, read_length
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.tasks.base import Candidate, Fields, Outputs, Prepared
from smallplates.tasks.text import TOKENS, Direction, Reading, TextTask, Truncate
from smallplates.tasks.tokenizer import text_pipeline

LEAST_LENGTH = np.float32(1e-12)
"""Shorter vectors are divided by this, as by torch's `normalize`."""

GENERATORS = ("HeadModel", "HeadsModel")
"""Ends of architectures that generate texts, although they end in `Model`."""

PLAIN = "Data2VecTextModel"
"""The only architecture with this end that is a plain encoder, as BERT is."""

NO_MODULES = "no modules.json names a pooling: tokens are averaged (mean), vectors keep their length"


class EmbeddingRequest(BaseModel):
    """A text, and how its vector should be."""

    text: str = Field(min_length=1)
    dimensions: int | None = Field(None, ge=1, description="How many of the first numbers to return.")
    normalize: bool | None = Field(None, description="Whether the vector has the length 1.")
    prompt_name: str | None = Field(None, description="Which prompt of the model goes before the text.")
    truncate: Truncate = None
    truncation_direction: Direction = None


class EmbeddingResponse(BaseModel):
    """A text's vector."""

    embedding: list[float] = Field(json_schema_extra={"items": {"type": "number", "format": "float"}})


class Embedding(TextTask, request=EmbeddingRequest, answer=EmbeddingResponse):
    """Tokenises texts; cuts and normalises their vectors, which leave the network without that."""

    list_fields = ("text",)
    example = MappingProxyType({"text": "The soup was wonderful."})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pipeline = self._model.description.embedding_pipeline
        self.dimensions = int(self._signatures[TOKENS].outputs[0].shape[0])
        """Length of the model's vectors."""

        self.pooling = self._pipeline.pooling
        self.prompts = self._pipeline.prompts

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `text` and `embedding`; see `Task.from_export`."""
        pipeline, (architecture,) = embedding_pipeline(folder), config.architectures or [""]
        if pipeline is None:
            if not architecture.endswith("Model") or architecture.endswith(GENERATORS):
                return None
            if config.text_config or (architecture.endswith("TextModel") and architecture != PLAIN):
                raise ConfigurationError(
                    f"{folder} cannot be served: its network, {architecture}, belongs to one for images "
                    "or sounds, and has its own pooling and padding; it needs a modules.json of "
                    "sentence-transformers that names the pooling"
                )
            pipeline = EmbeddingPipeline(note=NO_MODULES)
        text, stated = text_pipeline(folder, config), read_length(folder).max_seq_length
        if stated:
            most = min(stated, config.positions or stated)
            text = text.model_copy(update={"max_tokens": most})
        return {"text": text, "embedding": pipeline}

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the signatures, see `TextTask.plan`; logs what the model's files leave open."""
        if note := model.description.embedding_pipeline.note:
            logger().info("pooling", model=model.description.name, reason=note)
        return super().plan(model, settings, *graph)

    def read(self, fields: Fields) -> Reading:
        """Returns the text with its prompt, and the vector's form. Raises RequestError."""
        dimensions, normalize = fields.get("dimensions"), fields.get("normalize")
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise InvalidRequestError(
                f"dimensions must be from 1 to {self.dimensions}, not {dimensions}"
            )
        name = fields.get("prompt_name", self._pipeline.default_prompt_name)
        if name is not None and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise InvalidRequestError(f"the model has no prompt {name[:80]!r}; its prompts are: {known}")
        text = fields["text"]
        prompt = self.prompts[name] if name is not None else ""
        if self._pipeline.lower_case:  # before special tokens are looked for
            text, prompt = text.lower(), prompt.lower()
        dimensions = dimensions or self._pipeline.dimensions
        form = dimensions, self._pipeline.normalize if normalize is None else normalize
        return self.to_reading({"text": text}, self.side_of(fields), form, prompt)

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the vector, float32 [dimensions]."""
        ((vector,),), (dimensions, normalize) = outputs, prepared.context
        vector = vector[:dimensions].astype(np.float32)
        if normalize:
            vector = vector / max(np.sqrt(vector @ vector), LEAST_LENGTH)
        return [{"embedding": vector}]

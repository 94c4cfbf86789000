"""OpenAI's API for embeddings, also as Azure has it, and its models; Infinity's `/classify` beside it.

Vectors have the length 1, unless a body says otherwise. TensorFlow Serving's dialect also has the paths
of models, and TorchServe's has `/models`; they describe them as OpenAI does, too.
"""

import time
from functools import partial
from typing import Any, Literal

import msgspec
import pybase64
from fastapi import Response

from smallplates.models.task_kinds import EMBEDDING, TEXT_CLASSIFICATION
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, Routes
from smallplates.web.api.error_shapes import OpenAIError, openai_error
from smallplates.web.api.pipeline import Call, Pipeline
from smallplates.web.api.texts import (
    CUTS,
    MAX_TEXTS,
    Texts,
    TextsOnly,
    cut_to,
    input_of,
    texts_of,
    usage,
    vectors,
)
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

AZURE = ("/openai/v1/embeddings", "/openai/deployments/{model}/embeddings")
"""Azure OpenAI's paths; the query's `api-version` is ignored."""

ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("output_dtype", "embedding_type", "encoding_type"), ("float", ["float"])),
    "embed_dtype": ("float32",),
    "endianness": ("little", "native"),
    "modality": ("text",),
    "add_special_tokens": (True,),
    "late_chunking": (False,),
    "return_multivector": (False,),
}
"""Field of a body -> what it may be, besides null; with anything else, vectors would differ."""


class EmbeddingsRequest(TextsOnly):
    """The body of a call.

    vLLM has `truncate_prompt_tokens`, `truncation_side`, `add_special_tokens`, `embed_dtype`,
    `endianness`, and `use_activation`, formerly `normalize`. NIM has `truncate` and `input_type`.
    Voyage and Mistral have `output_...`, and Voyage has `truncation`. Jina has `task`, `normalized`,
    `late_chunking`, `return_multivector` and `embedding_type`, which LlamaIndex calls `encoding_type`.
    Infinity has `modality`, and TEI has `prompt_name`.
    """

    input: Texts
    dimensions: int | None = None
    output_dimension: int | None = None
    output_dtype: str | None = None
    embedding_type: str | list[str] | None = None
    encoding_type: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    truncation: bool | None = None
    input_type: str | None = None
    task: str | None = None
    prompt_name: str | None = None
    normalized: bool | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    late_chunking: bool | None = None
    return_multivector: bool | None = None
    add_special_tokens: bool | None = None
    embed_dtype: str | None = None
    endianness: str | None = None
    modality: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, which msgspec reports, for vectors that a client would misread."""
        for name, values in ONLY.items():
            if getattr(self, name) not in (None, *values):
                raise ValueError(f"leave out {name}, or send {str(values[0]).lower()}")


class ClassifyRequest(msgspec.Struct):
    """The body of `/classify`."""

    input: Texts
    raw_scores: Literal[False] | None = None
    modality: Literal["text"] | None = None


def call_of(entry: CatalogEntry, asked: EmbeddingsRequest, size: int) -> Call:
    """Returns the call for a body. Raises RequestError."""
    task: Any = entry.model.task
    dimensions = asked.output_dimension if asked.dimensions is None else asked.dimensions
    return vectors(
        entry,
        asked.input,
        size,
        partial(respond, entry, asked.encoding_format == "base64"),
        asked.input_type or asked.task,
        asked.prompt_name,
        normalize=False not in (asked.normalized, asked.normalize, asked.use_activation),
        dimensions=dimensions or None,
        **cut_of(asked, task.max_tokens),
    )


def cut_of(asked: EmbeddingsRequest, most: int) -> dict[str, Any]:
    """Returns whether and where texts of more than `most` tokens are cut. Raises InvalidRequestError."""
    if asked.truncate_prompt_tokens is None:
        return CUTS.get(asked.truncation if asked.truncate is None else asked.truncate, {})
    return cut_to(asked.truncate_prompt_tokens, most, asked.truncation_side)


def respond(entry: CatalogEntry, in_base64: bool, answer: Answer, _: RequestContext) -> Response:
    """Returns the list of vectors, as numbers or as base64 of little-endian float32."""
    found = [best["embedding"] for best, *_ in answer.candidates]
    if in_base64:
        found = [pybase64.b64encode_as_string(vector.astype("<f4", copy=False)) for vector in found]
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(found)
    ]
    return json_response({"object": "list", "data": data, "model": entry.name, "usage": usage(answer)})


def classify(entry: CatalogEntry, asked: ClassifyRequest, size: int) -> Call:
    """Returns the call of `/classify`. Raises RequestError."""
    inputs = [input_of(size, text=text) for text in texts_of(asked.input, entry, MAX_TEXTS)]
    top_k = len(entry.model.task.labels)
    return Call(inputs, top_k=top_k, respond=partial(classes_response, entry))


def classes_response(entry: CatalogEntry, answer: Answer, context: RequestContext) -> Response:
    """Returns the labels of each text with their scores, best first."""
    data = [
        [{"label": each["label"], "score": each["probability"]} for each in candidates]
        for candidates in answer.candidates
    ]
    content = {"object": "classify", "data": data, "model": entry.name, "usage": usage(answer)}
    return json_response({**content, "id": context.request_id, "created": int(time.time())})


def add_routes(routes: Routes, _: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths."""
    example = {"input": ["The soup was warm.", "It rains."]}
    for path in ("/v1/embeddings", "/embeddings", *AZURE):
        kinds = {EMBEDDING: BodyKind(EmbeddingsRequest, call_of, example)}
        routes.by_body(path, "Embed texts", kinds)
    texts = BodyKind(ClassifyRequest, classify, example)
    routes.by_body("/classify", "Classify texts", {TEXT_CLASSIFICATION: texts})

    @routes.about("/models", "The models, for base URLs without /v1")
    @routes.about("/v1/models", "The models")
    async def all_models() -> Response:
        return json_response(catalog.cards())

    @routes.about("/v1/models/{model}", "One model", 404, 503)
    @routes.about("/v1/models/{owner}/{model}")
    async def one_model(model: str, owner: str = "") -> Response:
        return json_response(catalog.find(f"{owner}/{model}" if owner else model).card)


DIALECT = Dialect(
    add_routes,
    "OpenAI",
    openai_error,
    OpenAIError,
    takes_tensors=False,
    prefixes=("/v1/", "/openai/"),
    about="For OpenAI's client libraries: embeddings. Infinity's classes of texts.",
)

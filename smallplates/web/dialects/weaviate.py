"""Weaviate's `text2vec-transformers`: what the database calls of the container that embeds texts."""

from typing import Any

import msgspec
from fastapi import Response

from smallplates.models.task_kinds import EMBEDDING
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, ErrorText, Routes, text_error
from smallplates.web.api.pipeline import Call, Pipeline
from smallplates.web.api.texts import TextsOnly, vectors
from smallplates.web.dialects import tei
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer


class Config(msgspec.Struct):
    """Which vectors are wanted; the model's files say how it pools, whatever `pooling_strategy` says."""

    task_type: str | None = None
    dimensions: int | None = None


class VectorsRequest(TextsOnly):
    """The body of `/vectors`: a text, or several."""

    text: str | None = None
    texts: list[str] | None = None
    config: Config | None = None


def embed(entry: CatalogEntry, asked: VectorsRequest, size: int) -> Call:
    """Returns the call of `/vectors`, which cuts long texts. Raises RequestError."""
    texts, config = [asked.text or ""] if asked.texts is None else asked.texts, asked.config or Config()
    form: dict[str, Any] = {"normalize": True, "dimensions": config.dimensions or None}

    def respond(answer: Answer, _: RequestContext) -> Response:
        found = [best["embedding"] for best, *_ in answer.candidates]
        if asked.texts is None:
            return json_response({"text": asked.text, "vector": found[0], "dim": len(found[0])})
        return json_response({"vectors": found, "dims": len(found[0])})

    return vectors(entry, [*texts], size, respond, config.task_type, truncate=True, **form)


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths."""
    kinds = {EMBEDDING: BodyKind(VectorsRequest, embed, {"text": tei.QUERY})}
    routes.by_body("/vectors", "Embed texts", kinds)

    @routes.about("/meta", "The model for embeddings", 400, 503, tasks=[EMBEDDING])
    async def meta() -> Response:
        return json_response(tei.info(catalog.choose(None, [EMBEDDING]), pipeline.service.settings))

    @routes.about("/.well-known/live")
    async def live() -> Response:
        return Response(status_code=204)

    @routes.about("/.well-known/ready")
    async def ready() -> Response:
        pipeline.service.check_ready()
        return Response(status_code=204)


DIALECT = Dialect(
    add_routes,
    "Weaviate",
    text_error,
    ErrorText,
    takes_tensors=False,
    about="For the database Weaviate, which embeds its texts with a container.",
)

"""Ollama's API for embeddings: `/api/embed`, `/api/embeddings`, and what its clients ask about models.

A model's name may end in `:latest`. Long texts are cut unless a body has `truncate: false`. `options`
and `keep_alive` are ignored, as other unknown fields.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Response

from smallplates import __version__
from smallplates.errors import ServingError, TextTooLongError
from smallplates.models.task_kinds import EMBEDDING
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, ErrorText, Finder, Routes, text_error
from smallplates.web.api.pipeline import Call, Pipeline, Target
from smallplates.web.api.texts import Texts, TextsOnly, input_of, texts_of
from smallplates.web.http.body import decode_json, json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

LATEST = ":latest"


class Named(TextsOnly):
    """The part of a body that names the model; the first clients called it `name`."""

    model: str | None = None
    name: str | None = None


class EmbedRequest(Named, kw_only=True):
    """The body of `/api/embed`."""

    input: Texts
    truncate: bool | None = None
    dimensions: int | None = None


class PromptRequest(Named, kw_only=True):
    """The body of `/api/embeddings`, which has been superseded by `/api/embed`."""

    prompt: str


NAMED = msgspec.json.Decoder(Named)


def error_response(error: ServingError, context: RequestContext) -> Response:
    """Returns `{"error": "..."}`; a text that is too long gets 400."""
    if isinstance(error, TextTooLongError):
        return json_response({"error": error.detail}, 400)
    return text_error(error, context)


def embed(entry: CatalogEntry, asked: EmbedRequest, size: int) -> Call:
    """Returns the call of `/api/embed`. Raises RequestError."""
    form = {"truncate": asked.truncate is not False, "dimensions": asked.dimensions or None}
    texts = texts_of(asked.input, entry, entry.model.largest_request)

    def respond(answer: Answer, _: RequestContext) -> Response:
        content = {
            "model": asked.model or entry.name,
            "embeddings": [best["embedding"] for best, *_ in answer.candidates],
            "total_duration": int(answer.timings.total_s * 1e9),
            "load_duration": 0,  # models are loaded before they are in service
            "prompt_eval_count": answer.timings.tokens,
        }
        return json_response(content)

    inputs = [input_of(size, text=text, normalize=True, **form) for text in texts]
    return Call(inputs, respond=respond)


def embed_prompt(_: CatalogEntry, asked: PromptRequest, size: int) -> Call:
    """Returns the call of `/api/embeddings`, whose vectors are not normalised."""

    def respond(answer: Answer, _: RequestContext) -> Response:
        return json_response({"embedding": answer.candidates[0][0]["embedding"]})

    text = input_of(size, text=asked.prompt, normalize=False, truncate=True)
    return Call([text], respond=respond)


def details(entry: CatalogEntry) -> dict[str, Any]:
    """Describes a model as far as Ollama's words fit."""
    family = entry.model.description.task
    precision = entry.model.report.info.precision
    return {"family": family, "families": [family], "quantization_level": precision}


def modified_at(entry: CatalogEntry) -> str:
    """Returns when the model's folder changed."""
    return datetime.fromtimestamp(entry.model.created, UTC).isoformat()


def tag(entry: CatalogEntry) -> dict[str, Any]:
    """Returns a model as Ollama lists it: every name has a tag."""
    name = entry.name if ":" in entry.name else entry.name + LATEST
    digest = entry.model.handle.model.digest
    content = {"name": name, "model": name, "modified_at": modified_at(entry), "digest": digest}
    return {**content, "details": details(entry)}


def show(entry: CatalogEntry, _: Named, __: int) -> Call:
    """Returns the call for what clients look up: the lengths of vectors and of texts."""
    task: Any = entry.model.task
    family = entry.model.description.task
    info = {
        "general.architecture": family,
        f"{family}.context_length": task.max_tokens,
        f"{family}.embedding_length": task.dimensions,
    }
    content = {"details": details(entry), "model_info": info, "capabilities": [EMBEDDING]}
    response = json_response({**content, "modified_at": modified_at(entry)})
    return Call(needs_worker=False, respond=lambda *_: response)


def add_routes(routes: Routes, _: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths."""

    def finder(kinds: dict[str, BodyKind]) -> Finder:
        find = routes.finder(kinds)

        def by_name(body: bytes, **_: str) -> Target[Any]:
            asked = decode_json(NAMED, body)
            name = asked.model or asked.name or ""
            return find(body, name if name in catalog.entries else name.removesuffix(LATEST))

        return by_name

    def add(path: str, summary: str, kind: BodyKind) -> None:
        kinds = {EMBEDDING: kind}
        routes.by_body(path, summary, kinds, find=finder(kinds))

    text = "The soup was wonderful."
    add("/api/embed", "Embed texts", BodyKind(EmbedRequest, embed, {"input": [text]}))
    add("/api/embeddings", "Embed a text", BodyKind(PromptRequest, embed_prompt, {"prompt": text}))
    add("/api/show", "Describe a model", BodyKind(Named, show, {}, False))

    @routes.about("/api/tags", "The models for embeddings")
    async def tags() -> Response:
        entries = [each for each in catalog.entries.values() if not each.takes_tensors]
        found = [tag(each) for each in entries if each.model.description.task == EMBEDDING]
        return json_response({"models": found})

    @routes.about("/api/version", "The service's version")
    async def version() -> Response:
        return json_response({"version": __version__})


DIALECT = Dialect(
    add_routes,
    "Ollama",
    error_response,
    ErrorText,
    takes_tensors=False,
    prefixes=("/api/",),
    about="For clients of Ollama: embeddings.",
)

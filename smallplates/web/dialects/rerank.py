"""Reranking as Jina, Cohere, Voyage and vLLM have it, vLLM's scores of pairs, and Cohere's embeddings.

`/rerank` and `/embed` cut long texts to what the model takes. `/score` refuses or cuts them as the
request or SERVING_LONG_TEXT says.
"""

from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

import msgspec
from fastapi import Response

from smallplates.errors import InvalidRequestError, ServingError
from smallplates.models.task_kinds import EMBEDDING, RANKING
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, Routes
from smallplates.web.api.error_shapes import OpenAIError, openai_error
from smallplates.web.api.pipeline import Call, Pipeline
from smallplates.web.api.texts import CUTS, Passage, TextsOnly, cut_to, input_of, usage, vectors
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

COHERE, EMBED = "/v2/rerank", ("/v1/embed", "/v2/embed")
VERSION = {"api_version": {"version": "2"}}
QUERY, TEXTS = "Is the soup good?", ["The soup was wonderful.", "The table was cold."]


class Document(msgspec.Struct):
    """A text as an object, which may have further fields."""

    text: str


class Scores(msgspec.Struct, kw_only=True):
    """Fields for raw scores: Infinity's `raw_scores`; vLLM's `use_activation`, formerly `activation`."""

    raw_scores: bool | None = None
    use_activation: bool | None = None
    activation: bool | None = None

    @property
    def is_raw(self) -> bool:
        """Whether scores are the network's own numbers."""
        return self.raw_scores is True or False in (self.use_activation, self.activation)


class RerankRequest(Scores):
    """The body of `/rerank`; `top_k` and `truncation` are Voyage's, `rank_fields` is Cohere's."""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    top_k: int | None = None
    truncation: bool | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_documents: bool | None = None
    rank_fields: list[Literal["text"]] | None = None


class RankingRequest(msgspec.Struct):
    """The body of NIM's `/ranking`."""

    query: Passage
    passages: list[Passage]
    truncate: Literal["NONE", "END"] | None = None


class EmbedRequest(TextsOnly):
    """The body of Cohere's `/embed`; its `inputs` may have pictures."""

    texts: list[str]
    inputs: None = None
    input_type: str | None = None
    embedding_types: list[Literal["float"]] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    output_dimension: int | None = None
    max_tokens: int | None = None


class ScoreRequest(Scores):
    """The body of `/score`: one text and one or more others, or two lists of the same length."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None


def error_response(error: ServingError, context: RequestContext) -> Response:
    """Returns OpenAI's `{"error": {...}, "detail"}`, and Cohere's `{"id", "message"}` on its paths."""
    response = openai_error(error, context)
    if context.path in (COHERE, *EMBED):
        content = {"id": context.request_id, "message": error.detail}
        return json_response(content, response.status_code, error.headers)
    return response


def rerank(entry: CatalogEntry, asked: RerankRequest, size: int) -> Call:
    """Returns the call for a query and documents. Raises RequestError."""
    counts = {each for each in (asked.top_n, asked.top_k) if isinstance(each, int)}
    if len(counts) > 1 or min(counts, default=0) < 0:
        given = " and ".join(map(str, sorted(counts)))
        raise InvalidRequestError(f"top_n, or top_k, must be one number of at least 0, not {given}")
    texts = [each if isinstance(each, str) else each.text for each in asked.documents]
    form = {"truncate": asked.truncation is not False, "truncation_direction": asked.truncation_side}
    query = input_of(size, query=asked.query, texts=texts, raw_scores=asked.is_raw, **form)
    kept = texts if asked.return_documents else []
    respond = partial(rerank_response, entry, kept)
    return Call([query], top_k=max(counts, default=0) or None, respond=respond)


def rerank_response(
    entry: CatalogEntry, texts: list[str], answer: Answer, context: RequestContext
) -> Response:
    """Returns the documents' scores, best first, and with them the `texts` if there are any.

    Voyage's clients find them in `data`, with texts as they are. They don't need `object`, which
    Infinity's client refuses.
    """
    results: list[dict[str, Any]] = [
        {"index": each["index"], "relevance_score": each["score"]} for each in answer.candidates[0]
    ]
    content: dict[str, Any] = {"id": context.request_id, "results": results}
    if context.path == COHERE:
        return json_response({**content, "meta": {**VERSION, "billed_units": {"search_units": 1}}})
    data = results
    if texts:
        data = [{**each, "document": texts[each["index"]]} for each in results]
        content["results"] = [{**each, "document": {"text": each["document"]}} for each in data]
    return json_response({**content, "data": data, "model": entry.name, "usage": usage(answer)})


def ranking(_: CatalogEntry, asked: RankingRequest, size: int) -> Call:
    """Returns the call for a query and passages; long ones are refused unless `truncate` is END."""
    texts, cut = [each.text for each in asked.passages], asked.truncate == "END"
    query = input_of(size, query=asked.query.text, texts=texts, truncate=cut, raw_scores=True)
    return Call([query], respond=ranking_response)


def ranking_response(answer: Answer, _: RequestContext) -> Response:
    """Returns the network's own numbers, best first."""
    ranks = [{"index": each["index"], "logit": each["score"]} for each in answer.candidates[0]]
    return json_response({"rankings": ranks})


def embed(entry: CatalogEntry, asked: EmbedRequest, size: int) -> Call:
    """Returns the call for vectors of texts. Raises RequestError."""
    if asked.max_tokens is not None:
        task: Any = entry.model.task
        cut_to(asked.max_tokens, task.max_tokens)
    respond, cut = partial(embed_response, asked), CUTS[asked.truncate or "END"]
    form = {"normalize": True, "dimensions": asked.output_dimension or None, **cut}
    return vectors(entry, [*asked.texts], size, respond, asked.input_type, **form)


def embed_response(asked: EmbedRequest, answer: Answer, context: RequestContext) -> Response:
    """Returns the vectors by type; version 1 of the API has a list unless the body names types."""
    found = [best["embedding"] for best, *_ in answer.candidates]
    by_type = bool(asked.embedding_types) or context.path == EMBED[1]
    content = {
        "id": context.request_id,
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
        "embeddings": {"float": found} if by_type else found,
        "texts": asked.texts,
        "meta": {**VERSION, "billed_units": {"input_tokens": answer.timings.tokens}},
    }
    return json_response(content)


def score(entry: CatalogEntry, asked: ScoreRequest, size: int) -> Call:
    """Returns the call for pairs of texts. Raises RequestError."""
    given = (
        asked.queries if asked.text_1 is None else asked.text_1,
        asked.documents if asked.text_2 is None else asked.text_2,
    )
    queries, texts = ([each] if isinstance(each, str) else each or [] for each in given)
    if len(queries) == 1 and texts:
        pairs = [(queries[0], texts)]
    elif queries and len(queries) == len(texts):
        pairs = [(query, [text]) for query, text in zip(queries, texts, strict=True)]
    else:
        raise InvalidRequestError(
            "send text_1 and text_2, or queries and documents: one text and several, or as many of each"
        )
    form: dict[str, Any] = {"raw_scores": asked.is_raw}
    if asked.truncate_prompt_tokens is not None:
        task: Any = entry.model.task
        form |= cut_to(asked.truncate_prompt_tokens, task.max_tokens, asked.truncation_side)
    inputs = [input_of(size, query=query, texts=texts, **form) for query, texts in pairs]
    return Call(inputs, respond=partial(score_response, entry))


def score_response(entry: CatalogEntry, answer: Answer, context: RequestContext) -> Response:
    """Returns the scores in the order of the texts."""
    ranks = chain(*(sorted(each, key=itemgetter("index")) for each in answer.candidates))
    data = [
        {"index": index, "object": "score", "score": rank["score"]} for index, rank in enumerate(ranks)
    ]
    content = {"id": context.request_id, "object": "list", "model": entry.name, "data": data}
    return json_response({**content, "usage": usage(answer)})


def add_routes(routes: Routes, _: Pipeline, __: ModelCatalog) -> None:
    """Adds all paths."""
    documents = BodyKind(RerankRequest, rerank, {"query": QUERY, "documents": TEXTS})
    pairs = BodyKind(ScoreRequest, score, {"text_1": QUERY, "text_2": TEXTS})
    example = {"query": {"text": QUERY}, "passages": [{"text": text} for text in TEXTS]}
    passages = BodyKind(RankingRequest, ranking, example)
    routes.by_body("/v1/ranking", "Rank passages", {RANKING: passages})
    texts = BodyKind(EmbedRequest, embed, {"texts": TEXTS, "input_type": "search_document"})
    for path in ("/rerank", "/v1/rerank", COHERE):
        routes.by_body(path, "Rank documents", {RANKING: documents}, field="documents")
    for path in ("/score", "/v1/score"):
        routes.by_body(path, "Score pairs of texts", {RANKING: pairs})
    for path in EMBED:
        routes.by_body(path, "Embed texts", {EMBEDDING: texts})


DIALECT = Dialect(
    add_routes,
    "Reranking",
    error_response,
    OpenAIError,
    takes_tensors=False,
    about="For clients of Cohere's and Jina's APIs: texts sorted by how well they fit a query; vectors.",
)

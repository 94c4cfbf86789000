"""Text Embeddings Inference (TEI) by Hugging Face: embeddings, reranking, classes of texts.

Long texts are cut unless a body has `truncate: false`, as with TEI's default `--auto-truncate`. Errors
that TEI doesn't have keep their status.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec
from fastapi import Response

from smallplates import __version__
from smallplates.engine import topology
from smallplates.errors import InvalidRequestError, NotSupportedError, TextTooLongError
from smallplates.models.task_kinds import EMBEDDING, RANKING, TEXT_CLASSIFICATION, ZERO_SHOT
from smallplates.settings import Settings
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, Routes
from smallplates.web.api.error_shapes import TeiError, tei_error
from smallplates.web.api.pipeline import Call, Pipeline
from smallplates.web.api.texts import Texts, TextsOnly, input_of, text_of, texts_of
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
CLASSIFIERS = (TEXT_CLASSIFICATION, ZERO_SHOT)
TASKS = (EMBEDDING, RANKING, *CLASSIFIERS)
QUERY, *TEXTS = ("Is the soup good?", "The soup was wonderful.", "The table was cold.")
TIMES = ("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time", "x-compute-time")


class Form(TextsOnly, kw_only=True):
    """What bodies may say about their texts."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: int | None = None
    raw_scores: bool | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of tasks; long texts are cut by default, and vectors normalised."""
        fields = {name: getattr(self, name) for name in Form.__struct_fields__ if name != "model"}
        return {
            **fields,
            "truncate": self.truncate is not False,
            "normalize": self.normalize is not False,
            "raw_scores": self.raw_scores is True,
        }


class EmbedRequest(Form):
    """The body of `/embed`."""

    inputs: Texts


class Sentences(msgspec.Struct):
    """A text, and those that are compared with it."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(msgspec.Struct):
    """The body of `/similarity`."""

    inputs: Sentences
    parameters: Form | None = None


class RerankRequest(Form):
    """The body of `/rerank`; `top_n` is not TEI's, but Elasticsearch and LiteLLM send it."""

    query: str
    texts: list[str]
    return_text: bool | None = None
    top_n: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PredictRequest(Form):
    """The body of `/predict`: a text, a pair of texts, or a list of lists of one or two texts."""

    inputs: str | list[str | list[str]]


class TokenizeRequest(Form):
    """The body of `/tokenize`."""

    inputs: Texts
    add_special_tokens: bool | None = None


class DecodeRequest(Form):
    """The body of `/decode`."""

    ids: list[int | list[int]]
    skip_special_tokens: bool | None = None


def reply(entry: CatalogEntry, texts: Sequence[str], content: Any, answer: Answer) -> Response:
    """Returns an answer, with what it took in headers, in characters, tokens and ms."""
    times = answer.timings
    seconds = (times.total_s, times.decode_s, times.queue_s, times.infer_s, times.infer_s)
    headers = {name: f"{1000 * value:.0f}" for name, value in zip(TIMES, seconds, strict=True)}
    headers["x-compute-type"] = "gpu" if entry.model.report.on_gpu else "cpu"
    headers["x-compute-characters"] = str(sum(map(len, texts)))
    headers["x-compute-tokens"] = str(times.tokens)
    return json_response(content, headers=headers)


def embed(entry: CatalogEntry, asked: EmbedRequest, size: int) -> Call:
    """Returns the call of `/embed`. Raises RequestError."""
    texts = texts_of(asked.inputs, entry, entry.model.largest_request)

    def respond(answer: Answer, _: RequestContext) -> Response:
        return reply(entry, texts, [best["embedding"] for best, *_ in answer.candidates], answer)

    return Call([input_of(size, text=text, **asked.fields) for text in texts], respond=respond)


def similarity(entry: CatalogEntry, asked: SimilarityRequest, size: int) -> Call:
    """Returns the call of `/similarity`. Raises RequestError."""
    texts = [asked.inputs.source_sentence, *asked.inputs.sentences]
    fields = {**(asked.parameters or Form()).fields, "normalize": True}

    def respond(answer: Answer, _: RequestContext) -> Response:
        source, *others = (best["embedding"] for best, *_ in answer.candidates)
        return reply(entry, texts, [source @ other for other in others], answer)

    return Call([input_of(size, text=text, **fields) for text in texts], respond=respond)


def rerank(entry: CatalogEntry, asked: RerankRequest, size: int) -> Call:
    """Returns the call of `/rerank`. Raises RequestError."""
    texts = asked.texts

    def respond(answer: Answer, _: RequestContext) -> Response:
        (ranks,) = answer.candidates
        if asked.return_text:
            ranks = [{**rank, "text": texts[rank["index"]]} for rank in ranks]
        return reply(entry, [asked.query, *texts], ranks, answer)

    query = input_of(size, query=asked.query, texts=texts, **asked.fields)
    return Call([query], top_k=asked.top_n or None, respond=respond)


def predict(entry: CatalogEntry, asked: PredictRequest, size: int) -> Call:
    """Returns the call of `/predict`. Raises RequestError."""
    is_batch = isinstance(asked.inputs, list) and any(isinstance(each, list) for each in asked.inputs)
    given: Any = asked.inputs if is_batch else [asked.inputs]
    rows = [[row] if isinstance(row, str) else row for row in given]
    is_ranking, first = entry.model.description.task == RANKING, labels_of(entry)[0]
    sizes = (2,) if is_ranking else (1, 2)
    if any(len(row) not in sizes for row in rows):
        raise InvalidRequestError(f"the model takes {' or '.join(map(str, sizes))} texts at a time")
    if asked.raw_scores and not is_ranking:
        raise InvalidRequestError("raw_scores is supported for rerankers only")
    inputs = [
        input_of(size, query=row[0], texts=row[1:], **asked.fields)
        if is_ranking
        else input_of(size, text=row[0], text_pair=row[1] if len(row) > 1 else None, **asked.fields)
        for row in rows
    ]

    def respond(answer: Answer, _: RequestContext) -> Response:
        classes = [
            [
                {"score": each.get("score", each.get("probability")), "label": each.get("label", first)}
                for each in candidates
            ]
            for candidates in answer.candidates
        ]
        return reply(entry, [*chain(*rows)], classes if is_batch else classes[0], answer)

    return Call(inputs, top_k=len(entry.model.task.labels) or None, respond=respond)


EMBED = {EMBEDDING: BodyKind(EmbedRequest, embed, {"inputs": TEXTS})}
RERANK = {RANKING: BodyKind(RerankRequest, rerank, {"query": QUERY, "texts": TEXTS})}
CLASSIFY = dict.fromkeys(CLASSIFIERS, BodyKind(PredictRequest, predict, {"inputs": QUERY}))
ANY = EMBED | RERANK | CLASSIFY
"""Task -> a body that says what the model is for."""


def labels_of(entry: CatalogEntry) -> list[str]:
    """Returns the names of a model's labels."""
    return entry.model.description.labels or ["LABEL_0"]


def tokenize(entry: CatalogEntry, asked: TokenizeRequest, _: int) -> Call:
    """Returns the call for the tokens of each text, without cutting any. Raises RequestError."""
    task: Any = entry.model.task
    texts = texts_of(asked.inputs, entry, entry.model.largest_request)
    prompts = {None: "", **getattr(task, "prompts", {})}
    if asked.prompt_name not in prompts:
        raise InvalidRequestError(f"the model has no prompt {str(asked.prompt_name)[:80]!r}")
    most = task.limits["text_bytes"]
    if (size := task.bytes_of([(text, 1) for text in texts])) > most:
        raise TextTooLongError(f"the texts have {size} bytes; at most {most} are tokenised")
    prompt = prompts[asked.prompt_name]
    readings = [task.to_reading({"text": text}, None, None, prompt).texts for text in texts]
    encodings = task.encode(readings, asked.add_special_tokens is not False, offsets=True)
    pairs = zip(readings, encodings, strict=True)
    response = json_response([tokens_of(reading["text"], encoding) for reading, encoding in pairs])
    return Call(needs_worker=False, respond=lambda *_: response)


def tokens_of(text: str, encoding: Any) -> list[dict[str, Any]]:
    """Returns a text's tokens; special ones have no place in it."""
    columns = (encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets)
    return [
        {"id": number, "text": token, "special": True, "start": None, "stop": None}
        if special
        else {"id": number, "text": text[start:stop], "special": False, "start": start, "stop": stop}
        for number, token, special, (start, stop) in zip(*columns, strict=True)
    ]


def decode(entry: CatalogEntry, asked: DecodeRequest, _: int) -> Call:
    """Returns the call for the text of token ids, or the texts of several lists. Raises RequestError."""
    is_batch = bool(asked.ids) and all(isinstance(each, list) for each in asked.ids)
    lists: list[Any] = [*asked.ids] if is_batch else [asked.ids]
    skip = asked.skip_special_tokens is not False
    response = json_response([text_of(ids, entry, skip) for ids in lists])
    return Call(needs_worker=False, respond=lambda *_: response)


def info(entry: CatalogEntry, settings: Settings) -> dict[str, Any]:
    """Describes a model as TEI does."""
    model, labels = entry.model, labels_of(entry)
    task: Any = model.task
    cap, precision = model.report.batch_cap, model.report.info.precision
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
    kinds: dict[str, dict[str, Any]] = {
        RANKING: {"reranker": names},
        TEXT_CLASSIFICATION: {"classifier": names},
        ZERO_SHOT: {"classifier": names},
        EMBEDDING: {"embedding": {"pooling": getattr(task, "pooling", None)}},
    }
    return {
        "model_id": model.description.name,
        "model_sha": model.handle.model.digest or None,
        "model_dtype": DTYPES.get(precision, precision),
        "served_model_name": entry.name,
        "model_type": kinds[model.description.task],
        "max_concurrent_requests": settings.queue_size,
        "max_input_length": task.max_tokens,
        "max_batch_tokens": cap * task.max_tokens,
        "max_batch_requests": cap,
        "max_client_batch_size": model.largest_request,
        "auto_truncate": True,
        "tokenization_workers": topology.decoding_threads(settings),
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths."""
    service = pipeline.service
    sentences = {"source_sentence": QUERY, "sentences": TEXTS}
    likeness = {EMBEDDING: BodyKind(SimilarityRequest, similarity, {"inputs": sentences})}
    pairs = {RANKING: BodyKind(PredictRequest, predict, {"inputs": TEXTS})}
    routes.by_body("/embed", "Embed texts", EMBED)
    routes.by_body("/similarity", "Compare texts", likeness)
    routes.by_body("/rerank", "Rank texts", RERANK)
    routes.by_body("/predict", "Classify texts", CLASSIFY | pairs, field="inputs")
    for path in ("/", "/invocations"):
        routes.by_body(path, "What the model is for", ANY)

    tokens = BodyKind(TokenizeRequest, tokenize, {"inputs": TEXTS}, False)
    numbers = BodyKind(DecodeRequest, decode, {"ids": [[1, 2]]}, False)
    routes.by_body("/tokenize", "Tokens of texts", dict.fromkeys(TASKS, tokens))
    routes.by_body("/decode", "Texts of tokens", dict.fromkeys(TASKS, numbers))

    @routes.about("/info", "A model and its limits", 422, 503, tasks=TASKS)
    async def information() -> Response:
        return json_response(info(catalog.choose(None, TASKS), service.settings))

    @routes.about("/health")
    @routes.about("/ping")
    async def health() -> Response:
        service.check_ready()
        return Response()

    @routes.post("/embed_sparse", include_in_schema=False)
    @routes.post("/embed_all", include_in_schema=False)
    async def unsupported() -> Response:
        raise NotSupportedError("sparse vectors and vectors of single tokens are not supported")


DIALECT = Dialect(
    add_routes,
    "Text Embeddings Inference",
    tei_error,
    TeiError,
    takes_tensors=False,
    about="For clients of Hugging Face's server: embeddings, ranking and text classification.",
)

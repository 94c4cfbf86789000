"""Hugging Face's Inference API: what `huggingface_hub.InferenceClient` sends, and its answers.

A body is `{"inputs", "parameters"}`, where `inputs` is the task's first field or an object of its
fields, and `parameters` has its other fields; or it is an image. JSON without `parameters` that is sent
to `/` is TEI's, unless only a task that TEI lacks fits.
"""

from typing import Any

import msgspec
from fastapi import Response

from smallplates.errors import InvalidRequestError, WrongTaskError
from smallplates.models.task_kinds import (
    EMBEDDING,
    IMAGE_CLASSIFICATION,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
)
from smallplates.tasks.base import Candidate, Fields
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, Finder, Routes
from smallplates.web.api.error_shapes import TeiError, tei_error
from smallplates.web.api.fields import TOP_K, fields_from_json
from smallplates.web.api.pipeline import JSON_OBJECT, OBJECT, Call, Pipeline, Target, call_of
from smallplates.web.api.texts import Texts
from smallplates.web.dialects import tei
from smallplates.web.http.body import decode_json, json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

NAMES = {"handle_impossible_answer": "allow_no_answer"}
"""Parameter -> the task's field, if their names differ."""

DEFAULTS = {TOKEN_CLASSIFICATION: {"aggregation_strategy": "simple"}}
"""Task -> parameters whose default is not the task's."""

USUAL_TOP_K = {IMAGE_CLASSIFICATION: 5, QUESTION_ANSWERING: 1}
"""Task -> number of candidates without `top_k`; others have all."""

TASKS = (*tei.CLASSIFIERS, TOKEN_CLASSIFICATION, QUESTION_ANSWERING, IMAGE_CLASSIFICATION)


class InferenceRequest(msgspec.Struct):
    """The body of a call."""

    inputs: msgspec.Raw
    parameters: dict[str, msgspec.Raw] | None = None


class FeaturesRequest(tei.Form, kw_only=True):
    """The body of a call for vectors or similarities, whose parameters may stand beside `inputs`."""

    inputs: Texts | tei.Sentences
    parameters: tei.Form | None = None


class Root(msgspec.Struct):
    """The part of a body that says whose it is."""

    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


ROOT = msgspec.json.Decoder(Root)


def features(entry: CatalogEntry, asked: FeaturesRequest, size: int) -> Call:
    """Returns the call for vectors, or for the cosines of sentences. Raises RequestError."""
    parameters = asked.parameters or tei.Form()
    fields = {
        name: getattr(asked, name) if (value := getattr(parameters, name)) is None else value
        for name in tei.Form.__struct_fields__
    }
    if isinstance(asked.inputs, tei.Sentences):
        return tei.similarity(entry, tei.SimilarityRequest(asked.inputs, tei.Form(**fields)), size)
    return tei.embed(entry, tei.EmbedRequest(asked.inputs, **fields), size)


def infer(entry: CatalogEntry, asked: InferenceRequest, size: int) -> Call:
    """Returns the call of any other task. Raises RequestError."""
    task, description = entry.model.task, entry.model.description
    parameters = {NAMES.get(name, name): value for name, value in (asked.parameters or {}).items()}
    own = description.activation
    if bytes(parameters.pop("function_to_apply", b"null")) not in (b"null", f'"{own}"'.encode()):
        raise InvalidRequestError(f"function_to_apply must be {own}, which the model is for")
    inputs = {task.request[0].name: asked.inputs}
    if bytes(memoryview(asked.inputs)[:1]) == b"{":
        inputs = decode_json(OBJECT, asked.inputs, "inputs")
    body = msgspec.json.encode({**DEFAULTS.get(description.task, {}), **parameters, **inputs})
    return to_call(entry, fields_from_json(task, body, native=True), size)


def to_call(entry: CatalogEntry, given: Fields, size: int) -> Call:
    """Returns the call for a task's fields and `top_k`. Raises RequestError."""
    kind, most, fields = entry.model.description.task, entry.model.task.most_candidates, dict(given)
    top_k = fields.pop(TOP_K, None)
    if top_k is not None and top_k < 1:
        raise InvalidRequestError(f"{TOP_K} must be at least 1, not {top_k}")
    count = min(top_k or USUAL_TOP_K.get(kind, most), most)
    call = call_of(entry.model, fields, size, count)
    is_nested = kind in tei.CLASSIFIERS and "candidate_labels" not in fields  # even for one text

    def respond(answer: Answer, _: RequestContext) -> Response:
        answers = [to_json(candidates, count > 1) for candidates in answer.candidates]
        return json_response(answers if is_nested else call.one_or_all(answers))

    call.respond = respond
    return call


def to_json(candidates: list[Candidate], is_list: bool) -> Any:
    """Returns the classes, the entities, or the answers to a question."""
    first = candidates[0]
    if "label" in first:
        return [{"label": each["label"], "score": each["probability"]} for each in candidates]
    return first.get("entities", candidates if is_list else first)


def example(entry: CatalogEntry) -> dict[str, Any]:
    """Returns a body with the model's example."""
    task = entry.model.task
    first, *others = (field.name for field in task.request if field.required)
    if others:
        return {"inputs": task.json_example}
    parameters = dict(task.json_example)
    return {"inputs": parameters.pop(first), "parameters": parameters}


KINDS = {
    **dict.fromkeys(TASKS, BodyKind(InferenceRequest, infer, example)),
    EMBEDDING: BodyKind(FeaturesRequest, features, example),
}


def finder(routes: Routes, catalog: ModelCatalog) -> Finder:
    """Returns what finds the model for a body: by its path, by its name in JSON, or by the task."""
    tei_body = routes.finder({**tei.ANY, EMBEDDING: KINDS[EMBEDDING]})
    own_body = routes.finder(KINDS)

    def image_body(_: bytes, model: str = "") -> Target[Call]:
        entry = catalog.choose(model, (IMAGE_CLASSIFICATION,))
        name = entry.model.task.request[0].name
        return Target(
            entry.model, lambda body: to_call(entry, {name: body}, len(body)), inline_bytes=None
        )

    def find(body: bytes, model: str = "") -> Target[Call]:
        if JSON_OBJECT.match(body) is None:
            other = image_body
        elif model or decode_json(ROOT, body).parameters is not msgspec.UNSET:
            return own_body(body, model)
        else:
            other = tei_body
        try:
            return other(body, model)
        except WrongTaskError:
            return own_body(body, model)

    return find


def add_routes(routes: Routes, _: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths."""
    find = finder(routes, catalog)
    routes.by_body("/", "Call a model", tei.ANY | KINDS, find=find)
    routes.by_body("/models/{model}", "Call a model by its name", KINDS, find=find)
    routes.by_body("/predict/{model}", "Call a model by its name", KINDS, field="inputs")


DIALECT = Dialect(
    add_routes,
    "Hugging Face Inference API",
    tei_error,
    TeiError,
    takes_tensors=False,
    about="For `huggingface_hub.InferenceClient`: every task for texts and images.",
)

"""What Amazon SageMaker and Google Vertex AI expect of a container. Requests call the default model.

A body is JSON with `instances`, answered with `predictions`; JSON with `inputs` or `texts`, answered as
by Hugging Face's containers; JSON with `text_pairs`, as LangChain's `SagemakerEndpointCrossEncoder`
sends it; or what `/predict` takes, answered as there. The platforms send any content
type or none, so only the body counts. Vertex AI names its paths in AIP_PREDICT_ROUTE and
AIP_HEALTH_ROUTE.
"""

import os
import re
from functools import partial
from typing import Any

import msgspec
from fastapi import Response

from smallplates.errors import ConfigurationError, InvalidRequestError
from smallplates.models.task_kinds import RANKING
from smallplates.tasks.base import Fields, Task
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import BodyKind, Dialect, Routes
from smallplates.web.api.fields import (
    MAX_IDS,
    TOP_K,
    check_elements,
    each,
    fields_from_body,
    fields_from_json,
    rows_of,
)
from smallplates.web.api.pipeline import (
    JSON_OBJECT,
    OBJECT,
    Call,
    Pipeline,
    Target,
    call_of,
    parse_number,
)
from smallplates.web.api.texts import input_of
from smallplates.web.dialects import huggingface, native, tei, tfserving
from smallplates.web.http.body import decode_json, json_response
from smallplates.web.http.request_context import PROBES, RequestContext
from smallplates.web.inference.served_model import Answer, Input, check_count

KINDS = tei.ANY | huggingface.KINDS
WHOLE = re.compile(rb"(-?\d+)\.0+")
Raw = msgspec.Raw | msgspec.UnsetType


class Whose(msgspec.Struct):
    """The parts of a body that say whose it is."""

    instances: Raw = msgspec.UNSET
    inputs: Raw = msgspec.UNSET
    texts: Raw = msgspec.UNSET
    text_pairs: Raw = msgspec.UNSET


class Instances(msgspec.Struct):
    """A body of Vertex AI; `parameters` are further fields of every instance."""

    instances: list[msgspec.Raw]
    parameters: dict[str, msgspec.Raw] | None = None


class PairsRequest(msgspec.Struct):
    """A body of LangChain's."""

    text_pairs: list[tuple[str, str]]


WHOSE, INSTANCES = msgspec.json.Decoder(Whose), msgspec.json.Decoder(Instances)


def decode(entry: CatalogEntry, whose: Whose, body: bytes) -> Call:
    """Returns the call for instances, or for a body of `/predict`. Raises RequestError."""
    model = entry.model
    if entry.takes_tensors:
        columns = tfserving.decode(body, entry, model.largest_request)
        columns.respond = lambda answer, _: json_response(tfserving.encode(columns, answer))
        return columns
    if by_rows := whose.instances is not msgspec.UNSET:
        check_elements(body, MAX_IDS)
        asked = decode_json(INSTANCES, body)
        check_count(len(asked.instances), model.largest_request)
        read = partial(fields_of, model.task, asked.parameters or {})
        rows = [dict(fields) for fields in each(read, asked.instances)]
    else:
        rows = [dict(fields_from_body(model.task, body, None, native=True))]
    given = {row.pop(TOP_K, None) for row in rows}
    if len(given) > 1:
        raise InvalidRequestError(f"send {TOP_K} once, in parameters")
    top = given.pop()
    top_k = parse_number(None if top is None else str(top), TOP_K, model.task.most_candidates)
    if by_rows:
        call = Call([Input(len(body), partial(dict, row)) for row in rows], top_k=top_k)
        call.respond = lambda answer, _: json_response({"predictions": native.answers(call, answer)})
    else:
        call = call_of(model, rows[0], len(body), top_k)
        call.respond = lambda answer, _: json_response(call.one_or_all(native.answers(call, answer)))
    return call


def fields_of(task: Task, parameters: dict[str, msgspec.Raw], instance: msgspec.Raw) -> Fields:
    """Returns the fields of an instance: an object, or the value of the first field.

    Bytes may also be `{"b64": "..."}`. Raises RequestError.
    """
    if bytes(memoryview(instance)[:1]) == b"{":
        values = decode_json(OBJECT, instance)
        if [*values] == ["b64"] and task.request and task.request[0].is_bytes:
            values = {task.request[0].name: values["b64"]}
    elif not task.takes_json:
        values = {task.request[0].name: instance}
    elif parameters:
        raise InvalidRequestError("with parameters, instances must be objects")
    else:
        return fields_from_json(task, bytes(instance))
    given = {name: whole(value) for name, value in {**parameters, **values}.items()}
    fields = fields_from_json(task, msgspec.json.encode(given), native=True)
    if rows_of(task, fields, len(instance)) is not None:
        raise InvalidRequestError("send several instances instead of a list in one")
    return fields


def scores(_: CatalogEntry, asked: PairsRequest, size: int) -> Call:
    """Returns the call for pairs of texts. Raises RequestError."""

    def respond(answer: Answer, _: RequestContext) -> Response:
        return json_response({"scores": [best["score"] for best, *_ in answer.candidates]})

    pairs = [
        input_of(size, query=query, texts=[text], truncate=True) for query, text in asked.text_pairs
    ]
    return Call(pairs, respond=respond)


def whole(value: msgspec.Raw) -> msgspec.Raw:
    """Returns 2.0 as 2, and other values as they are: clients of Vertex AI have only floats."""
    found = WHOLE.fullmatch(memoryview(value))
    return msgspec.Raw(found[1]) if found else value


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds SageMaker's paths, and those that Vertex AI names in the environment."""
    service, others = pipeline.service, huggingface.finder(routes, catalog)
    pairs = routes.finder({RANKING: BodyKind(PairsRequest, scores, {"text_pairs": [tei.TEXTS]})})

    def find(body: bytes, **_: str) -> Target[Any]:
        entry = catalog.find(service.default)
        whose = Whose() if JSON_OBJECT.match(body) is None else decode_json(WHOSE, body)
        is_other = (whose.inputs, whose.texts) != (msgspec.UNSET, msgspec.UNSET)
        if entry.model.description.task in KINDS:
            if whose.text_pairs is not msgspec.UNSET:
                return pairs(body)
            if is_other:
                return others(body)
        return Target(entry.model, partial(decode, entry, whose), entry.signature)

    for path in paths("/invocations", "AIP_PREDICT_ROUTE"):
        routes.by_body(path, "Call the default model", KINDS, "instances", find=find, takes_all=True)

    async def health() -> Response:
        service.check_ready()
        return Response()

    for path in paths("/ping", "AIP_HEALTH_ROUTE"):
        PROBES.add(path)
        routes.about(path)(health)


def paths(own: str, variable: str) -> list[str]:
    """Returns SageMaker's path and, if it is another, that of Vertex AI. Raises ConfigurationError."""
    other = os.environ.get(variable) or own
    if not other.startswith("/") or "{" in other:
        raise ConfigurationError(f"{variable} must be a path such as {own}, not {other[:80]!r}")
    return sorted({own, other})


DIALECT = Dialect(
    add_routes,
    "SageMaker and Vertex AI",
    tei.error_response,
    tei.TeiError,
    about="What the platforms of Amazon and Google expect of a container.",
)

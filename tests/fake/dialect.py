"""A protocol that is not in the package: the body of `POST /v1/labels` names the model."""

from typing import Any

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel

from smallplates.errors import ServingError
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import Dialect, Routes
from smallplates.web.api.pipeline import Call, Pipeline, Target
from smallplates.web.http.body import decode_json, json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer, Input


class LabelsRequest(msgspec.Struct):
    """The body of a call."""

    model: str
    input: str


class Problem(BaseModel):
    """The body of an error."""

    problem: dict[str, str]


REQUEST = msgspec.json.Decoder(LabelsRequest)


def error(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"problem": {"message", "type"}}`."""
    problem = {"message": error.detail, "type": error.code}
    return json_response({"problem": problem}, error.status, error.headers)


def example(entry: CatalogEntry) -> Any:
    """Returns the body of a call with a model's example."""
    return {"model": entry.name, "input": entry.model.task.json_example["text"]}


def decode(body: bytes) -> Call:
    """Returns the call for a body."""
    text = decode_json(REQUEST, body).input
    return Call([Input(len(body), lambda: {"text": text})], respond=respond)


def respond(answer: Answer, _: RequestContext) -> Response:
    """Returns the best label."""
    return json_response({"label": answer.candidates[0][0]["label"]})


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the only path."""

    def find(body: bytes) -> Target[Call]:
        return Target(catalog.find(decode_json(REQUEST, body).model).model, decode)

    @routes.call("/v1/labels", "Call a model", {"application/json": {"schema": {"type": "object"}}})
    async def labels(request: Request) -> Response:
        return await pipeline.http(request, find)


DIALECT = Dialect(add_routes, "Labels", error, Problem, example, takes_tensors=False)

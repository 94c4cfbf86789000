"""TorchServe's inference API: `/predictions`, `/ping`, `/models`.

Any request may be sent as JSON or as a form. If a request needs only one field, it may also be the body
or the form field `data`. Classifiers answer like TorchServe's image classifier, with the five best
labels and their probabilities; other models answer as in `/predict`. Several inputs, such as a form
that repeats `data`, get a list of answers.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from smallplates.errors import InvalidRequestError, ServingError
from smallplates.tasks.base import Candidate, Fields, Task
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.dialect import Dialect, Routes
from smallplates.web.api.documentation import BINARY
from smallplates.web.api.fields import fields_from_body, inline_bytes
from smallplates.web.api.pipeline import Call, Pipeline, Target, call_of
from smallplates.web.http.body import json_response
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer

TOP = 5
METHODS = ("POST", "PUT")
BODIES = {"application/json": {"schema": {"type": "object"}}, "application/octet-stream": BINARY}
FAILED = "InternalServerException"
FORM_FIELDS = ("data", "body")
STATUS = {422: 400}
TYPES = {
    400: "BadRequestException",
    401: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    408: "RequestTimeoutException",
    413: "RequestEntityTooLargeException",
    415: "UnsupportedMediaTypeException",
    501: "NotImplementedException",
    503: "ServiceUnavailableException",
    504: "RequestTimeoutException",
}


class TorchServeError(BaseModel):
    """What went wrong, in words."""

    code: int
    type: str
    message: str


def error_response(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"code", "type", "message"}`."""
    status = STATUS.get(error.status, error.status)
    kind = TYPES.get(status, FAILED)
    return json_response({"code": status, "type": kind, "message": error.detail}, status, error.headers)


def find(catalog: ModelCatalog, name: str, version: str | None) -> CatalogEntry:
    """Finds a model; version 1.0, TorchServe's default, is the same as 1. Raises NotFoundError."""
    whole = (version or "").removesuffix(".0")
    return catalog.find(name, whole if whole.isdecimal() else version)


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths of TorchServe's inference API."""
    add_predictions(routes, pipeline, catalog)

    @routes.about("/ping")
    async def ping() -> Response:
        ready = pipeline.service.is_ready
        return json_response(health(ready), 200 if ready else 500)

    @routes.about("/models", "Names of the models, in service or not")
    async def all_models() -> Response:
        models = [
            {"modelName": name, "modelUrl": model.path.name} for name, model in catalog.names.items()
        ]
        return json_response({"models": models, **catalog.cards()})

    @routes.about("/models/{model}", "How the model is served", 404, 503)
    @routes.about("/models/{model}/{version}")
    async def one_model(model: str, version: str | None = None) -> Response:
        one = None if version == "all" else version
        return json_response([describe(find(catalog, model, one))])


def health(ready: bool) -> dict[str, str]:
    """Returns the answer to a ping."""
    return {"status": "Healthy" if ready else "Unhealthy"}


def add_predictions(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the paths of `/predictions`, with and without a version."""

    @routes.call("/predictions/{model}", "Call the model", BODIES, methods=METHODS)
    @routes.call("/predictions/{model}/{version}", "Call a version", BODIES, methods=METHODS)
    async def predict(model: str, request: Request, version: str | None = None) -> Response:
        entry, content_type = find(catalog, model, version), request.headers.get("content-type")
        task = entry.model.task

        def read(body: bytes) -> Fields:
            return fields_from_body(task, body, content_type, aliases=FORM_FIELDS)

        target = target_of(entry, read, len, inline_bytes(task, content_type))
        return await pipeline.http(request, target)


def target_of(
    entry: CatalogEntry, read: Callable[[Any], Fields], size: Callable[[Any], int], inline: int
) -> Target[Call]:
    """Returns the model, and how its body is decoded: `read` returns the fields, `size` the bytes.

    Raises InvalidRequestError for a model that takes tensors.
    """
    task = entry.model.task
    if entry.takes_tensors:
        raise InvalidRequestError(f"{entry.name} takes tensors, which this protocol does not support")
    count = min(TOP, task.most_candidates) if task.labels else None

    def decode(body: Any) -> Call:
        call = call_of(entry.model, read(body), size(body), count)
        call.respond = lambda answer, _: json_response(answers(call, answer))
        return call

    return Target(entry.model, decode, inline_bytes=inline)


def answers(call: Call, result: Answer) -> Any:
    """Returns the answer of each input, or of the only one."""
    return call.one_or_all([answer(result.task, top) for top in result.candidates])


def answer(task: Task, top: Sequence[Candidate]) -> Any:
    """Returns the labels with their probabilities or, if there are no labels, the native answer.

    If several of the classes have the same label, it gets the probability of the best one.
    """
    if not task.labels:
        return task.to_json(top, with_top=False)
    label, probability = (field.name for field in task.answer)
    answers: dict[str, float] = {}
    for candidate in top:
        answers.setdefault(candidate[label], candidate[probability])
    return answers


def describe(entry: CatalogEntry) -> dict[str, Any]:
    """Describes a model as TorchServe does, as far as that applies here."""
    model = entry.model
    return {
        "modelName": entry.name,
        "modelVersion": entry.version,
        "modelUrl": model.handle.model.path.name,
        "runtime": model.report.info.backend,
        "minWorkers": model.workers,
        "maxWorkers": model.workers,
        "batchSize": model.report.batch_cap,
        "maxBatchDelay": model.settings.max_queue_delay_us // 1000,
        "loadedAtStartup": True,
        "workers": [
            {"id": str(index), "status": "READY" if index < model.ready_workers else "UNLOADING"}
            for index in range(model.workers)
        ],
    }


DIALECT = Dialect(
    add_routes,
    "TorchServe",
    error_response,
    TorchServeError,
    lambda entry: entry.model.task.json_example,
    takes_tensors=False,
    prefixes=("/predictions/", "/ping/", "/models/"),
    about="For clients of TorchServe: its inference API.",
    grpc="smallplates.web.dialects.torchserve_grpc:services",
)

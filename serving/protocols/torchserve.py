"""TorchServe's inference API: `/predictions`, `/ping`, `/models`.

A photo comes as the body or as the form field `data`, and is answered as TorchServe's image classifier
does: the five best labels with their probabilities.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from serving.engine.memory import Signature
from serving.errors import InvalidRequestError, NotSupportedError, RetryableError, ServingError
from serving.http import body
from serving.http.context import RequestContext
from serving.http.middleware import FastRoute
from serving.http.responses import json_response
from serving.inference.service import Classifier
from serving.protocols.admission import Admission, unless_disconnected
from serving.protocols.catalog import CatalogEntry, ModelCatalog

PREDICTIONS = "/predictions/{model}"
SEGMENTS = ("predictions", "explanations", "ping", "models")
TOP = 5
FORM_FIELDS = (b"data", b"body", *body.IMAGE_FIELDS)
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


def error_response(error: ServingError, _: RequestContext) -> Response:
    """`{"code", "type", "message"}`."""
    status = STATUS.get(error.status, error.status)
    kind = TYPES.get(status, "InternalServerException")
    return json_response({"code": status, "type": kind, "message": error.detail}, status, error.headers)


def picture(content: bytes, content_type: str | None) -> bytes:
    """The photo's bytes; every content type but a form's, and JSON's base64, is the photo itself."""
    media_type, options = body.parsed_content_type(content_type or "")
    if media_type == b"multipart/form-data":
        return body.from_multipart(content, options.get(b"boundary"), FORM_FIELDS, nameless=True)
    if media_type == b"application/json":
        return body.from_json(content)
    return content


def find(models: ModelCatalog, name: str, version: str | None) -> CatalogEntry:
    """Version 1 is also 1.0, as TorchServe's archives have it by default. Raises NotFoundError."""
    return models.find(name, version and version.removesuffix(".0"))


class Predict:
    """The handler of `/predictions`."""

    def __init__(self, classifier: Classifier, door: Admission, models: ModelCatalog) -> None:
        self.classifier = classifier
        self.door = door
        self.models = models

    async def __call__(self, name: str, version: str | None, request: Request) -> Response:
        """Raises ServingError, and ClientDisconnect."""
        model = find(self.models, name, version)
        if model.kind is Signature.TENSOR:
            raise InvalidRequestError(f"{name} takes tensors, which this protocol has no form for")
        terms = self.door.admit(request)
        async with self.door.body(request, compressed=True) as content:
            read = partial(picture, content, request.headers.get("content-type"))
            work = self.classifier.classify(read, len(content), TOP, terms.deadline(), terms.bulk)
            prediction = await unless_disconnected(request, work)
        RequestContext.of(request).set_timings(prediction.stages)
        return json_response({score.label: score.probability for score in prediction.top})

    def fast_routes(self) -> dict[str, FastRoute]:
        """The paths that most requests are for, without a version."""
        return {
            f"/predictions/{name}": FastRoute(PREDICTIONS, partial(self, name, None))
            for name in self.models.kinds
        }


def create_router(classifier: Classifier, models: ModelCatalog, handler: Predict) -> APIRouter:
    """Bound to one classifier; bodies of any content type have no place in OpenAPI."""
    router = APIRouter(include_in_schema=False)

    @router.post(PREDICTIONS)
    @router.put(PREDICTIONS)
    async def predict(model: str, request: Request) -> Response:
        return await handler(model, None, request)

    @router.post("/predictions/{model}/{version}")
    @router.put("/predictions/{model}/{version}")
    async def predict_version(model: str, version: str, request: Request) -> Response:
        return await handler(model, version, request)

    @router.post("/explanations/{model}")
    @router.post("/explanations/{model}/{version}")
    async def explain(model: str, version: str | None = None) -> Response:
        find(models, model, version)
        raise NotSupportedError("predictions are not explained here")

    @router.get("/ping")
    async def ping() -> Response:
        try:
            classifier.check_ready()
        except RetryableError:
            return json_response({"status": "Unhealthy"}, 500)
        return json_response({"status": "Healthy"})

    @router.get("/models")
    async def all_models() -> Response:
        url = str(classifier.settings.model_dir.name)
        return json_response({"models": [{"modelName": name, "modelUrl": url} for name in models.kinds]})

    @router.get("/models/{model}")
    @router.get("/models/{model}/{version}")
    async def one_model(model: str, version: str | None = None) -> Response:
        wanted = None if version == "all" else version
        return json_response([describe(classifier, find(models, model, wanted))])

    return router


def describe(classifier: Classifier, model: CatalogEntry) -> dict[str, Any]:
    """What TorchServe tells of a model, as far as it has a meaning here."""
    memory = classifier.served.client.memory
    workers, ready = memory.layout.workers, memory.ready_workers[0]
    profile = classifier.served.handle.profile
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": classifier.settings.model_dir.name,
        "runtime": profile["info"]["backend"],
        "minWorkers": workers,
        "maxWorkers": workers,
        "batchSize": profile["batch_cap"],
        "maxBatchDelay": classifier.settings.max_queue_delay_us // 1000,
        "loadedAtStartup": True,
        "workers": [
            {"id": str(index), "status": "READY" if index < ready else "UNLOADING"}
            for index in range(workers)
        ],
    }

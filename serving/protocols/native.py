"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

from serving.http import body
from serving.http.context import RequestContext
from serving.http.responses import json_response
from serving.inference.active_model import Prediction
from serving.inference.service import Classifier
from serving.protocols import native_docs as docs
from serving.protocols.admission import Door, number, unless_disconnected
from serving.protocols.schemas import HealthResponse, ModelResponse, PredictResponse


def content(prediction: Prediction, with_top: bool) -> dict[str, Any]:
    """What a 200 says."""
    scores = [{"label": s.label, "probability": s.probability} for s in prediction.top]
    best = prediction.top[0]
    said: dict[str, Any] = {"prediction": best.label, "probability": best.probability}
    if with_top:
        said["top"] = scores
    return said


class Predict:
    """The handler of `POST /predict`, bound to one classifier."""

    def __init__(self, classifier: Classifier, door: Door) -> None:
        self.classifier = classifier
        self.door = door

    async def __call__(self, request: Request) -> Response:
        """Raises ServingError, and ClientDisconnect."""
        terms = self.door.admit(request)
        classifier = self.classifier
        top_k = number(request.query_params.get("top_k"), "top_k", len(classifier.served.labels))
        async with self.door.body(request) as sent:
            read = partial(body.picture, sent, request.headers.get("content-type"))
            work = classifier.classify(read, len(sent), top_k or 1, terms.deadline(), terms.bulk)
            prediction = await unless_disconnected(request, work)
        RequestContext.of(request).time_went_to(prediction.stages)
        return json_response(content(prediction, top_k is not None))


def create_router(classifier: Classifier, predict: Predict) -> APIRouter:
    """All native paths, bound to one classifier."""
    router = APIRouter()

    @router.post(
        "/predict",
        summary="Classify a photo",
        response_model=PredictResponse,
        responses=docs.errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
        openapi_extra=docs.predict_request(len(classifier.model.labels)),
        dependencies=predict.door.check_key.documented(),
    )
    async def classify_a_photo(request: Request) -> Response:
        """Send the photo as base64 in JSON, as the body itself, or as a form's field `image`.

        The header `X-Request-Timeout-Ms` asks for an answer within that time, or 504.
        """
        return await predict(request)

    @router.get("/health/live", summary="The process answers", response_model=HealthResponse)
    async def live() -> Response:
        return json_response({"status": "live"})

    @router.get(
        "/health/ready",
        summary="Photos can be classified",
        response_model=HealthResponse,
        responses=docs.errors(503),
    )
    async def ready() -> Response:
        classifier.check_ready()
        return json_response({"status": "ready"})

    @router.get(
        "/model",
        summary="What is served, and how",
        response_model=ModelResponse,
        responses=docs.errors(503),
    )
    async def model() -> Response:
        return json_response(classifier.describe())

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(classifier.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("docs")

    return router

"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

import asyncio
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from serving import body
from serving.classifier import Classifier
from serving.context import RequestContext
from serving.errors import InvalidRequestError
from serving.frontends import native_docs as docs
from serving.frontends.guard import KeyCheck
from serving.responses import json_response
from serving.schemas import HealthResponse, ModelResponse, PredictResponse
from serving.served import Prediction

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`; cancels it when the client goes away first. Raises ClientDisconnect then.

    The body must have been read: the next message can only be the disconnect.
    """
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 a coroutine runs in a task
    watching = True

    def on_gone(_: object) -> None:
        if watching:
            this.cancel()

    gone = asyncio.ensure_future(request.receive())
    gone.add_done_callback(on_gone)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done():
            raise
        this.uncancel()
        raise ClientDisconnect from None
    finally:
        watching = False
        gone.cancel()


def number(text: str | None, name: str, largest: int) -> int | None:
    """A whole number from 1 to `largest`, or None where none was sent. Raises InvalidRequestError.

    By hand, and not by FastAPI's parameters, which the short way to the handler goes around.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= largest):
        raise InvalidRequestError(f"{name} must be a whole number from 1 to {largest}")
    return int(text)


def is_bulk(text: str | None) -> bool:
    """Whether X-Priority asks to give way. Raises InvalidRequestError for an unknown class."""
    if text in (None, "interactive"):
        return False
    if text == "bulk":
        return True
    raise InvalidRequestError("X-Priority must be interactive or bulk")


def answer(prediction: Prediction, with_top: bool) -> Response:
    """The body of a 200."""
    scores = [{"label": s.label, "probability": s.probability} for s in prediction.top]
    best = prediction.top[0]
    content: dict[str, Any] = {"prediction": best.label, "probability": best.probability}
    if with_top:
        content["top"] = scores
    return json_response(content)


class Predict:
    """The handler of `POST /predict`, bound to one classifier."""

    def __init__(self, classifier: Classifier) -> None:
        settings = classifier.settings
        self.classifier = classifier
        self.check_key = KeyCheck(settings.api_key)
        self.largest_timeout_ms = settings.request_timeout_ms
        self.reader = body.BodyReader(
            settings.max_body_bytes, settings.max_buffered_bytes, settings.body_timeout_ms / 1000
        )

    async def __call__(self, request: Request) -> Response:
        """Raises ServingError, and ClientDisconnect."""
        self.check_key(request)
        classifier = self.classifier
        top_k = number(request.query_params.get("top_k"), "top_k", len(classifier.model.labels))
        wanted_ms = number(
            request.headers.get("x-request-timeout-ms"), "X-Request-Timeout-Ms", self.largest_timeout_ms
        )
        bulk = is_bulk(request.headers.get("x-priority"))
        classifier.check_free_slot(bulk)
        async with self.reader.read(request) as content:
            read = partial(body.picture, content, request.headers.get("content-type"))
            deadline = time.monotonic() + (wanted_ms or self.largest_timeout_ms) / 1000
            prediction = await unless_disconnected(
                request, classifier.classify(read, len(content), top_k or 1, deadline, bulk)
            )
        RequestContext.of(request).time_went_to(prediction.stages)
        return answer(prediction, top_k is not None)


def create_router(classifier: Classifier, predict: Predict) -> APIRouter:
    """All native paths, bound to one classifier."""
    router = APIRouter()

    @router.post(
        "/predict",
        summary="Classify a photo",
        response_model=PredictResponse,
        responses=docs.errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
        openapi_extra=docs.predict_request(len(classifier.model.labels)),
        dependencies=predict.check_key.documented(),
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

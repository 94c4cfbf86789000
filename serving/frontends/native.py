"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import ClientDisconnect

from serving import body
from serving.classifier import Classifier, Prediction
from serving.context import RequestContext
from serving.frontends import native_docs as docs
from serving.frontends.guard import guard
from serving.responses import json_response
from serving.schemas import HealthResponse, ModelResponse, PredictResponse

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and cancels it when the client goes away first. Raises ClientDisconnect then.

    The body must have been read: the next message can only be the disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def answer(prediction: Prediction, with_top: bool) -> Response:
    """The body of a 200."""
    scores = [{"label": s.label, "probability": s.probability} for s in prediction.top]
    best = prediction.top[0]
    content: dict[str, Any] = {"prediction": best.label, "probability": best.probability}
    if with_top:
        content["top"] = scores
    return json_response(content)


def create_router(classifier: Classifier) -> APIRouter:
    """All native paths, bound to one classifier."""
    router = APIRouter()
    settings = classifier.settings
    key = settings.api_key.get_secret_value() if settings.api_key else None
    reader = body.BodyReader(
        settings.max_body_bytes, settings.max_buffered_bytes, settings.body_timeout_ms / 1000
    )
    class_count = Annotated[int, Field(ge=1, le=len(classifier.model.labels))]
    top_k_query = Query(description="Also list the k most probable classes.")
    timeout_header = Header(
        ge=1,
        le=settings.request_timeout_ms,
        alias="X-Request-Timeout-Ms",
        include_in_schema=False,  # a tool that tries its range would be answered 504, as it asked
    )

    priority_header = Header(alias="X-Priority", description="`bulk` gives way to everything else.")

    @router.post(
        "/predict",
        summary="Classify a photo",
        response_model=PredictResponse,
        responses=docs.errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
        openapi_extra=docs.predict_body(),
        dependencies=guard(key),
    )
    async def predict(
        request: Request,
        top_k: Annotated[class_count | SkipJsonSchema[None], top_k_query] = None,
        timeout_ms: Annotated[int, timeout_header] = settings.request_timeout_ms,
        priority: Annotated[Literal["interactive", "bulk"], priority_header] = "interactive",
    ) -> Response:
        """Send the photo as base64 in JSON, as the body itself, or as a form's field `image`.

        The header `X-Request-Timeout-Ms` asks for an answer within that time, or 504.
        """
        context = RequestContext.of(request)
        bulk = priority == "bulk"
        classifier.check_free_slot(bulk)
        async with reader.read(request) as content:
            read = partial(body.picture, content, request.headers.get("content-type"))
            deadline = time.monotonic() + timeout_ms / 1000
            prediction = await unless_disconnected(
                request, classifier.classify(read, top_k or 1, deadline, bulk)
            )
        context.stages = {
            "decode": prediction.decode_s,
            "queue": prediction.queue_s,
            "infer": prediction.infer_s,
        }
        return answer(prediction, top_k is not None)

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

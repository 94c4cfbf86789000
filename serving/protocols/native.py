"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

import base64
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from serving.http.access_log import RequestContext
from serving.http.body import image_bytes
from serving.http.responses import json_response
from serving.inference.active_model import EncodedImage
from serving.inference.service import InferenceService
from serving.model import ImagePipeline, Thresholds
from serving.protocols.admission import Admission, DirectRoute, parse_number, unless_disconnected
from serving.tasks.image.classification import Score

EXAMPLE = Path(__file__).with_name("example.jpg")
CODES = {
    400: ("the body, the encoding or the picture cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes or too many pixels", "payload_too_large"),
    415: ("a content type that is not understood", "unsupported_media_type"),
    422: ("another shape than documented", "invalid_request"),
    500: ("the server's fault; the request may be tried again", "internal_error"),
    503: ("no free slot, shutting down, or not ready", "overloaded"),
    504: ("the deadline passed", "deadline_exceeded"),
}


class PredictRequest(BaseModel):
    """An image as text."""

    image: str = Field(
        min_length=1,
        description="The picture file in base64; a `data:image/...;base64,` prefix is accepted.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class LabelProbability(BaseModel):
    """One class."""

    label: str
    probability: float = Field(ge=0, le=1)


class PredictResponse(BaseModel):
    """The most probable class; `top` only when `top_k` was asked for."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"prediction": "Bread", "probability": 0.97}}
    )

    prediction: str
    probability: float = Field(ge=0, le=1)
    top: list[LabelProbability] | None = Field(default=None, description="Most probable first.")


class ErrorResponse(BaseModel):
    """What went wrong, in words and as a code."""

    detail: str
    code: str
    request_id: str


class HealthResponse(BaseModel):
    """The process answers, or the model does."""

    status: str


class GpuResponse(BaseModel):
    """One GPU within the last second, whoever uses it."""

    index: int
    busy_percent: int = Field(description="Share of the time in which any kernel ran.")
    memory_used_bytes: int
    memory_total_bytes: int


class ModelResponse(BaseModel):
    """The served model and how it is computed."""

    name: str
    version: str
    description: str
    labels: list[str]
    image: ImagePipeline
    thresholds: Thresholds | None
    accuracy: dict[str, Any]  # as written in model.json
    backend: str
    device: str
    execution_provider: str
    precision: str = Field(description="`fp32`, `fp16` or `int8`.")
    precision_reason: str = Field(description="Why that precision was taken.")
    fallback: str | None = Field(description="Why `auto` did not take the GPU.")
    instances: int
    max_batch_size: int
    web_processes: int
    web_processes_reason: str | None = Field(description="What `auto` has chosen their number by.")
    batch_ms: dict[int, float] = Field(description="Measured at warm-up: batch size to ms.")
    idle_threads: int | None = Field(description="Threads for a picture that is alone in the service.")
    gpus: list[GpuResponse] = Field(description="Empty on a CPU, and where NVML is missing.")


def prediction_json(top: list[Score], with_top: bool) -> dict[str, Any]:
    """Returns the content of a 200: the best class, and with `with_top` all of `top`."""
    content: dict[str, Any] = {"prediction": top[0].label, "probability": top[0].probability}
    if with_top:
        content["top"] = [{"label": s.label, "probability": s.probability} for s in top]
    return content


def create_router(service: InferenceService, admission: Admission) -> APIRouter:
    """Returns all native paths."""
    router = APIRouter()
    router.routes.extend(predict_router(service, admission).routes)

    @router.get("/health/live", summary="The process answers", response_model=HealthResponse)
    async def live() -> Response:
        return json_response({"status": "live"})

    @router.get(
        "/health/ready",
        summary="Photos can be classified",
        response_model=HealthResponse,
        responses=documented_errors(503),
    )
    async def ready() -> Response:
        service.check_ready()
        return json_response({"status": "ready"})

    @router.get(
        "/model",
        summary="What is served, and how",
        response_model=ModelResponse,
        responses=documented_errors(503),
    )
    async def model() -> Response:
        return json_response(service.describe())

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("docs")

    return router


def predict_router(service: InferenceService, admission: Admission) -> APIRouter:
    """Returns `POST /predict`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post(
        "/predict",
        summary="Classify a photo",
        response_model=PredictResponse,
        responses=documented_errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
        openapi_extra=predict_request(len(service.model.labels)),
        dependencies=admission.check_key.documented(),
    )
    async def classify_a_photo(request: Request) -> Response:
        """Send the photo as base64 in JSON, as the body itself, or as a form's field `image`.

        The header `X-Request-Timeout-Ms` asks for an answer within that time, or 504.
        """
        options = admission.admit(request)
        top_k = parse_number(request.query_params.get("top_k"), "top_k", len(service.active.labels))
        async with admission.body(request) as body:
            find_image = partial(image_bytes, body, request.headers.get("content-type"))
            images = [EncodedImage(len(body), find_image)]
            work = service.classify(images, top_k or 1, options.deadline(), options.bulk)
            found = await unless_disconnected(request, work)
        RequestContext.of(request).set_timings(found.timings)
        return json_response(prediction_json(found.tops[0], top_k is not None))

    return router


def documented_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for these statuses, each with an example of its body."""
    return {status: documented_error(status) for status in statuses}


def documented_error(status: int) -> dict[str, Any]:
    """Documents one error."""
    text, code = CODES[status]
    example = {"detail": text, "code": code, "request_id": "5f0c9a61e5b14a06a4b3f6d6f8b3c7aa"}
    documented: dict[str, Any] = {
        "model": ErrorResponse,
        "description": text[0].upper() + text[1:],
        "content": {"application/json": {"example": example}},
    }
    if status == 503:
        seconds = {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        documented["headers"] = {"Retry-After": seconds}
    return documented


def predict_request(classes: int) -> dict[str, Any]:
    """Documents the parameters and the three kinds of body of `/predict`, with a real image as example.

    X-Request-Timeout-Ms is left out: a tool that tries its range gets the 504 that it asks for.
    """
    top_k = {"type": "integer", "minimum": 1, "maximum": classes}
    priority = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
    parameters = [
        parameter("top_k", "query", top_k, "Also list the k most probable classes."),
        parameter("X-Priority", "header", priority, "`bulk` gives way to everything else."),
    ]
    binary = {"schema": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "properties": {"image": {"type": "string", "format": "binary"}},
        "required": ["image"],
    }
    example = {"image": base64.b64encode(EXAMPLE.read_bytes()).decode()}
    content = {
        "application/json": {"schema": PredictRequest.model_json_schema(), "example": example},
        "image/jpeg": binary,
        "application/octet-stream": binary,
        "multipart/form-data": {"schema": form},
    }
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


def parameter(name: str, place: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Documents an optional parameter."""
    return {"name": name, "in": place, "schema": schema, "description": description}

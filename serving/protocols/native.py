"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from serving.description import ImagePipeline, TextPipeline, Thresholds
from serving.http.access_log import RequestContext
from serving.http.responses import json_response
from serving.inference.active_model import Input
from serving.inference.service import InferenceService
from serving.protocols.admission import Admission, DirectRoute, parse_number, unless_disconnected
from serving.protocols.fields import fields_from_body, rows_of
from serving.tasks.base import Task

CODES = {
    400: ("the body, its encoding or its content cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes, pixels, tokens or numbers", "payload_too_large"),
    415: ("a content type that is not understood", "unsupported_media_type"),
    422: ("another shape than documented", "invalid_request"),
    500: ("the server's fault; the request may be tried again", "internal_error"),
    503: ("no free slot, shutting down, or not ready", "overloaded"),
    504: ("the deadline passed", "deadline_exceeded"),
}


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
    title: str = Field(description="Heading for people, such as the page's; may be empty.")
    description: str
    task: str = Field(description="What a request means.")
    labels: list[str]
    image: ImagePipeline | None
    text: TextPipeline | None = Field(default=None, description="Of tasks about texts only.")
    request_schema: dict[str, Any] | None = Field(
        description="JSON schema of `POST /predict`; null for a graph that is asked in tensors only."
    )
    answer_schema: dict[str, Any] | None = Field(description="JSON schema of the answer.")
    example: Any = Field(description="A request in JSON; null if the model has none.")
    limits: dict[str, int] = Field(
        description="Most of what a request may have: `request_bytes`, and as the task has it "
        "`image_pixels`, `text_bytes`, `tokens`, `question_tokens`, `context_tokens`."
    )
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
    idle_threads: int | None = Field(description="Threads for an input that is alone in the service.")
    gpus: list[GpuResponse] = Field(description="Empty on a CPU, and where NVML is missing.")


def create_router(service: InferenceService, admission: Admission) -> APIRouter:
    """Returns all native paths."""
    router = APIRouter()
    router.routes.extend(predict_router(service, admission).routes)

    @router.get("/health/live", summary="The process answers", response_model=HealthResponse)
    async def live() -> Response:
        return json_response({"status": "live"})

    @router.get(
        "/health/ready",
        summary="Requests can be answered",
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
        summary="Ask the model",
        responses=documented_errors(400, 401, 408, 413, 415, 422, 500, 503, 504),
        dependencies=admission.check_key.documented(),
    )
    async def predict(request: Request) -> Response:
        """Send JSON; a request of one field may also be the body itself, or a form's field.

        The header `X-Request-Timeout-Ms` asks for an answer within that time, or 504.
        """
        options = admission.admit(request)
        task = service.active.task
        top_k = parse_number(request.query_params.get("top_k"), "top_k", task.most_candidates)
        async with admission.body(request) as body:
            content_type = request.headers.get("content-type")
            inputs, is_list = await inputs_of(service, task, body, content_type, options.bulk)
            work = service.predict(inputs, top_k or 1, options.deadline(), options.bulk)
            found = await unless_disconnected(request, work)
        RequestContext.of(request).set_timings(found.timings)
        answers = [found.task.to_json(top, top_k is not None) for top in found.tops]
        return json_response(answers if is_list else answers[0])

    return router


async def inputs_of(
    service: InferenceService, task: Task, body: bytes, content_type: str | None, bulk: bool
) -> tuple[list[Input], bool]:
    """Returns the inputs in a body, and whether lists had them. Raises RequestError.

    Only where there may be lists, the body is parsed here, on a thread unless it is small.
    """
    find = partial(fields_from_body, task, body, content_type, lists=True)
    if not task.list_fields:
        return [Input(len(body), find)], False
    small = len(body) <= task.most_cheap_bytes
    fields = find() if small else await service.run_on_thread(find, bulk)
    rows = rows_of(task, fields)
    each_found = [fields] if rows is None else rows
    return [Input(len(body), partial(dict, each)) for each in each_found], rows is not None


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

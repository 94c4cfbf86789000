"""The native API: `/predict`, `/health`, `/model`, `/metrics`."""

from functools import partial
from typing import Any, Literal

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from smallplates.engine.backend import Trial
from smallplates.engine.gpu_monitor import GpuFigures
from smallplates.errors import InvalidRequestError
from smallplates.models.description import EmbeddingPipeline, ImagePipeline, TextPipeline, Thresholds
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import OF_CALLS, Dialect, Routes
from smallplates.web.api.fields import TOP_K, check_names, fields_from_body, inline_bytes
from smallplates.web.api.pipeline import Call, Pipeline, Target, call_of, parse_number
from smallplates.web.http.body import json_response
from smallplates.web.inference.served_model import ServedModel


class HealthResponse(BaseModel):
    """Health of the process."""

    status: str


class ReadyResponse(HealthResponse):
    """Health of the default model, and the state of each model."""

    models: dict[str, str] = Field(
        description="State of each model: ready, asleep, loading or unavailable."
    )


class ModelResponse(BaseModel):
    """A model and how it is served."""

    name: str
    version: str
    title: str = Field(description="Heading for people, such as the page's; may be empty.")
    description: str
    sha256: str | None = Field(description="Digest of its `model.json`; null if it has none.")
    task: str = Field(description="What a request means.")
    labels: list[str]
    image: ImagePipeline | None
    text: TextPipeline | None = Field(default=None, description="For texts only.")
    embedding: EmbeddingPipeline | None = Field(default=None, description="For embeddings only.")
    request_schema: dict[str, Any] | None = Field(
        description="JSON schema of `POST /predict`; null for a graph that is called with tensors only."
    )
    answer_schema: dict[str, Any] | None = Field(description="JSON schema of the answer.")
    example: Any = Field(description="A request in JSON; null if the model has none.")
    limits: dict[str, int] = Field(
        description="Limits of a request: `request_bytes` and, depending on the task, "
        "`image_pixels`, `text_bytes`, `tokens`, `question_tokens`, `context_tokens`, `texts`, "
        "`texts_bytes`, or the names of a graph's axes that vary."
    )
    thresholds: Thresholds | None
    accuracy: dict[str, Any]  # as written in model.json
    backend: str
    device: str
    execution_provider: str
    precision: str = Field(description="`fp32`, `fp16`, `bf16` or `int8`.")
    precision_reason: str = Field(description="Why that precision was chosen.")
    trials: list[Trial] = Field(description="Precisions tried on a CPU: time, difference, memory.")
    length_step: int = Field(description="Texts are padded to multiples of this length.")
    fallback: str | None = Field(description="Why `auto` did not choose the GPU.")
    instances: int
    workers: int = Field(description="Instances that compute batches now; others stand by.")
    threads: int = Field(description="Threads of each instance.")
    layout_reason: str | None = Field(description="What was measured to choose these two numbers.")
    measured_at: str | None = Field(description="Time of the start whose measurements this one reuses.")
    max_batch_size: int
    batched: bool = Field(description="Whether the tensors of its graph begin with the batch dimension.")
    batch_note: str | None = Field(
        description="Why they do not, why items do not share batches, or why it is unknown if they may."
    )
    web_processes: int
    web_processes_reason: str | None = Field(description="Why `auto` chose this number.")
    batch_ms: dict[int, float] = Field(description="Measured at warm-up: batch size to ms.")
    idle_threads: int | None = Field(description="Threads for an input that is computed alone.")
    gpus: list[GpuFigures] = Field(
        description="Figures of the last second; `busy_percent` is the share of the time in which any "
        "kernel ran. Empty on a CPU, or if NVML is missing."
    )


class ModelState(BaseModel):
    """One of the models."""

    name: str
    title: str
    state: Literal["ready", "asleep", "loading", "unavailable"] = Field(
        description="`asleep`: ready, but the next request has to load it first."
    )
    reason: str = Field(description="Why it is not ready, or how long loading takes; otherwise empty.")


class DefaultModelResponse(ModelResponse):
    """The default model, and the state of each model."""

    models: list[ModelState]


def add_routes(routes: Routes, pipeline: Pipeline, _: ModelCatalog) -> None:
    """Adds all native paths."""
    service = pipeline.service
    add_predict(routes, pipeline)

    @routes.about("/health/live", "The process responds", response_model=HealthResponse)
    async def live() -> Response:
        return json_response({"status": "live"})

    @routes.about("/health/ready", "The server is ready for requests", 503, response_model=ReadyResponse)
    async def ready() -> Response:
        service.check_ready()
        states = {row["name"]: row["state"] for row in service.states()}
        return json_response({"status": "ready", "models": states})

    @routes.about("/model", "How the default model is served", 503, response_model=DefaultModelResponse)
    async def default_model() -> Response:
        return json_response({**service.active.describe(), "models": service.states()})

    @routes.about("/model/{model}", "How a model is served", 404, 503, response_model=ModelResponse)
    async def one_model(model: str) -> Response:
        return json_response(service.model(model).describe())

    @routes.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/", summary="Go to Swagger", status_code=307, response_class=RedirectResponse)
    async def root() -> Response:
        return RedirectResponse("docs")


def add_predict(routes: Routes, pipeline: Pipeline) -> None:
    """Adds `POST /predict`."""
    errors = sorted({*OF_CALLS, 422})

    @routes.call("/predict", "Call the model", errors=[each for each in errors if each != 404])
    @routes.call("/predict/{model}", "Call a model by its name", errors=errors)
    async def predict(request: Request, model: str = "") -> Response:
        """Send JSON; a request of one field may also be the body itself, or a form's field.

        The header `X-Request-Timeout-Ms` asks for an answer within that time, or 504.
        """
        served = pipeline.service.model(model or pipeline.service.default)
        most = inline_bytes(served.task, request.headers.get("content-type"))
        target = Target(served, partial(decode, served, request), inline_bytes=most)
        return await pipeline.http(request, target)


def decode(model: ServedModel, request: Request, body: bytes) -> Call:
    """Returns the call for a request with this body. Raises RequestError."""
    task, query = model.task, request.query_params
    fields = dict(fields_from_body(task, body, request.headers.get("content-type"), native=True))
    check_names("query parameter", query, [TOP_K])
    in_body = fields.pop(TOP_K, [])
    values = {*query.getlist(TOP_K), *map(str, in_body if isinstance(in_body, list) else [in_body])}
    if len(values) > 1:
        raise InvalidRequestError(f"{TOP_K} has several values: {' and '.join(sorted(values))[:80]}")
    top_k = parse_number(values.pop() if values else None, TOP_K, task.most_candidates)
    call = call_of(model, fields, len(body), top_k)
    call.respond = lambda answer, _: json_response(call.one_or_all(call.answers(answer)))
    return call


DIALECT = Dialect(
    add_routes,
    "Native",
    takes_tensors=False,
    about="The simplest way to call a model, and the service's state.",
)

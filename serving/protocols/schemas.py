"""The bodies of requests and answers, as Swagger shows them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from serving.model import ImagePipeline, Thresholds


class PredictRequest(BaseModel):
    """A picture as text."""

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
    precision: str
    fallback: str | None = Field(description="Why `auto` did not take the GPU.")
    instances: int
    max_batch_size: int
    web_processes: int
    batch_ms: dict[int, float] = Field(description="Measured at warm-up: batch size to ms.")
    idle_threads: int | None = Field(description="Threads for a picture that is alone in the service.")
    gpus: list[GpuResponse] = Field(description="Empty on a CPU, and where NVML is missing.")

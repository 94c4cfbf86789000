"""Requests, and the options that callers give them. Does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict
from urllib.parse import quote


class RequestOptions(TypedDict, total=False):
    """Options of one request, to a model of any task."""

    model: str
    """Name of the model to ask; unset: the service's default model, with Triton `food_classifier`."""

    top_k: int
    """Number of classes, answers or texts to return, from 1 to as many as the model has."""

    timeout_s: float
    """Budget in seconds, all tries together, instead of the client's own."""

    priority: Literal["interactive", "bulk"]
    """Priority in the service's queue; `bulk` is served after everything else."""

    request_id: str
    """X-Request-ID, 1 to 128 printable ASCII characters; unset: a new one."""

    traceparent: str
    """Header of W3C Trace Context; OpenTelemetry's current span goes before it."""


class PredictOptions(RequestOptions, total=False):
    """Options of one photo's prediction, or of all in a batch."""

    base64: bool
    """Send base64 in JSON, which is a third larger, instead of the plain bytes."""


@dataclass(frozen=True)
class Call:
    """Request without the parts that change from try to try."""

    method: str
    path: str  # with the query, relative to the base URL
    headers: Mapping[str, str]
    content: bytes = b""


def of_model(path: str, model: str | None) -> str:
    """Returns a path's variant for the model of this name; None: the default model's, as it is."""
    return path if model is None else f"{path}/{quote(model, safe='')}"


def get(path: str) -> Call:
    """Builds a GET."""
    return Call("GET", path, {})


def post(path: str, content: bytes, content_type: str = "application/json") -> Call:
    """Builds a POST."""
    return Call("POST", path, {"Content-Type": content_type}, content)

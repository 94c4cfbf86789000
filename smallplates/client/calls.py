"""Builds requests from the caller's options. Does no I/O."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict
from urllib.parse import quote


class RequestOptions(TypedDict, total=False):
    """Options of one request, whatever it asks."""

    model: str
    """Name of the model to ask; unset: the service's default model, with Triton `food_classifier`."""

    top_k: int
    """Number of classes or answers to rank, from 1 to as many as the model has."""

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
    path: str
    """Path and query, relative to the base URL."""

    headers: Mapping[str, str]
    content: bytes = b""


def predict(photo: bytes, options: PredictOptions) -> Call:
    """Builds `POST /predict` of a photo."""
    if options.get("base64"):
        return ask({"image": base64.b64encode(photo).decode("ascii")}, options)
    return post("application/octet-stream", photo, options)


def ask(fields: Mapping[str, object], options: RequestOptions) -> Call:
    """Builds `POST /predict` of a request's fields, as JSON; those that are None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    return post("application/json", json.dumps(known).encode(), options)


def post(content_type: str, content: bytes, options: RequestOptions) -> Call:
    """Builds `POST /predict` of a body."""
    top_k = options.get("top_k")
    path = of_model("/predict", options.get("model")) + (f"?top_k={top_k}" if top_k is not None else "")
    headers = {"Content-Type": content_type}
    if "priority" in options:
        headers["X-Priority"] = options["priority"]
    return Call("POST", path, headers, content)


def of_model(path: str, model: str | None) -> str:
    """Returns a path's variant for the model of this name; None: the default model's, as it is."""
    return path if model is None else f"{path}/{quote(model, safe='')}"


def get(path: str) -> Call:
    """Builds a GET."""
    return Call("GET", path, {})

"""Builds requests from the caller's options. Does no I/O."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack


class PredictOptions(TypedDict, total=False):
    """Options of one prediction, or of all in a batch."""

    top_k: int
    """Number of classes to rank, from 1 to as many as the model has."""

    timeout_s: float
    """Budget in seconds, all tries together, instead of the client's own."""

    priority: Literal["interactive", "bulk"]
    """Priority in the service's queue; `bulk` is served after everything else."""

    base64: bool
    """Send base64 in JSON, which is a third larger, instead of the plain bytes."""

    request_id: str
    """X-Request-ID, 1 to 128 printable ASCII characters; unset: a new one."""

    traceparent: str
    """Header of W3C Trace Context; OpenTelemetry's current span goes before it."""


@dataclass(frozen=True)
class Call:
    """Request without the parts that change from try to try."""

    method: str
    path: str
    """Path and query, relative to the base URL."""

    headers: Mapping[str, str]
    content: bytes = b""


def predict(photo: bytes, **options: Unpack[PredictOptions]) -> Call:
    """Builds `POST /predict`."""
    top_k = options.get("top_k")
    path = "/predict" if top_k is None else f"/predict?top_k={top_k}"
    headers = {"Content-Type": "application/octet-stream"}
    if "priority" in options:
        headers["X-Priority"] = options["priority"]
    if not options.get("base64"):
        return Call("POST", path, headers, photo)
    headers["Content-Type"] = "application/json"
    text = base64.b64encode(photo).decode("ascii")
    return Call("POST", path, headers, json.dumps({"image": text}).encode())


def get(path: str) -> Call:
    """Builds a GET."""
    return Call("GET", path, {})

"""Makes requests out of what the caller wants. No I/O."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack


class PredictOptions(TypedDict, total=False):
    """What may be said about one prediction, or about all of a batch."""

    top_k: int
    """Also rank this many classes, 1 to as many as there are."""

    timeout_s: float
    """Budget in seconds, all tries together, instead of the client's own."""

    priority: Literal["interactive", "bulk"]
    """`bulk` gives way to everything else."""

    base64: bool
    """Send base64 in JSON, a third more bytes, instead of the photo as it is."""

    request_id: str
    """X-Request-ID, 1 to 128 printable ASCII characters; otherwise a new one."""


@dataclass(frozen=True)
class Call:
    """One request, without what differs from try to try."""

    method: str
    path: str
    """With the query, relative to the base URL."""

    headers: Mapping[str, str]
    content: bytes = b""


def predict(photo: bytes, **options: Unpack[PredictOptions]) -> Call:
    """`POST /predict`."""
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
    """A GET."""
    return Call("GET", path, {})

"""Requests of each protocol for the same images, or for texts."""

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from serving.settings import ROOT

SAMPLE = ROOT / "flask_app" / "static" / "samples" / "soup.jpg"
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


class Protocol(StrEnum):
    """Protocol and encoding of the requests."""

    JSON = "json"
    """Native: base64 in JSON."""

    TEXT = "text"
    """Native: a text in JSON, for a text classifier."""

    RAW = "raw"
    """Native: the image is the body."""

    V2 = "v2"
    """Open Inference Protocol: base64 text in a BYTES tensor of JSON."""

    V2_RAW = "v2-raw"
    """Open Inference Protocol: the image is the body, as its binary extension allows."""

    TF_SERVING = "tf-serving"
    """Rows of `b64` objects."""

    TORCHSERVE = "torchserve"
    """Image as the body."""

    GRPC = "grpc"
    """Open Inference Protocol: the image in a BYTES tensor; all calls share one channel."""

    TCP = "tcp"
    """Frames over plain TCP, one at a time on a connection."""


NOT_HTTP = (Protocol.GRPC, Protocol.TCP)
"""Protocols with a port of their own."""


@dataclass(frozen=True)
class Payload:
    """Path, headers and body of a POST."""

    path: str
    headers: dict[str, str]
    body: bytes


JSON_TYPE = {"Content-Type": "application/json"}
BYTES_TYPE = {"Content-Type": "application/octet-stream"}


def _json(path: str, content: object) -> Payload:
    return Payload(path, JSON_TYPE, json.dumps(content).encode())


def _v2(photo: bytes) -> Payload:
    tensor = {
        "name": "INPUT_IMAGE",
        "shape": [1],
        "datatype": "BYTES",
        "data": [b64encode(photo).decode()],
    }
    return _json("/v2/models/food_classifier/infer", {"inputs": [tensor]})


MAKERS: dict[Protocol, Callable[[bytes], Payload]] = {
    Protocol.JSON: lambda photo: _json("/predict", {"image": b64encode(photo).decode()}),
    Protocol.TEXT: lambda text: _json("/predict", {"text": text.decode()}),
    Protocol.RAW: lambda photo: Payload("/predict", BYTES_TYPE, photo),
    Protocol.V2: _v2,
    Protocol.V2_RAW: lambda photo: Payload(
        "/v2/models/food_classifier/infer", {**BYTES_TYPE, "Inference-Header-Content-Length": "0"}, photo
    ),
    Protocol.TF_SERVING: lambda photo: _json(
        "/v1/models/food_classifier:predict", {"instances": [{"b64": b64encode(photo).decode()}]}
    ),
    Protocol.TORCHSERVE: lambda photo: Payload("/predictions/food_classifier", BYTES_TYPE, photo),
}


def payload(photo: bytes, protocol: Protocol) -> Payload:
    """Returns one image's request; `protocol` is one of those over HTTP."""
    return MAKERS[protocol](photo)


def photos(path: Path) -> list[bytes]:
    """Reads the file, or every image of the folder by name. Raises ValueError when there is none."""
    if not path.is_dir():
        return [path.read_bytes()]
    images = [file.read_bytes() for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not images:
        raise ValueError(f"no images in {path}")
    return images

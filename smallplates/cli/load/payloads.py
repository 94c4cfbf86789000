"""Requests of each protocol for the same images or texts, or for the example of the server's model."""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from smallplates.settings import ROOT

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
PREDICT, V2_INFER = "/predict", "/v2/models/{model}/infer"
PATHS = {
    Protocol.JSON: PREDICT,
    Protocol.TEXT: PREDICT,
    Protocol.RAW: PREDICT,
    Protocol.V2: V2_INFER,
    Protocol.V2_RAW: V2_INFER,
    Protocol.TF_SERVING: "/v1/models/{model}:predict",
    Protocol.TORCHSERVE: "/predictions/{model}",
}
BYTES_AS_BODY = (Protocol.RAW, Protocol.V2_RAW, Protocol.TORCHSERVE)


@dataclass(frozen=True)
class Served:
    """The model that a server serves, with examples of its requests."""

    name: str
    bodies: Mapping[str, Any]
    """Body in JSON of one request for each path, of those in `PATHS`."""

    item: str | None
    """Text in these bodies that stands for a photo in base64, or for a text; None if there is none."""

    is_photo: bool

    def body(self, path: str, item: bytes | None) -> bytes:
        """Returns the body for a photo or a text; None: the example itself. Raises ValueError."""
        if path not in self.bodies:
            where = path.format(model=self.name)
            raise ValueError(f"the model {self.name} has no example of a request to {where}")
        text = json.dumps(self.bodies[path])
        if item is not None:
            sent = b64encode(item).decode() if self.is_photo else item.decode()
            text = text.replace(json.dumps(self.item), json.dumps(sent))
        return text.encode()


TENSOR = {"name": "INPUT_IMAGE", "shape": [1], "datatype": "BYTES", "data": ["ITEM"]}
PHOTO_BODIES = {
    PREDICT: {"image": "ITEM"},
    V2_INFER: {"inputs": [TENSOR]},
    PATHS[Protocol.TF_SERVING]: {"instances": [{"b64": "ITEM"}]},
}
PHOTOS = Served("food_classifier", PHOTO_BODIES, "ITEM", is_photo=True)
"""Of a server that does not describe its model."""

TEXTS = Served("text", {PREDICT: {"text": "ITEM"}}, "ITEM", is_photo=False)


def payload(item: bytes | None, protocol: Protocol, served: Served | None = None) -> Payload:
    """Returns one item's request; `protocol` is one of those over HTTP. Raises ValueError."""
    served = served or (TEXTS if protocol is Protocol.TEXT else PHOTOS)
    path = PATHS[protocol].format(model=served.name)
    if item is not None and protocol in BYTES_AS_BODY:
        head = {"Inference-Header-Content-Length": "0"} if protocol is Protocol.V2_RAW else {}
        return Payload(path, {**BYTES_TYPE, **head}, item)
    if protocol in (Protocol.RAW, Protocol.V2_RAW):
        raise ValueError(f"the model {served.name} takes neither photos nor texts, as {protocol} needs")
    return Payload(path, JSON_TYPE, served.body(PATHS[protocol], item))


def photos(path: Path) -> list[bytes]:
    """Reads the file, or every image of the folder by name. Raises ValueError when there is none."""
    if not path.is_dir():
        return [path.read_bytes()]
    images = [file.read_bytes() for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not images:
        raise ValueError(f"no images in {path}")
    return images

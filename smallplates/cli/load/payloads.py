"""Requests of each protocol for the same photos or texts, or for the example of the server's model."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from smallplates.models.tensors import EXAMPLE_LENGTHS
from smallplates.settings import ROOT
from smallplates.web.api.datatypes import DATATYPES

SAMPLE = ROOT / "flask_app" / "static" / "samples" / "soup.jpg"
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


class Protocol(StrEnum):
    """Protocol and encoding of the requests."""

    JSON = "json"
    """Native: JSON, with a photo in base64."""

    TEXT = "text"
    """Native: JSON, and a text for a server that does not describe its model."""

    RAW = "raw"
    """Native: the photo or the text is the body; JSON for other models."""

    V2 = "v2"
    """Open Inference Protocol in JSON."""

    V2_RAW = "v2-raw"
    """Open Inference Protocol, binary; a model's only input is the body."""

    TF_SERVING = "tf-serving"
    """A row of values; a photo is a `b64` object."""

    TORCHSERVE = "torchserve"
    """The photo or the text is the body; JSON for other models."""

    GRPC = "grpc"
    """Open Inference Protocol with raw contents; all calls share one channel."""

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
HEADER_BYTES = "Inference-Header-Content-Length"

Tensor = dict[str, Any]
"""Input in the Open Inference Protocol: name, datatype, shape, and its values in `data`, flat."""


@dataclass(frozen=True)
class Requests:
    """Builds the requests of one model: its example, or zeros for a graph that takes tensors only.

    The methods raise ValueError if the model has no such request.
    """

    model: str
    example: Any = None  # request of /predict in JSON; None if there is none
    fields: Sequence[str] = ()  # of /predict, in the order of `inputs`; empty if it takes a single value
    inputs: Sequence[Mapping[str, Any]] = ()  # as the Open Inference Protocol describes them
    is_batched: bool = True  # whether tensors begin with the batch dimension
    predict_path: str = "/predict"

    @property
    def item_field(self) -> str | None:
        """Field of the example that a photo or a text may replace."""
        return next((name for name in ("image", "text") if name in self.fields), None)

    @property
    def is_photo(self) -> bool:
        """Whether the model takes photos."""
        return self.item_field == "image"

    def payload(self, item: bytes | None, protocol: Protocol) -> Payload:
        """Returns the POST for a photo or a text, None: for the example; not for `NOT_HTTP`."""
        name = quote(self.model, safe="")
        path = f"/predictions/{name}" if protocol is Protocol.TORCHSERVE else self.predict_path
        match protocol:
            case Protocol.V2_RAW:
                return self.binary(item, f"/v2/models/{name}/infer")
            case Protocol.RAW | Protocol.TORCHSERVE if item is not None:
                return Payload(path, BYTES_TYPE, item)
            case Protocol.V2:
                path, content = f"/v2/models/{name}/infer", {"inputs": self.tensors(item)}
            case Protocol.TF_SERVING:
                path, content = f"/v1/models/{name}:predict", self.rows(item)
            case _:
                content = self.native(item)
        return Payload(path, JSON_TYPE, json.dumps(content).encode())

    def native(self, item: bytes | None) -> Any:
        """Returns the content of a request to `/predict`."""
        if self.example is None:
            raise ValueError(f"{self.model} has no example: use v2, v2-raw, tf-serving or grpc")
        if item is None:
            return self.example
        value = b64encode(item).decode() if self.is_photo else item.decode()
        return {**self.example, self.item_field: value}

    def tensors(self, item: bytes | None) -> list[Tensor]:
        """Returns all inputs of a request, without fields that the example leaves out."""
        if not self.inputs:
            raise ValueError(f"the server does not describe the inputs of {self.model} in v2")
        if self.example is None:
            return [zeros(spec, self.is_batched) for spec in self.inputs]
        values = self.native(item) if self.fields else {"": self.native(item)}
        tensors = []
        for name, spec in zip(self.fields or [""], self.inputs, strict=True):
            value, is_list = values.get(name), spec["shape"][-1] == -1
            if isinstance(value, dict | list) and not is_list:
                value = json.dumps(value)
            if value is not None:
                shape, data = ([1, len(value)], value) if is_list else ([1], [value])
                tensors.append({**spec, "shape": shape, "data": data})
        return tensors

    def rows(self, item: bytes | None) -> dict[str, Any]:
        """Returns the content of a request in TensorFlow Serving's protocol."""
        row: dict[str, Any] = {}
        for tensor in self.tensors(item):
            values = np.array(tensor["data"], object).reshape(tensor["shape"]).tolist()
            value = values[0] if self.is_batched else values
            row[tensor["name"]] = {"b64": value} if self.is_photo else value
        content = next(iter(row.values())) if len(self.inputs) == 1 else row
        return {"instances": [content]} if self.is_batched else {"inputs": content}

    def binary(self, item: bytes | None, path: str) -> Payload:
        """Returns a request with binary tensors; the only input of a photo or a text is the body."""
        if item is not None and len(self.inputs) == 1:
            return Payload(path, {**BYTES_TYPE, HEADER_BYTES: "0"}, item)
        tensors = self.tensors(item)
        contents = [self.raw(tensor, item) for tensor in tensors]
        for tensor, content in zip(tensors, contents, strict=True):
            tensor["parameters"] = {"binary_data_size": len(content)}
            del tensor["data"]
        head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        return Payload(path, {**BYTES_TYPE, HEADER_BYTES: str(len(head))}, b"".join((head, *contents)))

    def raw(self, tensor: Tensor, item: bytes | None) -> bytes:
        """Returns a tensor's values in binary form; the photo `item` takes the place of its base64."""
        if dtype := DATATYPES[tensor["datatype"]].dtype:
            return np.array(tensor["data"], dtype).tobytes()
        texts = [item] if item and self.is_photo else [text.encode() for text in tensor["data"]]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def zeros(spec: Mapping[str, Any], is_batched: bool) -> Tensor:
    """Returns zeros for an input; axes that vary are as long as warm-up's shortest items."""
    dtype = DATATYPES[spec["datatype"]].dtype
    if dtype is None:
        raise ValueError(f"the server has no example of {spec['name']}: name the model as /model does")
    shape = [EXAMPLE_LENGTHS[0] if size < 0 else size for size in spec["shape"]]
    if is_batched:
        shape[0] = 1
    return {**spec, "shape": shape, "data": np.zeros(shape, dtype).ravel().tolist()}


IMAGE_INPUT = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [-1, 1]}
PHOTOS = Requests("food_classifier", {"image": ""}, ["image"], [IMAGE_INPUT])
TEXTS = Requests("text", {"text": "a text"}, ["text"])
"""Requests for servers that don't describe their model."""


def photos(path: Path) -> list[bytes]:
    """Reads the file, or every image of the folder by name. Raises ValueError when there is none."""
    if not path.is_dir():
        return [path.read_bytes()]
    images = [file.read_bytes() for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not images:
        raise ValueError(f"no images in {path}")
    return images

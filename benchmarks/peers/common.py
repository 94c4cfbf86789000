"""Shared work of the other servers: JSON with base64 or a text in, the predicted class out."""

import io
import json
import os
from base64 import b64decode
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.network import FP32, INT8
from fastapi_onnx.openvino_session import OPENVINO, OpenVinoSession
from fastapi_onnx.sessions import ONNX_RUNTIME, OnnxRuntimeSession, Session
from fastapi_onnx.shared_weights import CPU
from smallplates.base64 import from_base64
from smallplates.models.description import ImagePipeline, Kind
from smallplates.models.folder import Model
from smallplates.models.scores import best
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits

CORES = len(os.sched_getaffinity(0))
GRAPHS: dict[str, Kind] = {"fp32": FP32, "bf16": FP32, "int8": INT8}
"""File of a model's version, by precision."""

RUNTIMES = {"fp32": ONNX_RUNTIME, "int8": ONNX_RUNTIME, "bf16": OPENVINO}
"""What computes in a precision; users of the other servers write ONNX Runtime, and OpenVINO is lent."""


def graph(model: Model, precision: str) -> Path:
    """Returns the path of a model's graph, which may be missing for int8."""
    return model.folder / model.description.version / GRAPHS[precision]


def session(path: Path, precision: str, threads: int = 1) -> Session:
    """Opens a graph; `threads` are those of one inference, 0: the runtime's default."""
    if RUNTIMES[precision] == OPENVINO:
        settings = Settings.model_construct(intra_op_threads=threads)
        return OpenVinoSession(lambda: path, precision, settings, None)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return OnnxRuntimeSession(ort.InferenceSession(path, options, providers=[CPU]))


def precision_of_peer() -> str:
    """Returns the precision that `compare` sets for a server."""
    return os.environ.get("PEER_PRECISION", "fp32")


class Peer(Protocol):
    """A model behind a server; its answers have `prediction` and `probability`, or `outputs`."""

    field: str  # of the request's JSON

    def body(self, body: bytes) -> dict[str, Any]:
        """Answers a request's JSON."""

    def text(self, text: Any) -> dict[str, Any]:
        """Answers the value of the field."""


def peer(model_dir: str, pipeline: str, precision: str | None = None) -> Peer:
    """Loads a model; the pipeline is `text`, `table`, or one of `Classify`.

    Precision None: as `compare` sets it.
    """
    if pipeline == "table":
        from benchmarks.peers.table import ClassifyRows

        return ClassifyRows(model_dir)
    if pipeline == "text":
        from benchmarks.peers.text import ClassifyTexts  # which imports this file

        return ClassifyTexts(model_dir, precision)
    return Classify(model_dir, pipeline, precision=precision)


class ImageJson(msgspec.Struct):
    """`{"image": "<base64>"}`."""

    image: str


IMAGE_JSON = msgspec.json.Decoder(ImageJson)


class Classify:
    """Model instance, of one thread unless `threads` says otherwise, with one of two pipelines.

    `plain` is what tutorials write: Pillow and NumPy in front of the float graph. `shared` is this
    project's own decoder, JSON reader, and graph with the normalisation inside, so that only the
    servers differ.
    """

    field = "image"

    def __init__(
        self, model_dir: str, pipeline: str, threads: int = 1, precision: str | None = None
    ) -> None:
        """Loads the model.

        `threads` are those of one inference in the plain pipeline; 0: ONNX Runtime's default.
        `precision` is fp32, int8 or bf16; None: as `compare` sets it.
        """
        precision = precision or precision_of_peer()
        settings = Settings(model_dir=Path(model_dir), device="cpu")
        model = Model.read(settings.model_dir)
        self.labels = model.labels
        self.image = model.description.pipeline
        self.plain = pipeline == "plain"
        if self.plain:
            path = graph(model, precision)
            self.session = session(path, precision, threads)
            self.input = onnx.load(path, load_external_data=False).graph.input[0].name
        else:
            self.decoder = ImageDecoder(self.image, settings.max_image_pixels)
            self.backend = OnnxBackend()
            runtime = RUNTIMES[precision]
            self.backend.load(
                model, Settings.read(device="cpu", precision=precision, cpu_runtime=runtime)
            )

    def body(self, body: bytes) -> dict[str, Any]:
        """Answers the body `{"image": "<base64>"}`."""
        if self.plain:
            return self.text(json.loads(body)["image"])
        return self.image_file(from_base64(IMAGE_JSON.decode(body).image))

    def text(self, base64: str) -> dict[str, Any]:
        """Answers base64 text."""
        return self.image_file(b64decode(base64) if self.plain else from_base64(base64))

    def image_file(self, data: bytes) -> dict[str, Any]:
        """Answers an image file."""
        logits = self.infer_plain(data) if self.plain else self.infer_shared(data)
        score = best(self.labels, logits, 1)[0]
        return {"prediction": score["label"], "probability": score["probability"]}

    def infer_shared(self, data: bytes) -> NDArray[np.float32]:
        """Returns logits [classes] from the shared pipeline."""
        logits: NDArray[np.float32] = compute_logits(
            self.backend, self.decoder.decode(data)[np.newaxis]
        )[0]
        return logits

    def infer_plain(self, data: bytes) -> NDArray[np.float32]:
        """Returns logits [classes] from the plain pipeline."""
        photo = resized(Image.open(io.BytesIO(data)).convert("RGB"), self.image)
        pixels = np.asarray(photo, np.float32) / 255
        mean, std = (np.asarray(values, np.float32) for values in (self.image.mean, self.image.std))
        pixels = (pixels - mean) / std
        batch = np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])
        logits: NDArray[np.float32] = self.session.run((), {self.input: batch})[0][0]
        return logits


def resized(photo: Image.Image, pipeline: ImagePipeline) -> Image.Image:
    """Resizes, crops the centre and enlarges in separate steps, as one does with Pillow alone."""
    if isinstance(pipeline.resize, int):
        scale = pipeline.resize / min(photo.size)
        size = (int(photo.width * scale + 1e-6), int(photo.height * scale + 1e-6))
    else:
        size = pipeline.resize[::-1]
    photo = photo.resize(size, Resampling.BILINEAR)
    if pipeline.crop:
        height, width = pipeline.crop
        left, top = round((photo.width - width) / 2), round((photo.height - height) / 2)
        photo = photo.crop((left, top, left + width, top + height))
    if pipeline.enlarge:
        photo = photo.resize(pipeline.enlarge[::-1], Resampling.BILINEAR)
    return photo

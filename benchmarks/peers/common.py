"""The same work for every peer: base64 JSON in, the predicted class out."""

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from fastapi_onnx.backend import OnnxBackend
from serving.body import from_base64, from_json
from serving.images import ImageDecoder
from serving.model import Model
from serving.scores import best
from serving.settings import Settings


class Classify:
    """One model instance of one thread, in one of two pipelines.

    `plain`: what the tutorials write, Pillow and NumPy in front of the float graph. `shared`: this
    project's own decoder, JSON reader, and graph with the normalisation inside, lent to the peer, so
    that only the servers differ.
    """

    def __init__(self, model_dir: str, pipeline: str) -> None:
        settings = Settings(model_dir=Path(model_dir), device="cpu")
        model = Model.read(settings.model_dir)
        self.labels = model.labels
        self.image = model.description.image
        self.plain = pipeline == "plain"
        if self.plain:
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            self.session = ort.InferenceSession(
                model.file("model.onnx"), options, providers=["CPUExecutionProvider"]
            )
        else:
            self.decoder = ImageDecoder(self.image, settings.max_image_pixels)
            self.backend = OnnxBackend()
            self.backend.load(model, settings)

    def body(self, body: bytes) -> dict[str, Any]:
        """`{"image": "<base64>"}` -> the answer."""
        return self.text(json.loads(body)["image"]) if self.plain else self.picture(from_json(body))

    def text(self, base64: str) -> dict[str, Any]:
        """Base64 -> the answer."""
        return self.picture(b64decode(base64) if self.plain else from_base64(base64))

    def picture(self, data: bytes) -> dict[str, Any]:
        """A picture file -> the answer."""
        logits = self.infer_plain(data) if self.plain else self.infer_shared(data)
        score = best(self.labels, logits.tolist(), 1)[0]
        return {"prediction": score.label, "probability": score.probability}

    def infer_shared(self, data: bytes) -> NDArray[np.float32]:
        """Logits [classes]."""
        logits: NDArray[np.float32] = self.backend.infer(self.decoder.decode(data)[np.newaxis])[0]
        return logits

    def infer_plain(self, data: bytes) -> NDArray[np.float32]:
        """Logits [classes]."""
        height, width = self.image.output_size
        photo = Image.open(io.BytesIO(data)).convert("RGB").resize((width, height), Resampling.BILINEAR)
        pixels = np.asarray(photo, np.float32) / 255
        mean, std = (np.asarray(values, np.float32) for values in (self.image.mean, self.image.std))
        pixels = (pixels - mean) / std
        batch = np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])
        logits: NDArray[np.float32] = self.session.run(None, {"input": batch})[0][0]
        return logits

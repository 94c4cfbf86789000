"""The same work for every peer: base64 JSON in, the predicted class out."""

from pathlib import Path
from typing import Any

import numpy as np

from fastapi_onnx.backend import OnnxBackend
from serving.body import from_base64, from_json
from serving.classifier import best
from serving.images import ImageDecoder
from serving.model import Model
from serving.settings import Settings


class Classify:
    """One model instance of one thread."""

    def __init__(self, model_dir: str) -> None:
        settings = Settings(model_dir=Path(model_dir), device="cpu")
        model = Model.read(settings.model_dir)
        self.labels = model.labels
        self.decoder = ImageDecoder(model.description.image, settings.max_image_pixels)
        self.backend = OnnxBackend()
        self.backend.load(model, settings)

    def body(self, body: bytes) -> dict[str, Any]:
        """`{"image": "<base64>"}` -> the answer."""
        return self.picture(from_json(body))

    def text(self, base64: str) -> dict[str, Any]:
        """Base64 -> the answer."""
        return self.picture(from_base64(base64))

    def picture(self, data: bytes) -> dict[str, Any]:
        """A picture file -> the answer."""
        logits = self.backend.infer(self.decoder.decode(data)[np.newaxis])[0]
        score = best(self.labels, logits.tolist(), 1)[0]
        return {"prediction": score.label, "probability": score.probability}

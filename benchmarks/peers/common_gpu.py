"""Shared work of the other servers on a GPU: this project's decoder, and its network on CUDA.

The network runs in ONNX Runtime, in fp16, with a CUDA graph for each batch size, so that only the
servers differ.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastapi_onnx.backend import OnnxBackend
from smallplates.base64 import from_base64
from smallplates.models.folder import Model
from smallplates.models.scores import best
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import batch_sizes

LARGEST = 64
Pixels = NDArray[np.uint8]


class Decode:
    """Decodes base64 to pixels [height, width, 3]."""

    def __init__(self, model_dir: str) -> None:
        settings = Settings(model_dir=Path(model_dir))
        image = Model.read(settings.model_dir).description.pipeline
        self.decoder = ImageDecoder(image, settings.max_image_pixels)

    def __call__(self, base64: str) -> Pixels:
        """Decodes one image."""
        return self.decoder.decode(from_base64(base64))


class Infer:
    """Computes the answers for up to LARGEST images; every batch size is warm."""

    def __init__(self, model_dir: str) -> None:
        settings = Settings(model_dir=Path(model_dir), device="cuda", max_batch_size=LARGEST)
        model = Model.read(settings.model_dir)
        self.labels = model.labels
        self.sizes = batch_sizes.sizes(settings, "cuda")
        self.room = np.zeros((LARGEST, *model.description.pipeline.output_size, 3), np.uint8)
        self.backend = OnnxBackend()
        self.backend.load(model, settings)
        for size in reversed(self.sizes):
            compute_logits(self.backend, self.room[:size])

    def __call__(self, images: list[Pixels]) -> list[dict[str, Any]]:
        """Computes one batch."""
        count = len(images)
        self.room[:count] = images
        logits = compute_logits(self.backend, self.room[: batch_sizes.pad(count, self.sizes)])[:count]
        scores = [best(self.labels, row, 1)[0] for row in logits]
        return [{"prediction": score["label"], "probability": score["probability"]} for score in scores]

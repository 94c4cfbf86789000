"""Image classification: an image file in, its most probable classes out."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from smallplates.engine.backend import Backend
from smallplates.models.folder import Model
from smallplates.models.huggingface import REGRESSION, Config
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.tasks.base import Classification, Fields, Prepared, fields_of
from smallplates.tasks.image.decode import INLINE_BYTES, SMALL_PIXELS, ImageDecoder, is_cheap
from smallplates.tasks.image.preprocessor import image_pipeline
from smallplates.tasks.image.timm import timm_classifier

IMAGE, TENSOR = 0, 1
"""Indices of the signatures."""

EXAMPLE = Path(__file__).with_name("image") / "example.jpg"


class PredictRequest(BaseModel):
    """An image as text."""

    image: str = Field(
        min_length=1,
        description="The image file in base64; a `data:image/...;base64,` prefix is accepted.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class ImageClassification(Classification):
    """Decodes image files; returns the most probable classes by softmax or sigmoid."""

    request_signature, tensor_signature = IMAGE, TENSOR
    request_schema = PredictRequest.model_json_schema()
    request = tuple(replace(field, is_image=True) for field in fields_of(request_schema))
    list_fields = ("image",)
    media_types = ("image/",)
    form_fields = ("image", "file")
    example_type = "image/jpeg"
    inline_limit = INLINE_BYTES
    example = MappingProxyType({"image": EXAMPLE.read_bytes()})

    def __init__(self, *arguments: Any) -> None:
        """Raises ConfigurationError for a model without an image pipeline."""
        super().__init__(*arguments)
        most = self._settings.max_image_pixels
        self.limits = {"image_pixels": most}
        self._decoder = ImageDecoder(self._model.description.pipeline, most)
        self._small_decoder = ImageDecoder(self._decoder.pipeline, min(most, SMALL_PIXELS))

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any]:
        """Returns `labels` and `image`, the steps of the image processor; see `Task.from_export`."""
        if config.pretrained_cfg:
            return timm_classifier(folder)
        if config.problem_type == REGRESSION:
            raise ValueError("problem_type is regression, which is not supported for images")
        if config.num_channels not in (None, 3):
            raise ValueError(f"num_channels is {config.num_channels}; only 3, RGB, is supported")
        activation = "sigmoid" if config.independent else "softmax"
        image = image_pipeline(folder, config).model_copy(update={"activation": activation})
        return {"labels": config.labels, "image": image}

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the signatures of an image classifier; see `image_signatures`."""
        return image_signatures(model.description.pipeline.output_size, len(model.labels))

    def is_cheap(self, fields: Fields) -> bool:
        """Returns whether it is a small JPEG, the only format whose cost can be predicted."""
        return is_cheap(fields["image"])

    def preprocess_small(self, fields: Fields) -> Prepared:
        """Like `preprocess`; raises ImageTooLargeError for many pixels, which any file may have."""
        return Prepared([[self._small_decoder.decode(fields["image"])]])

    def preprocess(self, fields: Fields) -> Prepared:
        """Decodes to uint8 [height, width, 3]. Raises InvalidImageError or ImageTooLargeError."""
        return Prepared([[self._decoder.decode(fields["image"])]])


def image_signatures(size: tuple[int, int], labels: int) -> tuple[Signature, ...]:
    """Returns the signatures for images of a size (height, width) and for normalised tensors."""
    logits = TensorSpec("output", "float32", (labels,), note=f"there are {labels} labels")
    pixels = TensorSpec("pixels", "uint8", (*size, 3))
    tensor = TensorSpec("input", "float32", (3, *size))
    return (
        Signature("image", (pixels,), (logits,), normalises=True, checks_finite=True),
        Signature("tensor", (tensor,), (logits,)),
    )


def compute_logits(
    backend: Backend, batch: NDArray[np.uint8] | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Computes logits [N, classes] for images, uint8 [N, H, W, 3], or for normalised [N, 3, H, W]."""
    signature = Signature("", (), (), normalises=batch.dtype == np.uint8)
    (logits,) = backend.infer(signature, [batch])
    return logits

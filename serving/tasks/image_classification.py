"""Image classification as a task: how a network of images is called."""

import numpy as np
from numpy.typing import NDArray

from serving.backends.base import Backend
from serving.model import Model
from serving.tensors import Signature, TensorSpec

IMAGE, TENSOR = 0, 1
"""Places among `signatures`."""


def signatures(model: Model) -> tuple[Signature, ...]:
    """Returns how an image classifier is called, see `image_signatures`."""
    return image_signatures(model.description.pipeline.output_size, len(model.labels))


def image_signatures(size: tuple[int, int], labels: int) -> tuple[Signature, ...]:
    """Returns how a network is called: with images of a size (height, width), or normalised ones."""
    logits = TensorSpec("logits", "float32", (labels,), note=f"model.json has {labels} labels")
    pixels = TensorSpec("pixels", "uint8", (*size, 3))
    tensor = TensorSpec("input", "float32", (3, *size))
    return (
        Signature("image", (pixels,), (logits,), normalises=True, checks_finite=True),
        Signature("tensor", (tensor,), (logits,)),
    )


def compute_logits(
    backend: Backend, batch: NDArray[np.uint8] | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Computes logits [N, classes] of images, uint8 [N, H, W, 3], or normalised, [N, 3, H, W]."""
    signature = Signature("", (), (), normalises=batch.dtype == np.uint8)
    (logits,) = backend.infer(signature, [batch])
    return logits

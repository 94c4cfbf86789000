"""Work of `common.py` in eager PyTorch with torchvision's transforms, as a tutorial writes it."""

import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from fastapi_pt.network import read_network
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model


class Eager:
    """Network; inference uses the number of threads that PyTorch is set to."""

    def __init__(self, model_dir: str) -> None:
        model = Model.read(Path(model_dir))
        self.labels = model.labels
        self.network = read_network(model)
        self.transform = v2.Compose(steps(model.description.pipeline))

    def text(self, base64: str) -> dict[str, Any]:
        """Answers base64 text."""
        return self.image_file(b64decode(base64))

    def image_file(self, data: bytes) -> dict[str, Any]:
        """Answers an image file."""
        photo = Image.open(io.BytesIO(data)).convert("RGB")
        batch: Tensor = self.transform(photo).unsqueeze(0)
        with torch.no_grad():
            probabilities = torch.softmax(self.network(batch)[0], 0)
        index = int(probabilities.argmax())
        return {"prediction": self.labels[index], "probability": float(probabilities[index])}


def steps(image: ImagePipeline) -> list[v2.Transform]:
    """Returns torchvision's transforms; they turn a PIL image into float32 [3, height, width]."""
    transforms: list[v2.Transform] = [v2.Resize(image.resize)]
    if image.center_crop:
        transforms.append(v2.CenterCrop(image.center_crop))
    if image.enlarge:
        transforms.append(v2.Resize(image.enlarge))
    return [
        *transforms,
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(image.mean, image.std),
    ]

"""Folders of timm and of transformers' TimmWrapper: `config.json` as labels and an image pipeline."""

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, PositiveFloat, PositiveInt

from smallplates.models.description import ImagePipeline, Side
from smallplates.models.huggingface import CONFIG, File, configuration_errors, read


class Pretrained(BaseModel):
    """What timm's `create_transform` reads for evaluation, with its defaults."""

    input_size: tuple[Literal[3], Side, Side] = (3, 224, 224)
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    crop_pct: PositiveFloat = 0.875
    crop_mode: Literal["center", "squash"] | None = None

    def pipeline(self) -> ImagePipeline:
        """Returns the preprocessing steps. Raises ValueError for unsupported ones."""
        side, width = self.input_size[1:]
        if side != width:
            raise ValueError("input_size must be square")
        scaled = math.floor(side / self.crop_pct)
        resize = (scaled, scaled) if self.crop_mode == "squash" else scaled
        steps = {"resize": resize, "center_crop": side, "filter": self.interpolation, "exact": True}
        return ImagePipeline.model_validate({**steps, "mean": self.mean, "std": self.std})


class Timm(File):
    """Content of `config.json`."""

    pretrained_cfg: Pretrained
    num_classes: PositiveInt
    label_names: list[str] | None = None


def timm_classifier(folder: Path) -> dict[str, Any]:
    """Returns `labels` and `image` of a description. Raises ConfigurationError."""
    path = folder / CONFIG
    file = read(path, Timm)
    with configuration_errors(path):
        labels = file.label_names or [f"LABEL_{index}" for index in range(file.num_classes)]
        return {"labels": labels, "image": file.pretrained_cfg.pipeline()}

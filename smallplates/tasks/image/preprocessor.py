"""Image processors of transformers: `preprocessor_config.json` as an image pipeline, or refused."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline
from smallplates.models.huggingface import File, configuration_errors, read

PREPROCESSOR = "preprocessor_config.json"
FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's number of a filter -> its name; without `nearest`, which no network is trained with."""

CONVNEXT, LEVIT = "ConvNext", "Levit"
SQUARE = ("ViT", "DeiT", "Beit", "Pvt", "Segformer")
"""Image processors for which a single number means the side of a square."""

BY_SHORT_SIDE = ("CLIP", "Bit", "Siglip", "MobileNetV1", "MobileNetV2", LEVIT, CONVNEXT)
"""Image processors for which a single number means the short side."""

UNCROPPED = ("ViT", "Beit", "Siglip", "Pvt", "Segformer")
"""Image processors that crop only if their file says so; in transformers 4, also BEiT's cropped."""

CONVNEXT_CROP_PCT, CONVNEXT_UNCROPPED = 224 / 256, 384

CURE = 'to call the graph with prepared images, write a model.json with "task": "tensor"'

Sizes = PositiveInt | dict[str, PositiveInt]
Channels = float | tuple[float, float, float]


class Preprocessor(File):
    """Content of `preprocessor_config.json`."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None
    do_resize: Literal[True] = True
    size: Sizes
    resample: Literal[1, 2, 3, 4, 5]
    """Number of the filter, see FILTERS."""

    do_center_crop: bool | None = None
    crop_size: Sizes | None = None
    crop_pct: PositiveFloat | None = None
    do_rescale: bool = True
    rescale_factor: PositiveFloat = 1 / 255
    do_normalize: bool = True
    image_mean: Channels | None = None
    image_std: Channels | None = None
    do_flip_channel_order: Literal[False] | None = None
    do_pad: Literal[False] | None = None

    @property
    def kind(self) -> str:
        """Name of the image processor's family. Raises ValueError if it is unknown."""
        field = "image_processor_type" if self.image_processor_type else "feature_extractor_type"
        name = getattr(self, field)
        if name is None:
            raise ValueError("image_processor_type is missing")
        kind = name.removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
        if kind not in SQUARE + BY_SHORT_SIDE:
            raise ValueError(f"{field} is {name[:80]}, whose steps are unknown")
        return str(kind)

    def pipeline(self) -> ImagePipeline:
        """Returns the preprocessing steps. Raises ValueError for unsupported ones."""
        resize, crop = self._sizes(self.kind)
        mean, std = self._statistics()
        steps = {"resize": resize, "center_crop": crop, "mean": mean, "std": std}
        exact = {"crop_rounding": "down", "exact": True, "filter": FILTERS[self.resample]}
        return ImagePipeline.model_validate(steps | exact)

    def _sizes(self, kind: str) -> tuple[int | tuple[int, int], int | None]:
        """Returns the size after resizing, the short side or (height, width), and the crop's side."""
        resize = sides("size", self.size, kind in SQUARE)
        if kind == CONVNEXT:
            if not isinstance(resize, int):
                raise ValueError("size has no shortest_edge")
            if self.do_center_crop:
                raise ValueError("do_center_crop is true, but ConvNeXT crops by crop_pct")
            if resize >= CONVNEXT_UNCROPPED:
                return (resize, resize), None
            return int(resize / (self.crop_pct or CONVNEXT_CROP_PCT)), resize
        if kind == LEVIT and isinstance(resize, int):
            resize = int(256 / 224 * resize)
        is_given = "do_center_crop" in self.model_fields_set  # null means no crop
        crops = self.do_center_crop if is_given else kind not in UNCROPPED
        return resize, self._crop(resize) if crops else None

    def _crop(self, resize: int | tuple[int, int]) -> int:
        crop = sides("crop_size", self.crop_size, square=True)
        if isinstance(crop, int) or crop[0] != crop[1]:
            raise ValueError("crop_size must be square")
        if crop[0] > (resize if isinstance(resize, int) else min(resize)):
            raise ValueError(f"crop_size is {crop[0]}, more than the resized image has")
        return crop[0]

    def _statistics(self) -> tuple[list[float], list[float]]:
        """Returns mean and standard deviation for pixels from 0 to 1, whatever the file's scale is."""
        mean, std = (self.image_mean, self.image_std) if self.do_normalize else (0.0, 1.0)
        if mean is None or std is None:
            raise ValueError("image_mean or image_std is missing")
        scale = 255 * self.rescale_factor if self.do_rescale else 255.0
        return (np.broadcast_to(mean, 3) / scale).tolist(), (np.broadcast_to(std, 3) / scale).tolist()


def image_pipeline(folder: Path) -> ImagePipeline:
    """Reads the image processor's steps. Raises ConfigurationError, ValueError if there is no file."""
    path = folder / PREPROCESSOR
    if not path.exists():
        raise ValueError(f"{PREPROCESSOR} is missing beside it: save the model's image processor there")
    try:
        file = read(path, Preprocessor)
        with configuration_errors(path):
            return file.pipeline()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {CURE}") from error


def sides(field: str, size: Sizes | None, square: bool) -> int | tuple[int, int]:
    """Returns the short side or (height, width); `square` decides for a single number.

    Raises ValueError.
    """
    if size is None:
        raise ValueError(f"{field} is missing")
    if isinstance(size, int):
        return (size, size) if square else size
    if set(size) == {"height", "width"}:
        return size["height"], size["width"]
    if set(size) == {"shortest_edge"}:
        return size["shortest_edge"]
    raise ValueError(f"{field} has {sorted(size)}; height and width, or shortest_edge, are supported")

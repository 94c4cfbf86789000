"""Image processors of transformers as image pipelines, or refused.

`processor_config.json` comes before `preprocessor_config.json`, as in transformers 5.
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline
from smallplates.models.huggingface import Config, File, configuration_errors, read

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's number of a filter -> its name."""


class Family(NamedTuple):
    """What an image processor does if its file doesn't say otherwise."""

    is_square: bool
    """Whether a single number as `size` means the side of a square, and not the short side."""

    resample: int | None
    """Number of the filter; None: versions of transformers differ."""

    crop: int | None = None
    """Side of the crop; None: no crop."""


CONVNEXT, EFFICIENTNET, LEVIT, MOBILEVIT = "ConvNext", "EfficientNet", "Levit", "MobileViT"
POOLFORMER, SEGFORMER = "PoolFormer", "Segformer"
FAMILIES = {
    "ViT": Family(True, 2),
    "DeiT": Family(True, 3, 224),
    "Beit": Family(True, 3),  # transformers 4 cropped
    "Pvt": Family(True, None),
    SEGFORMER: Family(True, 2),
    EFFICIENTNET: Family(True, None),
    "EfficientFormer": Family(True, 3, 224),
    "CLIP": Family(False, 3, 224),
    "Bit": Family(False, 3, 224),
    "Siglip": Family(False, 3),
    "ViTHybrid": Family(False, 3, 224),
    "MobileNetV1": Family(False, 2, 224),
    "MobileNetV2": Family(False, 2, 224),
    LEVIT: Family(False, 3, 224),
    CONVNEXT: Family(False, None),
    POOLFORMER: Family(False, 3, 224),
    MOBILEVIT: Family(False, None, 256),
}
"""Image processors by the beginning of their names."""

CROP_PCT = {CONVNEXT: 224 / 256, POOLFORMER: 0.9}
CONVNEXT_UNCROPPED = 384

CURE = 'to call the graph with prepared images, write a model.json with "task": "tensor"'

Sizes = PositiveInt | tuple[PositiveInt, PositiveInt] | dict[str, PositiveInt]
Channels = float | tuple[float, float, float]
Flag = bool | None  # null means false, whatever the default is


class Preprocessor(File):
    """Content of `preprocessor_config.json`."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None
    do_resize: Flag = True
    size: Sizes | None = None
    default_to_square: Flag = None
    """Whether a single number as `size` means the side of a square; else its family decides."""

    use_square_size: Literal[False] | None = None
    resample: Literal[0, 1, 2, 3, 4, 5] | None = None
    """Number of the filter, see FILTERS."""

    do_center_crop: Flag = None
    crop_size: Sizes | None = None
    crop_pct: PositiveFloat | None = None
    do_rescale: Flag = True
    rescale_factor: PositiveFloat = 1 / 255
    do_normalize: Flag = True
    image_mean: Channels | None = None
    image_std: Channels | None = None
    do_pad: Literal[False] | None = None

    rescale_offset: Flag = False
    """EfficientNet: whether pixels begin at -1 instead of 0."""

    include_top: Flag = True
    """EfficientNet: whether to divide by `image_std` twice."""

    do_flip_channel_order: Flag = True
    """MobileViT: whether the network takes blue first."""

    def kind(self, model_type: str | None) -> str:
        """Returns the name of the image processor's family, as in FAMILIES.

        Files of 2021 name none: `model_type` of config.json then decides, if it is the family's name.
        Raises ValueError.
        """
        field = "image_processor_type" if self.image_processor_type else "feature_extractor_type"
        name = getattr(self, field)
        if name is None:
            by_type = {kind.lower(): kind for kind in FAMILIES}
            if model_type in by_type:
                return by_type[model_type]
            raise ValueError("image_processor_type is missing: write a name, such as ViTImageProcessor")
        kind = name.removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
        if kind not in FAMILIES:
            raise ValueError(f"{field} is {name[:80]}, whose steps are unknown")
        return str(kind)

    def pipeline(self, kind: str) -> ImagePipeline:
        """Returns the preprocessing steps. Raises ValueError for unsupported ones."""
        if not self.do_resize:
            raise ValueError(
                "do_resize is false, so images would come out in several sizes: write true, and the "
                "network's size as size; images of this size stay as they are"
            )
        is_given = "resample" in self.model_fields_set
        number = self.resample if is_given else FAMILIES[kind].resample
        if number is None:
            raise ValueError("resample is missing: write 2 for bilinear, or 3 for bicubic")
        resize, crop = self._sizes(kind)
        mean, std = self._statistics(kind)
        steps = {"resize": resize, "center_crop": crop, "mean": mean, "std": std}
        exact = {"crop_rounding": "down", "exact": True, "filter": FILTERS[number]}
        if kind == MOBILEVIT and self.do_flip_channel_order:
            exact["channels"] = "BGR"
        return ImagePipeline.model_validate(steps | exact)

    def _sizes(self, kind: str) -> tuple[int | tuple[int, int], int | tuple[int, int] | None]:
        """Returns the size after resizing, the short side or (height, width), and the crop's."""
        family, square = FAMILIES[kind], self.default_to_square
        resize = sides("size", self.size, family.is_square if square is None else square)
        if kind in CROP_PCT:
            if not isinstance(resize, int):
                raise ValueError("size has no shortest_edge")
            share = self.crop_pct or CROP_PCT[kind]
            if kind == POOLFORMER and self.crop_pct is None and "crop_pct" in self.model_fields_set:
                share = 1.0  # null means no scaling, but not for ConvNeXT
            side, resize = resize, int(resize / share)
            if kind == CONVNEXT:
                if self.do_center_crop:
                    raise ValueError("do_center_crop is true, but ConvNeXT crops by crop_pct")
                return ((side, side), None) if side >= CONVNEXT_UNCROPPED else (resize, side)
        if kind == LEVIT and isinstance(resize, int):
            resize = int(256 / 224 * resize)
        is_given = "do_center_crop" in self.model_fields_set
        crops = self.do_center_crop if is_given else family.crop is not None
        if not crops or kind == SEGFORMER:
            return resize, None
        crop = sides("crop_size", self.crop_size or family.crop, square=True)
        if isinstance(crop, int):
            raise ValueError("crop_size has shortest_edge; height and width are supported")
        return resize, crop[0] if crop[0] == crop[1] else crop

    def _statistics(self, kind: str) -> tuple[list[float], list[float]]:
        """Returns mean and standard deviation for pixels from 0 to 1, whatever the file's scale is."""
        once = bool(self.do_normalize) and kind != MOBILEVIT
        again = bool(self.include_top) and kind == EFFICIENTNET
        mean, std = self.image_mean, self.image_std
        if not (once or again):
            mean, std = 0.0, 1.0
        if mean is None or std is None:
            raise ValueError("image_mean or image_std is missing")
        means, stds = np.broadcast_to(mean, 3) * once, np.broadcast_to(std, 3) ** (once + again)
        if self.do_rescale and self.rescale_offset and kind == EFFICIENTNET:
            means = means + 1
        scale = 255 * self.rescale_factor if self.do_rescale else 255.0
        return (means / scale).tolist(), (stds / scale).tolist()


class Processor(File):
    """Content of `processor_config.json`; since transformers 5, it may have the image processor."""

    image_processor: Preprocessor | None = None


def image_pipeline(folder: Path, config: Config) -> ImagePipeline:
    """Reads the image processor's steps. Raises ConfigurationError, ValueError if there is no file."""
    path, newer = folder / PREPROCESSOR, folder / PROCESSOR
    try:
        file = read(newer, Processor).image_processor if newer.exists() else None
        if file:
            path = newer
        elif not path.exists():
            raise ValueError(f"{PREPROCESSOR} is missing beside it: save the image processor there")
        file = file or read(path, Preprocessor)
        with configuration_errors(path):
            return file.pipeline(file.kind(config.model_type))
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
    if isinstance(size, tuple):
        return size
    if set(size) == {"height", "width"}:
        return size["height"], size["width"]
    if set(size) == {"shortest_edge"}:
        return size["shortest_edge"]
    raise ValueError(f"{field} has {sorted(size)}; height and width, or shortest_edge, are supported")

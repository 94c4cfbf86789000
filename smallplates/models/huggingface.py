"""Reads exports of transformers and optimum: a folder with `config.json` and weights.

The weights are `model.onnx` or `onnx/model.onnx`, or for PyTorch `model.safetensors`. The result is the
description that a model.json would contain, with version 1. Unsupported exports fail at startup with a
message naming the file and field. Called by `folder.py`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from smallplates.errors import ConfigurationError, in_words
from smallplates.models.description import ImagePipeline, ModelDescription, TextPipeline, name_of
from smallplates.models.task_kinds import (
    HEADS,
    QUESTION_ANSWERING,
    TEXT_CLASSIFICATION,
    kind_of_architecture,
)

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
MULTI_LABEL, REGRESSION = "multi_label_classification", "regression"
DEFAULT_LABELS = 2
"""Number of labels if config.json doesn't state one."""

DEFAULT_TOKENS = 512
"""Maximum number of tokens if a model's files state no limit."""

NO_LIMIT = 10**6
"""Tokenisers without a limit state a larger number than this."""

BEHIND_PADDING = {
    *("camembert", "data2vec-text", "ernie_m", "esm", "ibert", "longformer", "luke", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types that count positions from `pad_token_id` + 1; its default in transformers is 1."""

FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's number of a filter -> its name; without `nearest`, which no network is trained with."""

CONVNEXT = "ConvNext"
SQUARE = ("ViT", "DeiT", "Beit", "Siglip", "Pvt")
"""Image processors for which a single number means the side of a square."""

BY_SHORT_SIDE = ("CLIP", "Bit", "MobileNetV1", "MobileNetV2", CONVNEXT)
"""Image processors for which a single number means the short side."""

UNCROPPED = ("ViT", "Siglip", "Pvt")
"""Image processors that crop only if their file says so."""

CONVNEXT_CROP_PCT, CONVNEXT_UNCROPPED = 224 / 256, 384

Sizes = PositiveInt | dict[str, PositiveInt]
Channels = float | tuple[float, float, float]


class File(BaseModel):
    """Base of JSON files with the fields that are needed; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)

    auto_map: Any = None
    """The model's own code, which is not supported."""


Content = TypeVar("Content", bound=File)


class Config(File):
    """Content of `config.json`."""

    architectures: list[str] | None = None
    model_type: str | None = None
    problem_type: str | None = None
    id2label: dict[NonNegativeInt, str] | None = None
    num_labels: PositiveInt | None = None
    pad_token_id: NonNegativeInt | None = None
    max_position_embeddings: int | None = None
    n_positions: PositiveInt | None = None
    """Number of positions in GPT-2 and its relatives; T5 has the field, but no positions."""

    @property
    def independent(self) -> bool:
        """Whether classes are independent, so that several may apply."""
        return self.problem_type == MULTI_LABEL or len(self.labels) == 1

    @property
    def positions(self) -> int | None:
        """Number of tokens that the network has positions for; None if unknown or unlimited."""
        most = max(self.max_position_embeddings or 0, 0)
        if self.model_type in BEHIND_PADDING:
            padding = 1 if self.pad_token_id is None else self.pad_token_id
            return (most or DEFAULT_TOKENS) - padding - 1
        return most or None

    @property
    def labels(self) -> list[str]:
        """Class names in the order of the outputs. Raises ValueError."""
        count = self.num_labels or DEFAULT_LABELS
        named = self.id2label or {index: f"LABEL_{index}" for index in range(count)}
        if sorted(named) != list(range(len(named))):
            raise ValueError(f"id2label must have all numbers from 0 to {len(named) - 1}")
        return [named[index] for index in range(len(named))]


class Preprocessor(File):
    """Content of `preprocessor_config.json`."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None
    do_resize: bool = True
    size: Sizes | None = None
    resample: int | None = None
    do_center_crop: bool | None = None
    crop_size: Sizes | None = None
    crop_pct: PositiveFloat | None = None
    do_rescale: bool = True
    rescale_factor: PositiveFloat = 1 / 255
    do_normalize: bool = True
    image_mean: Channels | None = None
    image_std: Channels | None = None
    do_flip_channel_order: bool | None = None

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
        kind = self.kind
        if not self.do_resize:
            raise ValueError("do_resize is false, but all images need the same size")
        if self.do_flip_channel_order:
            raise ValueError("do_flip_channel_order is true, but only RGB is supported")
        resample = FILTERS.get(self.resample or 0)
        if resample is None:
            raise ValueError(f"resample is {self.resample}; filters 1 to 5 are supported")
        resize, crop = self._sizes(kind)
        mean, std = self._statistics()
        steps = {"resize": resize, "center_crop": crop, "crop_rounding": "down", "filter": resample}
        return ImagePipeline.model_validate({**steps, "exact": True, "mean": mean, "std": std})

    def _sizes(self, kind: str) -> tuple[int | tuple[int, int], int | None]:
        """Returns the size after resizing, the short side or (height, width), and the crop's side."""
        if self.size is None:
            raise ValueError("size is missing")
        resize = sides("size", self.size, kind in SQUARE)
        if kind == CONVNEXT:
            if not isinstance(resize, int):
                raise ValueError("size has no shortest_edge")
            if resize >= CONVNEXT_UNCROPPED:
                return (resize, resize), None
            return int(resize / (self.crop_pct or CONVNEXT_CROP_PCT)), resize
        crops = kind not in UNCROPPED if self.do_center_crop is None else self.do_center_crop
        return resize, self._crop(resize) if crops else None

    def _crop(self, resize: int | tuple[int, int]) -> int:
        if self.crop_size is None:
            raise ValueError("crop_size is missing")
        crop = sides("crop_size", self.crop_size, square=True)
        if isinstance(crop, int) or crop[0] != crop[1]:
            raise ValueError("crop_size must be square")
        if crop[0] > (resize if isinstance(resize, int) else min(resize)):
            raise ValueError(f"crop_size is {crop[0]}, more than the resized image has")
        return crop[0]

    def _statistics(self) -> tuple[list[float], list[float]]:
        """Returns mean and standard deviation for pixels from 0 to 1, whatever the file's scale is."""
        mean, std = self.image_mean, self.image_std
        if not self.do_normalize:
            mean, std = 0.0, 1.0
        if mean is None or std is None:
            raise ValueError("image_mean or image_std is missing")
        scale = 255 * self.rescale_factor if self.do_rescale else 255.0
        return [value / scale for value in of_channels(mean)], [
            value / scale for value in of_channels(std)
        ]


class TokenizerConfig(File):
    """Content of `tokenizer_config.json`."""

    model_max_length: float | None = None
    truncation_side: Literal["left", "right"] = "right"
    padding_side: Literal["left", "right"] = "right"
    pad_token: str | dict[str, Any] | None = None
    added_tokens_decoder: dict[NonNegativeInt, dict[str, Any]] = {}

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token; None if there is none."""
        pad = self.pad_token.get("content") if isinstance(self.pad_token, dict) else self.pad_token
        numbers = (n for n, token in self.added_tokens_decoder.items() if token.get("content") == pad)
        return next(numbers, None) if pad else None


def export(folder: Path, version: str | None, name: str = "") -> ModelDescription | None:
    """Returns the description of an export; None if the folder is not an export or `version` is not 1.

    `name` replaces the folder's. Raises ConfigurationError.
    """
    path = folder / CONFIG
    if version not in (None, "1") or not path.is_file():
        return None
    config = read(path, Config)
    if config.model_type is None and config.architectures is None:
        return None  # config.json belongs to another program
    with refusing(path, folder):
        return description(folder, config, name or name_of(folder, folder.resolve().name))


def description(folder: Path, config: Config, name: str) -> ModelDescription:
    """Returns the description for the network's head. Raises ValueError or ConfigurationError."""
    names = config.architectures or []
    if len(names) != 1:
        raise ValueError(f"architectures names {len(names)} networks instead of one")
    kind = kind_of_architecture(names[0])
    if kind is None:
        raise ValueError(
            f"architectures is {names[0][:80]}; supported are those that end in "
            f"{', '.join(HEADS[:-1])} or {HEADS[-1]}"
        )
    made: dict[str, Any] = {"name": name, "version": "1", "task": kind.name}
    if "labels" in kind.needs:
        made["labels"] = config.labels
    if "image" in kind.needs:
        if config.independent:
            raise ValueError("problem_type has independent labels, which are supported for texts only")
        made["image"] = image_pipeline(folder / PREPROCESSOR)
    if "text" in kind.needs:
        made["text"] = text_pipeline(folder, config, kind.name)
    return ModelDescription(**made)


@contextlib.contextmanager
def refusing(path: Path, made_from: Path | None = None) -> Iterator[None]:
    """Turns errors into ConfigurationErrors about `path`; for pydantic's, about `made_from` if given."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{made_from or path} cannot be served: {in_words(error)}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from error


def image_pipeline(path: Path) -> ImagePipeline:
    """Reads the image processor's steps. Raises ConfigurationError."""
    file = read(path, Preprocessor)
    with refusing(path):
        return file.pipeline()


def text_pipeline(folder: Path, config: Config, task: str) -> TextPipeline:
    """Reads the preprocessing of texts. Raises ConfigurationError, or ValueError for a regression."""
    if task == TEXT_CLASSIFICATION and config.problem_type == REGRESSION:
        raise ValueError("problem_type is regression, which has no classes")
    if not (folder / TOKENIZER).is_file():
        raise ConfigurationError(
            f"{folder / TOKENIZER} is missing: only tokenisers in this format are "
            "supported, which transformers saves with use_fast=True"
        )
    path = folder / TOKENIZER_CONFIG
    file = read(path, TokenizerConfig) if path.exists() else TokenizerConfig()
    if task == QUESTION_ANSWERING and file.padding_side == "left":
        raise ConfigurationError(
            f"{path} cannot be served: padding_side is left, which would put the context first"
        )
    length = file.model_max_length
    limits = (int(length) if length and length < NO_LIMIT else None, config.positions)
    return TextPipeline(
        max_tokens=min(filter(None, limits), default=config.n_positions or DEFAULT_TOKENS),
        pad_token_id=file.pad_token_id if config.pad_token_id is None else config.pad_token_id,
        truncation_side=file.truncation_side,
        activation="sigmoid" if task == TEXT_CLASSIFICATION and config.independent else "softmax",
    )


def read(path: Path, kind: type[Content]) -> Content:
    """Reads a JSON file. Raises ConfigurationError, also if the model has its own code."""
    with refusing(path):
        content = kind.model_validate_json(path.read_bytes())
        if content.auto_map:
            raise ValueError("auto_map names the model's own code")
    return content


def sides(field: str, size: Sizes, square: bool) -> int | tuple[int, int]:
    """Returns the short side or (height, width); `square` decides for a single number.

    Raises ValueError.
    """
    if isinstance(size, int):
        return (size, size) if square else size
    if set(size) == {"height", "width"}:
        return size["height"], size["width"]
    if set(size) == {"shortest_edge"}:
        return size["shortest_edge"]
    raise ValueError(f"{field} has {sorted(size)}; height and width, or shortest_edge, are supported")


def of_channels(value: Channels) -> tuple[float, float, float]:
    """Returns a value for each channel."""
    return value if isinstance(value, tuple) else (value, value, value)

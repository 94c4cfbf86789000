"""Types of `model.json`: how to call a model, what it needs, and what was measured.

`folder.py` reads them from files, `huggingface.py` creates them from an export.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from smallplates.errors import ConfigurationError
from smallplates.models.task_kinds import IMAGE_CLASSIFICATION, kind_of

Side = Annotated[int, Field(gt=0, le=4096)]
"""Length in pixels; a batch of larger images would not fit into memory."""

Size = tuple[Side, Side]
Activation = Literal["softmax", "sigmoid"]
Kind = Literal[
    "model.onnx",
    "model.safetensors",
    "model.safetensors.index.json",
    "model_quantized.onnx",
    "model_quantized.pt",
]
GRAPH: Kind = "model.onnx"
DEFAULT_LIMIT = 512
"""Maximum size of a tensor axis that varies, if nothing states one and larger ones were not tried."""

INT8_KINDS: dict[Kind, Kind] = {"model_quantized.onnx": GRAPH, "model_quantized.pt": "model.safetensors"}
"""Files in int8, and those in fp32 from which they are made."""

Version = Annotated[str, Field(pattern="^[1-9][0-9]*$")]
VersionLabel = Annotated[str, Field(pattern=r"^[0-9]*[A-Za-z._-][A-Za-z0-9._-]*$")]  # is not a number
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ImagePipeline(BaseModel):
    """Preprocessing of an image: the steps in their order."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    resize: Side | Size
    """Length in pixels to which the short side is resized, or `[height, width]`. Antialiased."""

    filter: Literal["bilinear", "bicubic", "lanczos", "hamming", "box", "nearest"] = Field(
        default="bilinear", exclude_if=lambda value: value == "bilinear"
    )
    """Filter for `resize` and `enlarge`. `nearest` is not antialiased."""

    exact: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether to resize to exactly Pillow's pixels. Otherwise faster code is used, with some pixels off
    by one, very few by two."""

    center_crop: Side | Size | None = None
    """Side in pixels of the square that is cropped from the centre after `resize`, or `[height, width]`,
    with black borders if the image is smaller; null: no crop."""

    crop_rounding: Literal["nearest", "down"] = Field(
        default="nearest", exclude_if=lambda value: value == "nearest"
    )
    """How the crop's corner is rounded if it lies between two pixels."""

    enlarge: Size | None = None
    """Size to which the crop is resized, `[height, width]`; null: the crop's own size."""

    channels: Literal["RGB", "BGR"] = Field(default="RGB", exclude_if=lambda value: value == "RGB")
    """Order of the channels that the network takes."""

    mean: tuple[float, float, float]
    """Mean of each channel, in the order of `channels`, subtracted from pixels between 0 and 1."""

    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    """Standard deviation of each channel, by which the difference is divided."""

    activation: Activation = Field(default="softmax", exclude_if=lambda value: value == "softmax")
    """How logits become probabilities: `softmax` for mutually exclusive classes, otherwise `sigmoid`."""

    @model_validator(mode="after")
    def check_output_is_fixed(self) -> "ImagePipeline":
        """Checks that every image comes out in the same size, as a batch needs."""
        if isinstance(self.resize, int) and self.center_crop is None and self.enlarge is None:
            raise ValueError("resize by the short side needs center_crop or enlarge after it")
        return self

    @property
    def output_size(self) -> tuple[int, int]:
        """Size of every preprocessed image, (height, width)."""
        if self.enlarge:
            return self.enlarge
        if self.crop:
            return self.crop
        assert not isinstance(self.resize, int)  # noqa: S101 ensured by check_output_is_fixed
        return self.resize

    @property
    def crop(self) -> Size | None:
        """Size of the centre crop, (height, width)."""
        side = self.center_crop
        return (side, side) if isinstance(side, int) else side


class TextPipeline(BaseModel):
    """Preprocessing of a text beyond `tokenizer.json`, and the meaning of the logits."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    max_tokens: PositiveInt
    """Maximum number of tokens in a text, including special tokens."""

    pad_token_id: NonNegativeInt | None
    """Token that pads the shorter texts of a batch; null: only texts of equal length share a batch."""

    truncation_side: Literal["left", "right"] = "right"
    """End at which a long text is cut off."""

    activation: Activation = "softmax"
    """How logits become probabilities: `softmax` for mutually exclusive classes, otherwise `sigmoid`."""

    raw_scores: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether a reranker returns the network's own numbers, unless a request says otherwise."""


POOLING = "mean|cls|max|lasttoken|mean_sqrt_len_tokens|weightedmean"


class EmbeddingPipeline(BaseModel):
    """From the vectors of a text's tokens to the text's vector, and what may be put before the text."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    pooling: Annotated[str, Field(pattern=rf"^({POOLING})(\+({POOLING}))*$")] = "mean"
    """How the tokens' vectors become one: `mean`, `cls`, `max`, `lasttoken`, `mean_sqrt_len_tokens` or
    `weightedmean`. `cls+mean` puts two vectors one after the other. Ignored if the graph has the output
    `sentence_embedding`."""

    dense: list[str] = []
    """Folders of linear layers that follow, each with `config.json` and `model.safetensors`."""

    normalize: bool = False
    """Whether vectors have the length 1, unless a request says otherwise."""

    dimensions: PositiveInt | None = Field(default=None, exclude_if=lambda value: value is None)
    """How many of a vector's first numbers are returned, unless a request says otherwise; null: all."""

    lower_case: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether texts are made lower case before they are tokenized."""

    prompts: dict[str, str] = {}
    """Texts to put in front of a text, by the `prompt_name` of a request."""

    default_prompt_name: str | None = None
    """Prompt for requests without `prompt_name`; null: none."""

    note: str = ""
    """What the model's files leave open, and how the service reads it."""

    @model_validator(mode="after")
    def check_default_prompt(self) -> "EmbeddingPipeline":
        """Checks that the default prompt is one of the prompts."""
        if self.default_prompt_name not in (None, *self.prompts):
            raise ValueError(f"default_prompt_name {self.default_prompt_name!r} is not in prompts")
        return self


class Thresholds(BaseModel):
    """Limits of certainty: the page calls an answer below either of them uncertain."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    probability: float = Field(ge=0, le=1)
    """Minimum probability of the best class."""

    margin: float = Field(ge=0, le=1)
    """Minimum difference between the probabilities of the two best classes."""


class Int8Verdict(BaseModel):
    """Whether an int8 file agrees with fp32.

    These are the fields that the service reads; `smallplates export` writes more
    (`smallplates.export.int8_verdict.Verdict`), which are kept.
    """

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    fit: bool
    """Whether `SERVING_PRECISION=auto` may use the file."""

    reason: str
    """Reason for the verdict, in words."""

    sample_difference: float
    """Mean difference from fp32 on the sample inputs. The service measures it again at startup."""

    method: str = ""
    """How the file was quantized; empty if unknown."""

    agreement: float | None = None
    """Share of the photos or texts for which fp32 and int8 name the same class."""

    photos: int | None = None
    """Number of photos or texts that were compared."""

    fp32_sha256: str = Field(default="", exclude_if=lambda value: not value)
    """SHA-256 of the fp32 weights from which the file was made; empty if unknown."""


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Pattern of a model's name."""


def folder_name(folder: Path) -> str:
    """Returns a folder's name; a symbolic link keeps its own, and does not take its target's."""
    return Path(os.path.abspath(folder)).name  # noqa: PTH100 - resolve() follows links


def name_of(path: Path, name: str) -> str:
    """Returns the name of a folder or file as its model's name. Raises ConfigurationError."""
    if re.fullmatch(NAME, name):
        return name
    raise ConfigurationError(
        f"{path} has no model.json, and {name!r} cannot be a model's name: rename it, using letters, "
        "digits, dots, hyphens and underscores, or serve it as NAME=FOLDER"
    )


class ModelDescription(BaseModel):
    """Content of `model.json`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=NAME)]
    """Name by which clients call the model."""

    version: Version
    """Subfolder that holds the weights: a whole number from 1."""

    version_labels: dict[VersionLabel, Version] = Field(default={}, exclude_if=lambda value: not value)
    """Further names of versions in paths and gRPC requests, such as `{"v0.1.0": "1"}`."""

    title: str = Field(default="", exclude_if=lambda value: not value)
    """Heading of the web page, such as `What food is this?`."""

    description: str = ""
    """What the model does, in a sentence or two. The web page shows it below the title."""

    task: str = IMAGE_CLASSIFICATION
    """What the model does with a request: `image-classification`, `text-classification`,
    `zero-shot-classification`, `token-classification`, `question-answering`, `embedding`, `ranking`,
    `tensor` for a graph that is called with tensors only, or `module:Class` for a Python class of
    yours."""

    labels: list[str] = []
    """Class names, in the order of the network's outputs."""

    image: ImagePipeline | None = None
    """Preprocessing of images."""

    text: TextPipeline | None = None
    """Preprocessing of texts. The tokenizer is the file `tokenizer.json` in the model folder."""

    embedding: EmbeddingPipeline | None = None
    """How the vectors of tokens become a text's vector."""

    limits: dict[str, PositiveInt] = {}
    """Maximum size of each tensor axis that varies, by the axis' name in the graph. For other axes, the
    service finds at startup how large an item the graph computes; at least 512. An axis that is listed
    is not the batch dimension. For a Python task: `request_bytes` and `answer_bytes`."""

    aliases: dict[str, Literal["request", "tensor"]] = {}
    """Further names of the model, each for calls with requests or with tensors. A name for tensors
    replaces `NAME_tensor`."""

    names: dict[str, str] = {}
    """Names for fields of requests and answers in v2 and TensorFlow Serving's protocol. By default, a
    field has its own name in capital letters. For the task `tensor`: names for the graph's inputs and
    outputs."""

    architecture: str | None = None
    """Network for the PyTorch backend: a name in `torchvision.models`."""

    body_size: Side | None = None
    """Side in pixels to which the PyTorch network reduces its input; null: no reduction."""

    instances: PositiveInt | Literal["auto"] | None = None
    """Overrides `SERVING_INSTANCES` for this model; `SERVING_INSTANCES__NAME` overrides both."""

    max_batch_size: PositiveInt | Literal["auto"] | None = None
    """Overrides `SERVING_MAX_BATCH_SIZE` in the same way."""

    max_queue_delay_us: NonNegativeInt | None = None
    """Overrides `SERVING_MAX_QUEUE_DELAY_US` in the same way; in microseconds."""

    max_wait_ms: PositiveInt | None = None
    """Overrides `SERVING_MAX_WAIT_MS` in the same way; in milliseconds."""

    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] | None = None
    """Overrides `SERVING_PRECISION` in the same way."""

    idle_unload_s: NonNegativeFloat | None = None
    """Overrides `SERVING_IDLE_UNLOAD_S` in the same way; in seconds."""

    files: dict[str, Sha256] = {}
    """SHA-256 of each file that the service reads, by its path in the model folder. Graphs for texts and
    tensors need no entry."""

    int8: dict[str, SerializeAsAny[Int8Verdict]] = {}
    """Whether each int8 file agrees with fp32, by its path in the model folder."""

    thresholds: Thresholds | None = None
    """Below these limits, the web page calls an answer uncertain."""

    accuracy: dict[str, float | int | dict[str, float | int]] = {}
    """Accuracy, measured through the served pipeline. The service only shows it in `/model`."""

    @model_validator(mode="after")
    def check_task_is_complete(self) -> "ModelDescription":
        """Checks that a task has what it needs."""
        for name in kind_of(self.task).needs:
            if not getattr(self, name):
                raise ValueError(f"{name}: required for the task {self.task}")
        return self

    @property
    def pipeline(self) -> ImagePipeline:
        """Preprocessing of images. Raises ConfigurationError if the model does not take images."""
        if self.image is None:
            raise ConfigurationError(f"{self.name} is not an image classifier; its task is {self.task}")
        return self.image

    @property
    def activation(self) -> Activation:
        """How a classifier's logits become probabilities."""
        pipeline = self.text or self.image
        return pipeline.activation if pipeline else "softmax"

    @property
    def text_pipeline(self) -> TextPipeline:
        """Preprocessing of texts. Raises ConfigurationError if the model does not take texts."""
        if self.text is None:
            raise ConfigurationError(f"{self.name} does not take texts; its task is {self.task}")
        return self.text

    @property
    def embedding_pipeline(self) -> EmbeddingPipeline:
        """How texts become vectors. Raises ConfigurationError if the model makes none."""
        if self.embedding is None:
            raise ConfigurationError(f"{self.name} does not make embeddings; its task is {self.task}")
        return self.embedding

    def limit(self, axis: str) -> int:
        """Returns the maximum size of an axis that varies; in a text model that is its tokens."""
        return self.text.max_tokens if self.text else self.limits.get(axis, DEFAULT_LIMIT)

    def json_text(self) -> str:
        """Returns one line of JSON for Triton's `ModelConfig`, without digests, verdicts and names."""
        without = self.model_copy(update={"files": {}})
        left_out = {"int8", "task", "limits", "aliases", "names"}
        return without.model_dump_json(exclude=left_out, exclude_none=True)

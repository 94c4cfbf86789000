"""Types of `model.json`: how a model is called, what it needs, and what was measured of it.

`model.py` reads them from files, `huggingface.py` makes them of an export.
"""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from serving.errors import ConfigurationError
from serving.task_kinds import IMAGE_CLASSIFICATION, kind_of

Side = Annotated[int, Field(gt=0, le=4096)]
"""Length in pixels; a batch of larger images would not fit into memory."""

Size = tuple[Side, Side]
Kind = Literal[
    "model.onnx",
    "model.safetensors",
    "model.safetensors.index.json",
    "model_quantized.onnx",
    "model_quantized.pt",
]
GRAPH: Kind = "model.onnx"
INT8_KINDS: tuple[Kind, ...] = ("model_quantized.onnx", "model_quantized.pt")
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ImagePipeline(BaseModel):
    """Preprocessing of an image: the steps in their order."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    resize: Side | Size
    """Length of the short side, or [height, width]; antialiased."""

    filter: Literal["bilinear", "bicubic", "lanczos", "hamming", "box"] = Field(
        default="bilinear", exclude_if=lambda value: value == "bilinear"
    )
    """Filter of both resizes."""

    exact: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the resizes round as Pillow does; faster code is off by one in some of the pixels."""

    center_crop: Side | None = None
    """Side of the square that is cropped from the centre."""

    crop_rounding: Literal["nearest", "down"] = Field(
        default="nearest", exclude_if=lambda value: value == "nearest"
    )
    """Way to a whole pixel, where the centre's crop would begin between two."""

    enlarge: Size | None = None
    """Size to which the crop is resized, [height, width]."""

    mean: tuple[float, float, float]
    """Subtracted from pixels in [0, 1], per channel."""

    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    """Divisor after the subtraction, per channel."""

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
        if self.center_crop:
            return self.center_crop, self.center_crop
        assert not isinstance(self.resize, int)  # noqa: S101 check_output_is_fixed holds this
        return self.resize


class TextPipeline(BaseModel):
    """Preprocessing of a text, beside what `tokenizer.json` says, and what its logits mean."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    max_tokens: PositiveInt
    """Most tokens of a text, the special ones among them."""

    pad_token_id: NonNegativeInt | None
    """Token behind the shorter texts of a batch; None: only texts of the same length share one."""

    truncation_side: Literal["left", "right"] = "right"
    """End at which a long text is truncated."""

    activation: Literal["softmax", "sigmoid"] = "softmax"
    """`sigmoid` if the classes do not exclude each other."""


class Thresholds(BaseModel):
    """Limits of certainty: an answer below either of them is uncertain."""

    probability: float = Field(ge=0, le=1)
    margin: float = Field(ge=0, le=1)


class Int8Verdict(BaseModel):
    """Whether an int8 file agrees with fp32, as far as the service asks.

    `servery export` writes more (`training.int8_verdict.Verdict`), which is kept.
    """

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    fit: bool
    """Whether `SERVING_PRECISION=auto` may serve it."""

    reason: str
    """What speaks for or against it, in words."""

    sample_difference: float
    """`precision_check.mean_difference` from fp32 on the sample images; the check at load repeats it."""

    method: str = ""
    """How the file was made; empty for a file that was made elsewhere."""


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of a model."""


class ModelDescription(BaseModel):
    """Content of `model.json`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=NAME)]
    version: Annotated[str, Field(pattern="^[1-9][0-9]*$")]
    """Subfolder that holds the weights."""

    title: str = Field(default="", exclude_if=lambda value: not value)
    """Heading of the page, such as `What food is this?`."""

    description: str = ""
    """What the model does, in a sentence or two; the page shows it, too."""

    task: str = IMAGE_CLASSIFICATION
    """What a request means: `image-classification`, `text-classification`, `question-answering`,
    `tensor` for a graph that is asked in tensors only, or `module:Class`, a class of one's own."""

    labels: list[str] = []
    """Class names in the order of the outputs."""

    image: ImagePipeline | None = None
    """Preprocessing, of an image classifier."""

    text: TextPipeline | None = None
    """Preprocessing, of a task about texts; its tokeniser is `tokenizer.json` in the folder."""

    limits: dict[str, PositiveInt] = {}
    """Largest size of each axis of the graph's tensors that varies, by the axis' name in the graph."""

    aliases: dict[str, Literal["request", "tensor"]] = {}
    """Other names of the model in the protocols that have names, and the form in which each is asked."""

    names: dict[str, str] = {}
    """Names of the request's and the answer's fields there, in place of the same in capital letters."""

    architecture: str | None = None
    """Name in torchvision.models; the PyTorch backend needs it."""

    body_size: Side | None = None
    """Side in pixels to which the network reduces its input; None: no reduction."""

    instances: PositiveInt | Literal["auto"] | None = None
    """For this and the next three, see the settings of these names: this model's own, which beat
    SERVING_INSTANCES and the like, and are beaten by SERVING_INSTANCES__NAME."""

    max_batch_size: PositiveInt | Literal["auto"] | None = None
    max_queue_delay_us: NonNegativeInt | None = None
    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] | None = None

    files: dict[str, Sha256] = {}
    """SHA-256 of each file, by its path in the folder; graphs of `tensor` and of tasks about texts may
    be left out."""

    int8: dict[str, SerializeAsAny[Int8Verdict]] = {}
    """Verdict on each int8 file, by its path in the folder."""

    thresholds: Thresholds | None = None
    accuracy: dict[str, float | int | dict[str, float | int]] = {}
    """Accuracy, measured through the served pipeline."""

    @model_validator(mode="after")
    def check_task_is_complete(self) -> "ModelDescription":
        """Checks that a task has what it needs."""
        for name in kind_of(self.task).needs:
            if not getattr(self, name):
                raise ValueError(f"{name}: needed for the task {self.task}")
        return self

    @property
    def pipeline(self) -> ImagePipeline:
        """Preprocessing of an image classifier. Raises ConfigurationError for other models."""
        if self.image is None:
            raise ConfigurationError(f"{self.name} is no image classifier, but {self.task}")
        return self.image

    @property
    def text_pipeline(self) -> TextPipeline:
        """Preprocessing of texts. Raises ConfigurationError for models that take none."""
        if self.text is None:
            raise ConfigurationError(f"{self.name} takes no texts, but is for {self.task}")
        return self.text

    def json_text(self) -> str:
        """Returns one line of JSON for Triton's `ModelConfig`: without digests, verdicts and names."""
        without = self.model_copy(update={"files": {}})
        left_out = {"int8", "task", "limits", "aliases", "names"}
        return without.model_dump_json(exclude=left_out, exclude_none=True)

"""Model folder: reads `model.json`, with labels and image pipeline, and finds each version's weights.

models/NAME/model.json
models/NAME/VERSION/model.onnx, model.safetensors                     weights, of the two backends
models/NAME/VERSION/model_quantized.onnx, model_quantized.pt          the same in int8, for CPUs
models/NAME/VERSION/model.json    replaces NAME/model.json for this version, `files` included

A folder without `model.json` is of the folder's name. With transformers' `config.json` it is read as
`huggingface.py` says, with the weights beside it. Else its `model.onnx`, itself or in VERSION, or its
only .onnx file, is a graph that is called with tensors. The path of an .onnx file is such a graph, too.

Called at start by the service, the supervisor and the workers.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from serving.errors import ConfigurationError, in_words

IMAGE_CLASSIFICATION, TENSOR = "image-classification", "tensor"
TEXT_CLASSIFICATION, QUESTION_ANSWERING = "text-classification", "question-answering"
GRAPHS = (TENSOR, TEXT_CLASSIFICATION, QUESTION_ANSWERING)
"""Tasks whose graph is called as its file has it."""

MOST_NAMES = 5  # in a message

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
    """Comparison of an int8 file with fp32 on the same photos or texts, made by `training.export`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    fit: bool
    """Whether `SERVING_PRECISION=auto` may serve it."""

    reason: str
    """What speaks for or against it, in words."""

    sample_difference: float
    """`precision_check.mean_difference` from fp32 on the sample images; the check at load repeats it."""

    agreement: float
    """Share of the photos or texts for which both name the same class."""

    mean_difference: float
    """Mean difference of a class's probability."""

    worst_difference: float
    """Largest difference of a class's probability."""

    photos: int
    """Number of photos or texts that were compared."""

    accuracy: dict[str, float] = {}
    """Top-1 accuracy of `fp32` and `int8`, where the photos have labels."""

    megabytes: dict[str, float]
    """Size of each precision's file."""

    batch_ms: dict[str, dict[int, float]]
    """Milliseconds of a batch on one thread, by precision and batch size."""

    method: str = ""
    """How the file was made; empty for a file that was brought."""

    fp32_nodes: list[str] = []
    """Nodes that were left in fp32 because they cost too much accuracy in int8."""


class ModelDescription(BaseModel):
    """Content of `model.json`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
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

    files: dict[str, Sha256] = {}
    """SHA-256 of each file, by its path in the folder; graphs of `tensor` and of tasks about texts may
    be left out."""

    int8: dict[str, Int8Verdict] = {}
    """Verdict on each int8 file, by its path in the folder."""

    thresholds: Thresholds | None = None
    accuracy: dict[str, float | int | dict[str, float | int]] = {}
    """Accuracy, measured through the served pipeline."""

    @model_validator(mode="after")
    def check_task_is_complete(self) -> "ModelDescription":
        """Checks that a task has what it needs."""
        needed: dict[str, dict[str, object]] = {
            IMAGE_CLASSIFICATION: {"labels": self.labels, "image": self.image},
            TEXT_CLASSIFICATION: {"labels": self.labels, "text": self.text},
            QUESTION_ANSWERING: {"text": self.text},
        }
        for name, value in needed.get(self.task, {}).items():
            if not value:
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


class Model:
    """One version of a model: its description and its folder."""

    def __init__(self, folder: Path, description: ModelDescription, path: Path | None = None) -> None:
        """`path` is what `read` was given: the folder, or an .onnx file in it."""
        self.folder = folder
        self.description = description
        self.path = path or folder

    @classmethod
    def read(cls, folder: Path, version: str | None = None) -> "Model":
        """Reads the description of a version, by default of the one in `model.json`.

        `folder` may also be an .onnx file. Raises ConfigurationError.
        """
        if folder.suffix == ".onnx" and folder.is_file():
            name = folder.resolve().parent.name if folder.name == GRAPH else folder.stem
            return cls(folder.parent, graph_description(folder, name, "1"), folder)
        path = folder / "model.json"
        if version is not None and (folder / version / "model.json").exists():
            path = folder / version / "model.json"
        try:
            if not path.exists() and (found := described(folder, version)):
                return cls(folder, found)
            description = ModelDescription.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigurationError(f"no model in {folder}: {what_is_missing(folder)}") from error
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise ConfigurationError(f"{path} is not as documented: {in_words(error)}") from error
        return cls(folder, description.model_copy(update={"version": version or description.version}))

    @cached_property
    def labels(self) -> list[str]:
        """Class names in the order of the outputs."""
        return self.description.labels

    @classmethod
    def read_checked(cls, folder: Path, sha256: str | None) -> "Model":
        """Reads the version that `model.json` names; `sha256` is that file's digest where it is known.

        Raises ConfigurationError, also for another file.
        """
        model = cls.read(folder)
        path = folder / "model.json"
        if sha256 and not path.exists():
            raise ConfigurationError(f"{path} is missing, whose SHA-256 is to be {sha256}")
        if sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise ConfigurationError(f"{path} is not the file whose SHA-256 is {sha256}")
        return model

    def has(self, kind: Kind) -> bool:
        """Returns whether the folder has this file, listed in model.json or brought by somebody."""
        return self._relative(kind) in self.description.files or self._is_brought(kind)

    def verdict(self, kind: Kind) -> Int8Verdict | None:
        """Returns what model.json says of an int8 file, or a file of JSON beside it; None if nothing.

        Raises ConfigurationError.
        """
        relative = self._relative(kind)
        beside = (self.folder / relative).with_suffix(".json")
        if relative in self.description.int8 or self._has_model_json or not beside.is_file():
            return self.description.int8.get(relative)
        try:
            return Int8Verdict.model_validate_json(beside.read_bytes())
        except ValidationError as error:
            raise ConfigurationError(f"{beside} is not as documented: {in_words(error)}") from error

    def file(self, kind: Kind) -> Path:
        """Returns the path of the version's weights, after a check of their digest.

        An int8 file may be brought: without an entry in model.json there is no digest. Raises
        ConfigurationError.
        """
        relative = self._relative(kind)
        path = self.folder / relative
        expected = self.description.files.get(relative)
        if expected is None and self._is_brought(kind):
            return path
        if expected is None and not self._has_model_json:
            raise ConfigurationError(f"{self.folder} has no {kind}, which this backend serves")
        if expected is None:
            raise ConfigurationError(
                f"the model {self.description.name} has no {relative} for this backend: "
                f"no model.json in {self.folder} names one (training.export writes both)"
            )
        return self.checked(relative)

    def tokenizer(self) -> Path:
        """Returns the path of the tokeniser. Raises ConfigurationError."""
        name = "tokenizer.json"
        return self.checked(name) if name in self.description.files else self.folder / name

    def checked(self, relative: str) -> Path:
        """Returns the path of one of `files`, after a check of its digest. Raises ConfigurationError."""
        path = self.folder / relative
        if not path.is_file():
            raise ConfigurationError(f"the model {self.description.name} has no {relative}: {path}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.description.files[relative]:
                raise ConfigurationError(f"{path} is not the file that model.json describes")
        return path

    @property
    def _has_model_json(self) -> bool:
        return (self.path / "model.json").exists()

    def _relative(self, kind: Kind) -> str:
        relative = f"{self.description.version}/{kind}"
        if self.path != self.folder:
            return self.path.name if kind == GRAPH else relative
        if self._has_model_json or (self.folder / relative).exists():
            return relative
        beside = (kind, f"onnx/{kind}")
        found = next((each for each in beside if (self.folder / each).is_file()), None)
        return found or (kind == GRAPH and only_graph(self.folder)) or relative

    def _is_brought(self, kind: Kind) -> bool:
        may_be = kind in INT8_KINDS or self.description.task in GRAPHS or not self._has_model_json
        return may_be and (self.folder / self._relative(kind)).is_file()


def described(folder: Path, version: str | None) -> ModelDescription | None:
    """Returns the description of a folder without model.json; None if it holds no model.

    Raises ConfigurationError.
    """
    from serving import huggingface  # it makes a ModelDescription

    return huggingface.export(folder, version) or bare_graph(folder, version)


def bare_graph(folder: Path, version: str | None) -> ModelDescription | None:
    """Returns the description of a folder that holds only an ONNX file; None if it holds none.

    A file beside no version is version 1. Raises ConfigurationError for a name that no model may have.
    """
    version = version or "1"
    graphs = [folder / version / GRAPH, *([folder / GRAPH] if version == "1" else [])]
    if any(graph.is_file() for graph in graphs) or (version == "1" and only_graph(folder)):
        return graph_description(folder, folder.resolve().name, version)
    return None


def graph_description(path: Path, name: str, version: str) -> ModelDescription:
    """Returns the description of an ONNX file that has none. Raises ConfigurationError."""
    try:
        return ModelDescription(name=name, version=version, task=TENSOR)
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} has no model.json, and {name!r} cannot be a model's name: rename it, with letters, "
            "digits, dots, hyphens and underscores"
        ) from error


def only_graph(folder: Path) -> str | None:
    """Returns the name of a folder's only .onnx file but for int8; None unless there is one."""
    graphs = [path.name for path in folder.glob("*.onnx") if path.name not in INT8_KINDS]
    return graphs[0] if len(graphs) == 1 else None


def what_is_missing(folder: Path) -> str:
    """Returns in words what a folder would need to hold a model, and what it has."""
    if not folder.is_dir():
        return "there is no such folder or .onnx file"
    models = sorted(path.parent.name for path in folder.glob("*/model.json"))
    models += sorted(path.parent.name for path in folder.glob("*/config.json"))
    if models:
        return f"it holds folders of models; name one of them: {listed(models)}"
    found = sorted(path.name for path in folder.iterdir())
    needed = f"it needs model.json, the config.json of an export, {GRAPH} or a single .onnx file"
    return f"{needed}; {f'it has {listed(found)}' if found else 'it is empty'}"


def listed(names: Sequence[str]) -> str:
    """Returns the first names, and how many there are if these are not all."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more

"""Reads exports of transformers and optimum: a folder with `config.json` and weights.

The weights are `model.onnx` or `onnx/model.onnx`, or for PyTorch `model.safetensors`. The result is the
description that a model.json would contain, with version 1; the task's class reads its part of it.
Unsupported exports fail at startup with a message naming the file and field. Called by `folder.py`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from smallplates.errors import ConfigurationError, in_words
from smallplates.models.description import ModelDescription, folder_name, name_of
from smallplates.models.task_kinds import HEADS, kinds_of_export

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
MULTI_LABEL, REGRESSION = "multi_label_classification", "regression"
OF_TIMM = "TimmWrapperForImageClassification"
"""Network of a folder that timm has written, which names none."""

DEFAULT_LABELS = 2
"""Number of labels if config.json doesn't state one."""

DEFAULT_TOKENS = 512
"""Maximum number of tokens if a model's files state no limit."""

BEHIND_PADDING = {
    *("camembert", "data2vec-text", "ernie_m", "esm", "ibert", "longformer", "luke", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types that count positions from `pad_token_id` + 1; its default in transformers is 1."""


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
    tokenizer_class: str | None = None
    problem_type: str | None = None
    id2label: dict[NonNegativeInt, str] | None = None
    num_labels: PositiveInt | None = None
    num_channels: Any = None
    vocab_size: int | None = None
    pad_token_id: NonNegativeInt | None = None
    max_position_embeddings: int | None = None
    n_positions: PositiveInt | None = None
    """Number of positions in GPT-2 and its relatives; T5 has the field, but no positions."""

    pretrained_cfg: Any = None
    """What timm writes about its networks, which `tasks/image/timm.py` reads."""

    text_config: Any = None
    """Part of a network that has another one for images or sounds."""

    sentence_transformers: dict[str, Any] | None = None
    sbert_ce_default_activation_function: str | None = None
    """These two are in exports of sentence-transformers' CrossEncoder, the second in older ones."""

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
        names = self.id2label or {index: f"LABEL_{index}" for index in range(count)}
        if sorted(names) != list(range(len(names))):
            raise ValueError(f"id2label must have all numbers from 0 to {len(names) - 1}")
        return [names[index] for index in range(len(names))]


def export(folder: Path, version: str | None, name: str = "") -> ModelDescription | None:
    """Returns the description of an export; None if the folder is not an export or `version` is not 1.

    `name` replaces the folder's. Raises ConfigurationError.
    """
    path = folder / CONFIG
    if version not in (None, "1") or not path.is_file():
        return None
    config = read(path, Config)
    if config.model_type is None and config.architectures is None and not config.pretrained_cfg:
        return None  # config.json belongs to another program
    with configuration_errors(path, folder):
        return description(folder, config, name or name_of(folder, folder_name(folder)))


def description(folder: Path, config: Config, name: str) -> ModelDescription:
    """Returns the description for the network's head. Raises ValueError or ConfigurationError."""
    names = config.architectures or ([OF_TIMM] if config.pretrained_cfg else [])
    if len(names) != 1:
        raise ValueError(f"architectures names {len(names)} networks instead of one")
    for kind in kinds_of_export(folder, names[0]):
        fields = kind.load().from_export(folder, config)
        if fields is not None:
            return ModelDescription(name=name, version="1", task=kind.name, **fields)
    raise ValueError(
        f"architectures is {names[0][:80]}; supported are those that end in "
        f"{', '.join(HEADS[:-1])} or {HEADS[-1]}"
    )


@contextlib.contextmanager
def configuration_errors(path: Path, made_from: Path | None = None) -> Iterator[None]:
    """Turns errors into ConfigurationErrors about `path`; for pydantic's, about `made_from` if given."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{made_from or path} cannot be served: {in_words(error)}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be served: {error}") from error


def read(path: Path, kind: type[Content]) -> Content:
    """Reads a JSON file. Raises ConfigurationError, also if the model has its own code."""
    with configuration_errors(path):
        content = kind.model_validate_json(path.read_bytes())
        if content.auto_map:
            raise ValueError("auto_map names the model's own code")
    return content

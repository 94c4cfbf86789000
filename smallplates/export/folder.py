"""Model folder: its labels and `model.json`, as `cli/export.py` writes them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from smallplates.errors import ConfigurationError, in_words
from smallplates.models.description import INT8_KINDS, ImagePipeline, Kind, ModelDescription
from smallplates.models.folder import Model
from smallplates.models.huggingface import TOKENIZER

WORDS = ("title", "description", "aliases", "names")
"""Fields that people write into model.json."""

WEIGHTS: tuple[Kind, ...] = ("model.onnx", "model.safetensors")


def read_labels(path: Path) -> list[str]:
    """Reads one label a line, without empty lines; or JSON like TorchServe's index_to_name.json.

    Raises ConfigurationError and OSError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return labels_by_index(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} contains no labels: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def labels_by_index(names: dict[str, str | list[str]]) -> list[str]:
    """Lists the names in `{"0": "cat", "1": ["n02084071", "dog"]}` by their numbers.

    Raises KeyError if a number is missing.
    """
    listed = [names[str(index)] for index in range(len(names))]
    return [name if isinstance(name, str) else name[-1] for name in listed]


def write_description(out: Path, description: ModelDescription) -> None:
    """Writes `model.json`, with the digests of the version's weights.

    For an additional version writes it beside that version's weights, and leaves the other versions,
    which may be in service, as they are. What people wrote into an earlier model.json stays.
    """
    folder = out / description.version
    listed = [f"{description.version}/{kind}" for kind in (*WEIGHTS, *INT8_KINDS)]
    if description.text:
        listed.append(TOKENIZER)
    description.files = {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest()
        for name in listed
        if (out / name).is_file()
    }
    path = out / "model.json"
    if path.exists():
        before = Model.read(out).description
        for name in WORDS:
            setattr(description, name, getattr(description, name) or getattr(before, name))
        if before.version != description.version:
            path = folder / "model.json"
    path.write_text(description.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
    typer.echo(f"wrote {path}")


def described(image: ImagePipeline, **fields: Any) -> ModelDescription:
    """Makes the description. Raises ConfigurationError for options that `model.json` cannot have."""
    try:
        return ModelDescription(image=image, files={}, **fields)
    except ValidationError as error:
        raise ConfigurationError(in_words(error)) from error

"""Model folder: its labels and `model.json`, as `cli/export.py` writes them."""

import json
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from smallplates.errors import ConfigurationError, in_words
from smallplates.models.description import INT8_KINDS, ImagePipeline, Kind, ModelDescription
from smallplates.models.folder import Model, file_sha256
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
            names = json.loads(text)  # {"0": "cat", "1": ["n02084071", "dog"]}
            labels = [names[str(index)] for index in range(len(names))]
            return [label if isinstance(label, str) else label[-1] for label in labels]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} contains no labels: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def write_description(out: Path, description: ModelDescription) -> None:
    """Writes `model.json`, with the digests of the version's weights.

    For an additional version writes it beside that version's weights, and leaves the other versions,
    which may be in service, as they are. What people wrote into an earlier model.json stays.
    """
    names = [f"{description.version}/{kind}" for kind in (*WEIGHTS, *INT8_KINDS)]
    if description.text:
        names.append(TOKENIZER)
    files = {name: out / name for name in names if (out / name).is_file()}
    description.files = {name: file_sha256(path) for name, path in files.items()}
    path = out / "model.json"
    if path.exists():
        before = Model.read(out).description
        for name in WORDS:
            setattr(description, name, getattr(description, name) or getattr(before, name))
        if before.version != description.version:
            path = out / description.version / "model.json"
    path.write_text(description.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
    typer.echo(f"wrote {path}")


def description_of(image: ImagePipeline, **fields: Any) -> ModelDescription:
    """Makes the description. Raises ConfigurationError for options that `model.json` cannot have."""
    try:
        return ModelDescription(image=image, files={}, **fields)
    except ValidationError as error:
        raise ConfigurationError(in_words(error)) from error

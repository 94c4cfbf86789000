"""Model folder: reads `model.json` and finds each version's weights.

models/NAME/model.json
models/NAME/VERSION/model.onnx, model.safetensors                     weights for the two backends
models/NAME/VERSION/model_quantized.onnx, model_quantized.pt          the same in int8, for CPUs
models/NAME/VERSION/model.json    replaces NAME/model.json for this version, `files` included

Without `model.json`, the model gets the folder's name. If the folder has transformers' `config.json`,
`huggingface.py` reads it, with the weights beside it. Otherwise `model.onnx`, or the only .onnx file, in
the folder or in VERSION is a graph that is called with tensors. A path to an .onnx file also means such
a graph.

Called at startup by the service, the supervisor and the workers.
"""

import hashlib
import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from smallplates.errors import ConfigurationError, in_words, raise_all
from smallplates.models import huggingface
from smallplates.models.description import (
    GRAPH,
    INT8_KINDS,
    NAME,
    Int8Verdict,
    Kind,
    ModelDescription,
    folder_name,
    name_of,
)
from smallplates.models.task_kinds import TENSOR, kind_of
from smallplates.settings import OF_A_MODEL, Settings

MAX_NAMES = 5  # listed in a message
INSIDE = ("model.json", "config.json", GRAPH)
"""Files that show that a folder is a model."""


class Model:
    """One version of a model, with its description and folder."""

    def __init__(self, folder: Path, description: ModelDescription, path: Path | None = None) -> None:
        """`path` is the path given to `read`: the folder, or an .onnx file in it."""
        self.folder = folder
        self.description = description
        self.path = path or folder
        self.is_of_other_weights = cache(self._is_of_other_weights)  # hashes files
        self.digest = ""
        """SHA-256 of the model.json that was read; empty if there is none."""

        self.files = files_of(self.path, description.version)
        """The version's files when it was read; they tell whether it has changed since."""

    @classmethod
    def read(cls, folder: Path, version: str | None = None, name: str = "") -> "Model":
        """Reads the description of a version, by default the one in `model.json`.

        `folder` may also be an .onnx file; `name` replaces the model's own name. Raises
        ConfigurationError.
        """
        if folder.suffix == ".onnx" and folder.is_file():
            own = folder_name(folder.parent) if folder.name == GRAPH else folder.stem
            description = ModelDescription(name=name or name_of(folder, own), version="1", task=TENSOR)
            return cls(folder.parent, description, folder)
        path = folder / "model.json"
        try:
            str(folder).encode()
            if version is not None and (folder / version / "model.json").exists():
                path = folder / version / "model.json"
            if not path.exists() and (
                described := huggingface.export(folder, version, name)
                or bare_graph(folder, version, name)
            ):
                return cls(folder, described)
            content = path.read_bytes()
            description = ModelDescription.model_validate_json(content)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigurationError(f"no model in {folder}: {what_is_missing(folder)}") from error
        except UnicodeEncodeError as error:  # the libraries that read weights take no such path
            reason = "its name is not UTF-8, or the locale is not: rename it, or set LC_ALL=C.UTF-8"
            raise ConfigurationError(f"{str(folder)!a} cannot be read: {reason}") from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise ConfigurationError(f"{path} is invalid: {in_words(error)}") from error
        changes = {"name": name or description.name, "version": version or description.version}
        model = cls(folder, description.model_copy(update=changes))
        model.digest = hashlib.sha256(content).hexdigest()
        return model

    def check_digest(self, listed: Collection[str] | None) -> None:
        """Raises ConfigurationError unless `listed`, SERVING_MODEL_SHA256 if set, has the digest."""
        own = f"{self.description.name}={self.digest or '(there is no model.json)'}"
        if listed and not {own, self.digest} & set(listed):
            raise ConfigurationError(f"{self.path} is refused: SERVING_MODEL_SHA256 does not list {own}")

    @cached_property
    def labels(self) -> list[str]:
        """Class names in the order of the outputs."""
        return self.description.labels

    @property
    def names(self) -> dict[str, Literal["request", "tensor"]]:
        """Names by which clients may call the model, its main name first, and how to call each."""
        own: Literal["request", "tensor"] = "tensor" if self.description.task == TENSOR else "request"
        return {self.description.name: own} | self.description.aliases

    @property
    def versions(self) -> list[str]:
        """Versions in the folder, ascending, served or not."""
        folders = (folder for folder in self.folder.glob("*/") if folder.is_dir())
        return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)

    def settings(self, common: Settings) -> Settings:
        """Returns the common settings, overridden by this model's own. Raises ConfigurationError."""
        own = self.description.model_dump(include=set(OF_A_MODEL))
        return common.of_model(self.description.name, own)

    def has(self, kind: Kind) -> bool:
        """Returns whether the folder has this file, listed in model.json or not."""
        return self._relative(kind) in self.description.files or self._is_unlisted(kind)

    def verdict(self, kind: Kind) -> Int8Verdict | None:
        """Returns the verdict on an int8 file, from model.json or a JSON file beside it; else None.

        Raises ConfigurationError.
        """
        relative = self._relative(kind)
        beside = (self.folder / relative).with_suffix(".json")
        if relative in self.description.int8 or self._has_model_json or not beside.is_file():
            return self.description.int8.get(relative)
        try:
            return Int8Verdict.model_validate_json(beside.read_bytes())
        except ValidationError as error:
            raise ConfigurationError(f"{beside} is invalid: {in_words(error)}") from error

    def _is_of_other_weights(self, int8: Kind) -> bool:
        """Returns whether the fp32 weights are not those from which the int8 file was made."""
        verdict = self.verdict(int8)
        known = verdict.fp32_sha256 if verdict else ""
        return known != "" and self.has(INT8_KINDS[int8]) and known != self.fp32_sha256(int8)

    def fp32_sha256(self, int8: Kind) -> str:
        """Returns the SHA-256 of an int8 file's fp32 file together with its weights in other files.

        Raises ConfigurationError and OSError.
        """
        path, digest = self.file(INT8_KINDS[int8]), hashlib.sha256()
        for part in (path, *sorted(path.parent.glob(f"{path.name}[._]data*"))):
            with part.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()

    def file(self, kind: Kind) -> Path:
        """Returns the path of the version's weights after checking their digest.

        Files that model.json need not list have no digest. Raises ConfigurationError.
        """
        relative = self._relative(kind)
        if relative in self.description.files:
            return self.check_file(relative)
        if self._is_unlisted(kind):
            return self.folder / relative
        if not self._has_model_json:
            cure = ""
            if kind == GRAPH and self.has("model_quantized.onnx"):
                cure = "; model_quantized.onnx needs SERVING_PRECISION=int8"
            elif kind == GRAPH and (graphs := sorted(self.folder.glob("**/*.onnx"))):
                names = list_names([str(path.relative_to(self.folder)) for path in graphs])
                cure = f", but it has {names}: rename the one to serve to {GRAPH}"
            elif kind == GRAPH and self.has("model.safetensors"):
                is_text = kind_of(self.description.task).outputs
                export = f"smallplates export transformers {self.folder}" if is_text else "optimum-cli"
                cure = f": write it with `{export}`, or use --backend pt"
            raise ConfigurationError(f"{self.folder} has no {kind}, which this backend needs{cure}")
        cure = f"no model.json in {self.folder} names one (smallplates export writes both)"
        if (self.folder / kind).is_file() and kind_of(self.description.task).plain_graph:
            cure = f"move {self.folder / kind} there"
        raise ConfigurationError(
            f"the model {self.description.name} has no {relative} for this backend: {cure}"
        )

    def tokenizer(self) -> Path:
        """Returns the path of the tokeniser. Raises ConfigurationError."""
        name = huggingface.TOKENIZER
        return self.check_file(name) if name in self.description.files else self.folder / name

    def check_file(self, relative: str) -> Path:
        """Returns the path of one of `files` after checking its digest. Raises ConfigurationError."""
        path = self.folder / relative
        try:
            if not path.is_file():
                raise ConfigurationError(f"the model {self.description.name} has no {relative}: {path}")
            digest = file_sha256(path)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        if digest != self.description.files[relative]:
            raise ConfigurationError(f"{path} does not match its SHA-256 in model.json")
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
        place = next((name for name in beside if (self.folder / name).is_file()), None)
        if kind == GRAPH and (name := only_graph(self.folder / self.description.version)):
            place = f"{self.description.version}/{name}"
        return place or (kind == GRAPH and only_graph(self.folder)) or relative

    def _is_unlisted(self, kind: Kind) -> bool:
        may_be = (
            kind in INT8_KINDS or kind_of(self.description.task).plain_graph or not self._has_model_json
        )
        return may_be and (self.folder / self._relative(kind)).is_file()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(model: Path, version: str) -> frozenset[tuple[str, int, int]]:
    """Returns paths, sizes and times of a version's files: in a model's folder, or beside an .onnx file.

    Leaves out other versions, hidden folders, and what Python writes when it imports a class.
    """
    found = set()
    is_folder = model.is_dir()  # else the .onnx file's folder may be anybody's
    for parent, folders, names in os.walk(model if is_folder else model.parent):
        others = {name for name in folders if name.startswith(".")} | {"__pycache__"}
        if parent == str(model):
            others |= {name for name in folders if name.isdecimal() and name != version}
        folders[:] = [name for name in folders if is_folder and name not in others]
        for name in names:
            with suppress(OSError):  # it has just been removed, or is a broken link
                path = Path(parent, name)
                stat = path.stat()
                found.add((str(path), stat.st_size, stat.st_mtime_ns))
    return frozenset(found)


def bare_graph(folder: Path, version: str | None, name: str) -> ModelDescription | None:
    """Returns the description of a folder that contains only an ONNX file; None if it has none.

    A file outside of a version's folder is version 1. Without a `version`, it is the newest. `name`
    replaces the folder's. Raises ConfigurationError for an invalid name.
    """
    if version is None:
        numbers = {graph.parent.name for graph in folder.glob("*/*.onnx") if has_graph(graph.parent)}
        version = max(filter(re.compile("[1-9][0-9]*").fullmatch, numbers), key=int, default="1")
    if has_graph(folder / version) or (version == "1" and has_graph(folder)):
        name = name or name_of(folder, folder_name(folder))
        return ModelDescription(name=name, version=version, task=TENSOR)
    return None


def has_graph(folder: Path) -> bool:
    """Returns whether a folder has a `model.onnx`, or a single .onnx file of any name."""
    return (folder / GRAPH).is_file() or only_graph(folder) is not None


def only_graph(folder: Path) -> str | None:
    """Returns the name of a folder's only .onnx file, not counting int8 files; else None."""
    graphs = [path.name for path in folder.glob("*.onnx") if path.name not in INT8_KINDS]
    return graphs[0] if len(graphs) == 1 else None


def what_is_missing(folder: Path) -> str:
    """Returns in words what a folder needs to be a model folder, and what it contains."""
    if folder.is_file():
        return (
            "it is a file, but not an .onnx file; `smallplates export torchvision` makes a folder of "
            "the weights of an image classifier, and a Python class can load any file"
        )
    if not folder.is_dir():
        return f"there is no such folder or .onnx file{in_place_of(folder)}"
    if (folder / "modules.json").is_file():
        return (
            "its modules.json has no network in the folder itself, where sentence-transformers 2 saves "
            "it; for StaticEmbedding, run `smallplates export static`; others, such as Router, need a "
            "Python class"
        )
    found = {path.parent.name for file in INSIDE for path in folder.glob(f"*/{file}")}
    if models := sorted(found - {"onnx"}):  # optimum's folder for the graph of an export
        return f"it contains several models; name one of them: {list_names(models)}"
    names = sorted(path.name for path in folder.iterdir())
    needed = f"it needs model.json, the config.json of an export, {GRAPH} or a single .onnx file"
    return f"{needed}; {f'it has {list_names(names)}' if names else 'it is empty'}"


def in_place_of(path: Path) -> str:
    """Returns in words the folder or .onnx file whose path is nearest to one that does not exist."""
    found = nearest(path)
    return f"; the nearest is {found}" if found else ""


def nearest(path: Path) -> Path | None:
    """Returns the path itself if it exists, else the one whose parts are most like its own."""
    if path.exists():
        return path
    if parent := nearest(path.parent):
        with suppress(OSError):
            names = [each.name for each in parent.iterdir() if each.is_dir() or each.suffix == ".onnx"]
            return next((parent / name for name in get_close_matches(path.name, names, 1)), None)
    return None


def list_names(names: Sequence[str]) -> str:
    """Returns the first names as text, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def configured_models(settings: Settings) -> dict[str, Model]:
    """Reads the models to serve; returns them by name, the default model first.

    Raises ConfigurationError for invalid folders and settings, and for each model.json that
    `model_sha256` does not list, in one message; also for names that two models share.
    """
    models: dict[str, Model] = {}
    owners: dict[str, str] = {}
    errors: list[ConfigurationError] = []
    for place in settings.models or [str(settings.model_dir)]:
        try:
            model = configured_model(place, settings)
        except ConfigurationError as error:
            errors.append(error)
            continue
        for alias in model.names:
            if alias in owners:
                both = f"{owners[alias]} and {place}"
                raise ConfigurationError(f"two models are named {alias}: {both}; write NAME=FOLDER")
            owners[alias] = place
        models[model.description.name] = model
    raise_all(errors)
    for alias, name in settings.aliases.items():
        if alias in owners or name not in owners.keys() | stored_models(settings).keys():
            reason = f"there is no model {name}" if alias not in owners else f"{alias} is a model's name"
            raise ConfigurationError(f"SERVING_ALIASES: {alias}={name}: {reason}")
    return models


def configured_model(place: str, settings: Settings) -> Model:
    """Reads the model in a place, `FOLDER` or one of `models`. Raises ConfigurationError."""
    name, equals, folder = place.partition("=") if settings.models else ("", "", place)
    if equals and not re.fullmatch(NAME, name):
        raise ConfigurationError(f"SERVING_MODELS: {name!r} cannot be a model's name")
    model = Model.read(Path(folder if equals else place), name=name if equals else "")
    model.check_digest(settings.model_sha256)
    model.settings(settings)
    return model


def stored_models(settings: Settings) -> dict[str, Path]:
    """Returns the folders in the model store by name: models that may be loaded later."""
    if settings.model_store is None:
        return {}
    places = sorted(settings.model_store.glob("*"))  # nothing if the store cannot be read
    return {place.name: place for place in places if re.fullmatch(NAME, place.name) and place.is_dir()}

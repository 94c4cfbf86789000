"""Measurements of a start that the next start reuses, in a folder that the operator names.

A file holds what `shared_choice` keeps for the instances of one model: the choice of runtime and
precision, the layout, the batch sizes. Its name is the digest of all that they depend on: files,
machine, versions, settings. Several services may share the folder. Called by `process.py`.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from uuid import uuid4

from smallplates import __version__
from smallplates.logging import logger
from smallplates.models.folder import Model, file_sha256
from smallplates.models.vocabulary import VOCABULARY
from smallplates.settings import Settings
from smallplates.system import cpus

NAMES = ("choice", "layout", "profile", "traced-form")
"""Names of the choices that are kept."""

PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "transformers")
SETTINGS = {"precision", "cpu_runtime", "cpu_runtime_mb", "intra_op_threads", "instances"}
SETTINGS |= {"idle_threads", "max_batch_size"}
VARIABLES = ("DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENVINO_", "ORT_", "OV_")
"""How environment variables begin that libraries read."""


def restore(folder: Path, key: Any, scratch: Path) -> str | None:
    """Writes earlier measurements to where `shared_choice` finds them; returns when they were made.

    `key` is all that they depend on, as JSON. Returns None if there are none for it, or if the file is
    damaged or was made for something else.
    """
    path = folder / f"{digest(key)}.json"
    try:
        content = json.loads(path.read_bytes())
        if content["sha256"] != digest([key, content["time"], content["choices"]]):
            raise ValueError("its digest is not that of its content")
        for name in content["choices"].keys() & NAMES:
            (scratch / name).write_text(json.dumps(content["choices"][name]))
        return str(content["time"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if path.exists():
            logger().warning("kept measurements are ignored", path=str(path), reason=str(error))
        return None


def save(folder: Path, key: Any, scratch: Path) -> None:
    """Writes the measurements of this start; other processes see the whole file, or none."""
    paths = [scratch / name for name in NAMES]
    partial = folder / f".{uuid4()}"
    try:
        choices = {path.name: json.loads(path.read_bytes()) for path in paths if path.exists()}
        content = {"key": key, "time": str(datetime.now(UTC)), "choices": choices}
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content | {"sha256": digest([*content.values()])}))
        partial.replace(folder / f"{digest(key)}.json")
    except (OSError, ValueError) as error:  # a full disk; the latter if it has cut what was measured
        logger().warning("measurements cannot be kept", path=str(folder), reason=str(error))
        with contextlib.suppress(OSError):
            partial.unlink()


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def dependencies(model: Model, weights: Iterable[Path], settings: Settings) -> dict[str, Any]:
    """Returns what measurements of a model on this machine depend on, apart from how it is called."""
    dense = model.description.embedding.dense if model.description.embedding else []
    others = ["tokenizer.json", VOCABULARY, "*quantized.json", "*/*quantized.json"]
    others += [f"{name}/*" for name in dense]
    paths = {*weights, *(path for pattern in others for path in model.folder.glob(pattern))}
    packages = [package for name in PACKAGES for package in distributions(name=name)]
    return {
        "model": model.description.model_dump(mode="json"),
        "files": {os.path.relpath(path, model.folder): file_sha256(path) for path in paths},
        "machine": [cpus.usable(), *cpus.identity()],
        "versions": [__version__, *(f"{package.name} {package.version}" for package in packages)],
        "settings": settings.model_dump(mode="json", include=SETTINGS),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)},
    }

"""The fake backend's model, which needs no weights."""

import json
from pathlib import Path
from typing import Any

CLASSES = 4096


def write_model(
    folder: Path, version: str, prefix: str = "", classes: int = CLASSES, **fields: Any
) -> None:
    """8x8 pictures, classes named PREFIX0, PREFIX1 and so on; nothing for a real backend to load.

    `fields` are others of model.json.
    """
    description: dict[str, Any] = {
        "name": "fake",
        "version": version,
        "labels": [f"{prefix}{index}" for index in range(classes)],
        "image": {"resize": [8, 8], "mean": [0, 0, 0], "std": [1, 1, 1]},
        "files": {},
        "aliases": {"food_classifier": "request", "food_classifier_onnx": "tensor"},
        "names": {"image": "INPUT_IMAGE", "label": "FOOD_LABEL"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(description | fields))

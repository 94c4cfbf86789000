"""Layout of the model repository; `__main__.py` calls `build`.

OUT/food_classifier/config.pbtxt
OUT/food_classifier/VERSION/model.py        photo_model.py
OUT/food_classifier/VERSION/serving/        copies of the modules that model.py imports
OUT/food_classifier/VERSION/model.onnx      with the normalisation, as this service runs it
OUT/food_classifier_onnx/config.pbtxt, labels.txt
OUT/food_classifier_onnx/VERSION/model.onnx

Triton needs nothing else but the packages in requirements.txt.
"""

import shutil
from pathlib import Path

import onnx

from fastapi_onnx.normalisation import with_two_inputs
from serving.model import Model
from serving.settings import ROOT, Settings
from triton_repository.config import IMAGE_MODEL, LABELS_FILE, TENSOR_MODEL, Configs
from triton_repository.graph import with_known_names

PHOTO_CODE = Path(__file__).with_name("photo_model.py")
CARRIED = (
    "__init__",
    "base64",
    "description",
    "errors",
    "scores",
    "task_kinds",
    "tasks/__init__",
    "tasks/image/__init__",
    "tasks/image/decode",
    "tasks/image/resize",
    "tasks/python/__init__",
    "tasks/python/task",
)
"""Modules of `serving` that `photo_model.py` imports, directly or indirectly."""


def build(out: Path, settings: Settings) -> None:
    """Writes or replaces both models in `out`; other folders stay.

    Raises ConfigurationError for a model that Triton cannot serve, and OSError.
    """
    model = Model.read(settings.model_dir)
    description = model.description
    original = onnx.load(model.file("model.onnx"))
    named = with_known_names(original, description.pipeline.output_size, len(description.labels))
    with_pixels = with_two_inputs(original, description.pipeline)
    configs = Configs(description, settings)

    photo = emptied(out / IMAGE_MODEL)
    (photo / "config.pbtxt").write_text(configs.photo())
    version = photo / description.version
    version.mkdir(parents=True)
    shutil.copyfile(PHOTO_CODE, version / "model.py")
    for name in CARRIED:
        copy = version / "serving" / f"{name}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "serving" / f"{name}.py", copy)
    onnx.save(with_pixels, version / "model.onnx")

    tensor = emptied(out / TENSOR_MODEL)
    (tensor / "config.pbtxt").write_text(configs.tensor())
    (tensor / LABELS_FILE).write_text("".join(f"{label}\n" for label in description.labels))
    (tensor / description.version).mkdir()
    onnx.save(named, tensor / description.version / "model.onnx")


def emptied(folder: Path) -> Path:
    """Makes the folder, empty, and returns it."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder

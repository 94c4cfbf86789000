"""Layout of the model repository; `__main__.py` calls `build`. For each model folder:

OUT/PHOTOS/config.pbtxt
OUT/PHOTOS/VERSION/model.py        photo_model.py
OUT/PHOTOS/VERSION/smallplates/    copies of the modules that model.py imports
OUT/PHOTOS/VERSION/model.onnx      with the normalisation, as this service runs it; model.pt for PyTorch
OUT/TENSORS/config.pbtxt, labels.txt
OUT/TENSORS/VERSION/model.onnx

PHOTOS and TENSORS are the model's aliases, such as `food_classifier` and `food_classifier_onnx`; without
them its name and NAME_tensor. Triton needs nothing else but the packages in requirements.txt.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from fastapi_onnx.normalisation import with_two_inputs
from smallplates.errors import ConfigurationError
from smallplates.export.triton.config import LABELS_FILE, Configs
from smallplates.export.triton.graph import with_known_names
from smallplates.models.folder import Model, configured_models
from smallplates.models.task_kinds import IMAGE_CLASSIFICATION
from smallplates.settings import PACKAGE, Settings

PHOTO_CODE = Path(__file__).with_name("photo_model.py")
CARRIED = (
    "__init__",
    "base64",
    "errors",
    "models/__init__",
    "models/comparison",
    "models/description",
    "models/scores",
    "models/task_kinds",
    "models/tensors",
    "plugins",
    "tasks/__init__",
    "tasks/image/__init__",
    "tasks/image/decode",
    "tasks/image/resize",
)
"""Modules of `smallplates` that `photo_model.py` imports, directly or indirectly."""


def build(out: Path, settings: Settings, backend: str = "onnx") -> None:
    """Writes or replaces both models of each configured folder in `out`; other folders stay.

    `backend` computes photos: `onnx`, or `pt` for PyTorch.

    Raises ConfigurationError for a model that Triton cannot serve, before anything is written, and
    OSError.
    """
    parts = [Parts.read(model, settings, backend) for model in configured_models(settings).values()]
    names = [name for part in parts for name in (part.configs.photo_name, part.configs.tensor_name)]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two models have the same name in Triton: {', '.join(names)}")
    for part in parts:
        part.write(out)


@dataclass(frozen=True)
class Parts:
    """What the repository holds of one model folder."""

    configs: Configs
    named: onnx.ModelProto
    """The network with tensors of known names."""

    save_with_pixels: Callable[[Path], object]
    """Writes the network with the normalisation into a folder."""

    @classmethod
    def read(cls, model: Model, settings: Settings, backend: str) -> "Parts":
        """Reads a folder. Raises ConfigurationError for a model that Triton cannot serve."""
        description = model.description
        if description.task != IMAGE_CLASSIFICATION:
            raise ConfigurationError(
                f"{model.path} is a model of the task {description.task}; "
                f"only {IMAGE_CLASSIFICATION} can be written for Triton"
            )
        original = onnx.load(model.file("model.onnx"))
        if backend == "pt":
            from smallplates.export.triton.torch_network import save as save_torch  # needs PyTorch

            save: Callable[[Path], object] = partial(save_torch, model)
        else:
            with_pixels = with_two_inputs(original, description.pipeline)
            save = lambda folder: onnx.save(with_pixels, folder / "model.onnx")  # noqa: E731
        return cls(
            Configs(description, model.settings(settings), backend),
            with_known_names(original, description.pipeline.output_size, len(description.labels)),
            save,
        )

    def write(self, out: Path) -> None:
        """Writes or replaces the two models."""
        configs, description = self.configs, self.configs.description
        photo = empty_folder(out / configs.photo_name)
        (photo / "config.pbtxt").write_text(configs.photo())
        version = photo / description.version
        version.mkdir(parents=True)
        shutil.copyfile(PHOTO_CODE, version / "model.py")
        for name in CARRIED:
            copy = version / "smallplates" / f"{name}.py"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PACKAGE / f"{name}.py", copy)
        self.save_with_pixels(version)

        tensor = empty_folder(out / configs.tensor_name)
        (tensor / "config.pbtxt").write_text(configs.tensor())
        (tensor / LABELS_FILE).write_text("".join(f"{label}\n" for label in description.labels))
        (tensor / description.version).mkdir()
        onnx.save(self.named, tensor / description.version / "model.onnx")


def empty_folder(folder: Path) -> Path:
    """Makes the folder, or empties it, and returns it."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder

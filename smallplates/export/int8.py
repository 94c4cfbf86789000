"""Int8 files of a model folder: makes them and judges them beside fp32; for `cli/export.py`.

Each file gets a verdict for model.json: whether its answers agree with those of fp32 so well that the
service may take it without being asked, and what it saves. Files are made in a trial folder, which links
to the model's own, and served from there by the real backends while they are judged.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import typer

from fastapi_onnx import graph_file
from fastapi_onnx.backend import OnnxBackend
from smallplates.errors import ConfigurationError
from smallplates.export import given_graph, int8_onnx, photos
from smallplates.export.int8_verdict import Judge, Verdict
from smallplates.export.photos import Photos
from smallplates.models.description import Kind
from smallplates.models.folder import Model

MAX_CALIBRATION_PHOTOS = 300
ONNX: tuple[Kind, Kind] = ("model.onnx", "model_quantized.onnx")
PT: tuple[Kind, Kind] = ("model.safetensors", "model_quantized.pt")
PT_FP32_LAYERS = (int8_onnx.FIRST, 4, 8)
"""Numbers of first layers that stay in fp32, tried until the file is fit."""


@dataclass(frozen=True)
class Options:
    """What the command line says about int8."""

    calibrate: Path
    """Folder or zip file of photos like those to be served."""

    validate: Path | None = None
    """Folder or zip file of photos to compare; None: those of `calibrate` that calibration leaves."""

    most_photos: int = 2000
    """Compared photos; at 224x224 each takes 150 kB of memory."""

    minutes: float = 10
    """Time after which no other way to quantise is tried."""

    file: Path | None = None
    """ONNX graph in int8 that was made elsewhere; None: one is made."""


def add(model: Model, options: Options) -> dict[Kind, Verdict]:
    """Writes the int8 files of a model's version; returns the verdict on each.

    Raises ConfigurationError and OSError; then every file is as it was.
    """
    if model.description.activation == "sigmoid":
        raise ConfigurationError(
            "files in int8 cannot be judged if several classes may apply to a photo"
        )
    calibration, comparison = read_photos(model, options)
    verdicts: dict[Kind, Verdict] = {}
    with trial_folder(model) as trial:
        if trial.has("model.onnx"):
            verdicts[ONNX[1]] = onnx_verdict(trial, calibration, comparison, options)
        if trial.has("model.safetensors") and options.file is None:
            try:
                verdicts[PT[1]] = pt_verdict(trial, calibration, comparison)
            except ConfigurationError as error:
                typer.echo(f"PyTorch stays in fp32: {error}")
        for fp32, int8 in (ONNX, PT):
            if int8 in verdicts:
                path_in(trial, int8).replace(model.file(fp32).with_name(int8))
    if not verdicts:
        raise ConfigurationError(f"the model {model.description.name} has no file to quantise")
    return verdicts


def read_photos(model: Model, options: Options) -> tuple[Photos, Photos]:
    """Returns the photos for calibration and those to compare; the same ones if there is only one."""
    most = MAX_CALIBRATION_PHOTOS
    if options.validate is not None:
        images = photos.read(options.calibrate, model, most)
        return images, photos.read(options.validate, model, options.most_photos)
    images = photos.read(options.calibrate, model, most + options.most_photos)
    count = min(most, (len(images) + 1) // 2)
    return images.part(0, count), images.part(count if len(images) > 1 else 0)


@contextmanager
def trial_folder(model: Model) -> Iterator[Model]:
    """Yields a copy of the model in a folder beside its files, without int8 files.

    The weights for PyTorch are left out if only transformers can build their network.
    """
    kinds = [ONNX[0], *([PT[0]] if model.description.architecture else [])]
    listed = {k: v for k, v in model.description.files.items() if Path(k).name in kinds}
    beside = path_in(model, ONNX[0]).parent  # an export from Hugging Face has no folder for a version
    with TemporaryDirectory(prefix=".int8-", dir=beside if beside.is_dir() else model.folder) as folder:
        place = Path(folder, model.description.version)
        place.mkdir()
        for kind in filter(model.has, kinds):
            # a listed file is checked when it is read: without PyTorch's, ONNX Runtime's is enough
            source = path_in(model, kind) if listed else model.file(kind)
            (place / kind).symlink_to(source.resolve())
            for data in graph_file.data_files(source) if kind == ONNX[0] else ():
                (place / data.name).symlink_to(data.resolve())
        yield Model(Path(folder), model.description.model_copy(update={"files": listed, "int8": {}}))


def path_in(model: Model, kind: Kind) -> Path:
    """Returns the path of a file that may not exist."""
    return model.folder / model.description.version / kind


def onnx_verdict(trial: Model, calibration: Photos, comparison: Photos, options: Options) -> Verdict:
    """Writes the ONNX backend's int8 file into the trial folder: the best that is found in time."""
    out = path_in(trial, ONNX[1])
    judge = Judge(trial, OnnxBackend, comparison)
    if options.file is not None:
        image = trial.description.pipeline
        graph, notes = given_graph.convert(given_graph.read(options.file), image.output_size, None)
        notes += given_graph.try_out(graph, image, len(trial.labels))
        for note in notes:
            typer.echo(f"{options.file}: {note}")
        onnx.save(graph, out)
        return judge.verdict(ONNX, "", [])
    end = time.monotonic() + 60 * options.minutes
    with TemporaryDirectory() as folder:
        quantiser = int8_onnx.Quantiser(trial, calibration.pixels, out, Path(folder))
        return int8_onnx.search(quantiser, partial(judge.verdict, ONNX), judge.difference, end)


def pt_verdict(trial: Model, calibration: Photos, comparison: Photos) -> Verdict:
    """Writes the PyTorch backend's int8 file into the trial folder.

    Raises ConfigurationError for a network that the library cannot take.
    """
    from fastapi_pt.backend import TorchBackend  # PyTorch, which the others do without
    from smallplates.export import int8_pt

    judge = Judge(trial, TorchBackend, comparison)
    for count in PT_FP32_LAYERS:
        layers = int8_pt.write(trial, calibration.pixels, path_in(trial, PT[1]), count)
        verdict = int8_onnx.show(judge.verdict(PT, int8_pt.METHOD, layers))
        if verdict.fit:
            break
    return verdict

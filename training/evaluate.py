"""Evaluation of a model folder through the served pipeline: `ImageDecoder`, then each backend.

`python -m training.evaluate DATA` reads DATA/data/food11-64/val.zip and DATA/photos/labels.csv and
prints accuracy, calibration and confusion of both backends in every precision, and how often they agree.
With `--write` the figures of fp32 go into model.json, and a chart of the confusion beside it.
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from tqdm import tqdm

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from serving.backends.base import Backend
from serving.description import Kind, Thresholds
from serving.model import Model
from serving.scores import softmax
from serving.settings import Settings
from serving.tasks.image.decode import ImageDecoder
from serving.tasks.image_classification import compute_logits
from training import data

Probabilities = NDArray[np.float64]
Labels = NDArray[np.int64]
BACKENDS: list[tuple[str, Kind, str, Callable[[], Backend]]] = [
    ("fastapi_onnx", "model.onnx", "fp32", OnnxBackend),
    ("fastapi_pt", "model.safetensors", "fp32", TorchBackend),
    ("fastapi_onnx, int8", "model_quantized.onnx", "int8", OnnxBackend),
    ("fastapi_pt, int8", "model_quantized.pt", "int8", TorchBackend),
]
"""Name, file, precision and class of everything that is evaluated."""


def sharp_photos(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yields (file, class index) of every row of labels.csv."""
    with (folder / "labels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield (folder / row["file"]).read_bytes(), int(row["class_index"])


def predict(
    backend: Backend, decoder: ImageDecoder, photos: Iterator[tuple[bytes, int]], name: str
) -> tuple[Probabilities, Labels]:
    """Returns probabilities [N, classes] and true classes [N], computed one photo at a time."""
    rows, labels = [], []
    for photo, label in tqdm(photos, desc=name, unit=" photos", mininterval=2):
        rows.append(softmax(compute_logits(backend, decoder.decode(photo)[np.newaxis])[0].tolist()))
        labels.append(label)
    return np.array(rows), np.asarray(labels)


def top_k_accuracy(probabilities: Probabilities, labels: Labels, k: int) -> float:
    """Computes the share of photos whose class is among the `k` most probable."""
    best = np.argsort(-probabilities, axis=1)[:, :k]
    return float((best == labels[:, None]).any(axis=1).mean())


def calibration_error(probabilities: Probabilities, labels: Labels, bins: int = 15) -> float:
    """Computes the top class's expected calibration error, equal-width bins (Guo et al., 2017)."""
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    error = 0.0
    for i in np.unique(index):
        inside = index == i
        error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return float(error)


def confusion(probabilities: Probabilities, labels: Labels) -> NDArray[np.int64]:
    """Counts photos, [true class, predicted class]."""
    n = probabilities.shape[1]
    matrix = np.zeros((n, n), np.int64)
    np.add.at(matrix, (labels, probabilities.argmax(axis=1)), 1)
    return matrix


def uncertain_below(probabilities: Probabilities, labels: Labels) -> Thresholds:
    """Computes thresholds below which an answer is more often wrong than right, on validation data.

    The thresholds are the least confidence, and the least margin to the second class, at which the
    answers just above (a tenth of the data) are right in at least half of the cases.
    """
    correct = probabilities.argmax(axis=1) == labels
    ordered = np.sort(probabilities, axis=1)
    window = max(1, len(labels) // 10)

    def least(values: Probabilities) -> float:
        order = np.argsort(values)
        for start in range(0, len(order) - window, window // 10 or 1):
            if correct[order[start : start + window]].mean() >= 0.5:
                return round(float(values[order[start]]), 2)
        return 1.0

    return Thresholds(probability=least(ordered[:, -1]), margin=least(ordered[:, -1] - ordered[:, -2]))


def draw_confusion(matrix: NDArray[np.int64], labels: list[str], path: Path) -> None:
    """Draws the shares of the predicted classes, for each true class, as a chart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    figure, axes = plt.subplots(figsize=(8, 7), layout="constrained")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel="predicted", ylabel="true", title="Validation photos, percent of the true class")
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            colour = "white" if share > 0.5 else "black"
            axes.text(column, row, f"{share * 100:.0f}", ha="center", va="center", color=colour)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def summary(probabilities: Probabilities, labels: Labels) -> dict[str, float | int]:
    """Returns the figures for model.json."""
    return {
        "photos": len(labels),
        "top1": round(top_k_accuracy(probabilities, labels, 1), 4),
        "top3": round(top_k_accuracy(probabilities, labels, 3), 4),
        "expected_calibration_error": round(calibration_error(probabilities, labels), 4),
    }


def print_confusion(matrix: NDArray[np.int64], labels: list[str]) -> None:
    """Prints the counts; rows are true classes, columns predicted ones."""
    typer.echo("confusion on val, true class by row:")
    for label, row in zip(labels, matrix, strict=True):
        typer.echo(f"  {label:16}" + "".join(f"{count:5}" for count in row))


def main(
    data_dir: Annotated[Path, typer.Argument(help="Folder with data/food11-64/ and photos/.")],
    model_dir: Annotated[Path, typer.Option(help="The model's folder.")] = Path("models/food11"),
    write: Annotated[bool, typer.Option(help="Put the figures into the model's folder.")] = False,
) -> None:
    """Prints the accuracy of both backends on val and on the sharp photos."""
    model = Model.read(model_dir)
    settings = Settings(model_dir=model_dir)
    decoder = ImageDecoder(model.description.pipeline, settings.max_image_pixels)
    results: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[NDArray[np.int64]]] = {}
    for name, file, precision, make_backend in BACKENDS:
        if not model.has(file):
            continue
        backend = make_backend()
        backend.load(model, settings.model_copy(update={"precision": precision}))
        val, val_labels = predict(
            backend, decoder, data.iterate(data_dir / "data" / "food11-64" / "val.zip"), f"{name} val"
        )
        sharp, sharp_labels = predict(
            backend, decoder, sharp_photos(data_dir / "photos"), f"{name} sharp photos"
        )
        backend.close()
        results[name] = {"val": summary(val, val_labels), "sharp": summary(sharp, sharp_labels)}
        answers[name] = [val.argmax(axis=1), sharp.argmax(axis=1)]
        typer.echo(f"{name}: {json.dumps(results[name])}")
        if len(results) == 1:
            reference, truth = val, val_labels
    matrix = confusion(reference, truth)
    print_confusion(matrix, model.labels)
    (first, expected), *others = ((name, np.concatenate(parts)) for name, parts in answers.items())
    for name, classes in others:
        typer.echo(
            f"{name} names the class of {first} for {(classes == expected).mean():.2%} of all photos"
        )
    if write:
        model.description.accuracy = results[first]
        model.description.thresholds = uncertain_below(reference, truth)
        text = model.description.model_dump_json(indent=2, exclude_none=True)
        (model_dir / "model.json").write_text(text + "\n")
        draw_confusion(matrix, model.labels, model_dir / "confusion.png")


if __name__ == "__main__":
    typer.run(main)

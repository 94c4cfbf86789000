"""Evaluation of model folders through the served steps: a task's preprocessing, then each backend.

`python -m training.evaluate DATA` reads DATA/data/food11-64/val.zip, DATA/data/food-sharp/valid.zip and
DATA/photos/labels.csv for photos, DATA/data/sst2/dev.tsv.gz for texts, DATA/data/squad-dev/val.json.gz
for questions, and prints accuracy, calibration and confusion of both backends in every precision, `auto`
among them, and how often they agree. With `--write` the figures of fp32 go into model.json, and a chart
of the confusion beside it.
"""

import csv
import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from tqdm import tqdm

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.engine.backend import BackendInfo
from smallplates.errors import ConfigurationError
from smallplates.export.folder import write_description
from smallplates.models.description import Kind, Thresholds
from smallplates.models.folder import Model
from smallplates.models.scores import softmax
from smallplates.models.task_kinds import QUESTION_ANSWERING, TEXT_CLASSIFICATION
from smallplates.models.tensors import Array, Item
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits
from smallplates.tasks.question_answering import QuestionAnswering
from smallplates.tasks.text import TOKENS
from smallplates.tasks.text_classification import TextClassification
from training import data, squad

Probabilities = NDArray[np.float64]
Labels = NDArray[np.int64]
BACKENDS: list[tuple[str, Kind, Callable[[], OnnxBackend | TorchBackend]]] = [
    ("fastapi_onnx", "model.onnx", OnnxBackend),
    ("fastapi_pt", "model.safetensors", TorchBackend),
]
PRECISIONS = ("fp32", "auto", "bf16", "int8")
"""What `SERVING_PRECISION` may be; fp32 is what the others are compared with."""

SURE = 0.8
"""Share of a photo model's sure answers that is right, on sharp photos from other sources."""

Example = tuple[Any, int]
"""The bytes of a photo, or a text; and its class index."""

Said = tuple[str, float]
"""An answer to a question, and its score."""

Backend = OnnxBackend | TorchBackend


def sharp_photos(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yields (file, class index) of every row of labels.csv."""
    with (folder / "labels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield (folder / row["file"]).read_bytes(), int(row["class_index"])


def sentences(path: Path) -> Iterator[Example]:
    """Yields (text, class index) of a file with a header line and a tab in each line."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 1, None):
            text, _, label = line.rstrip("\n").rpartition("\t")
            yield text, int(label)


def validation_sets(model: Model, data_dir: Path) -> dict[str, list[Example]]:
    """Returns the data that a model is measured with.

    Thresholds are chosen with the first, or with "valid".
    """
    if model.description.task == TEXT_CLASSIFICATION:
        return {"dev": list(sentences(data_dir / "data" / "sst2" / "dev.tsv.gz"))}
    zips = (("val", "food11-64/val.zip"), ("valid", "food-sharp/valid.zip"))
    sets = {name: list(data.iterate(data_dir / "data" / path)) for name, path in zips}
    return {**sets, "sharp": list(sharp_photos(data_dir / "photos"))}


def logits_of(
    model: Model, settings: Settings, backend: Backend
) -> Callable[[Any], NDArray[np.float32]]:
    """Returns a function from a photo's bytes or a text to logits [classes], by the service's steps."""
    if model.description.task != TEXT_CLASSIFICATION:
        decoder = ImageDecoder(model.description.pipeline, settings.max_image_pixels)
        return lambda photo: compute_logits(backend, decoder.decode(photo)[np.newaxis])[0]
    signatures = TextClassification.plan(model, settings, backend.signature(model))
    task = TextClassification(model, settings, signatures, {})

    def of_text(text: str) -> NDArray[np.float32]:
        (item,) = task.preprocess({"text": text}).items
        (logits,) = backend.infer(signatures[TOKENS], [array[np.newaxis] for array in item])
        return np.asarray(logits[0])

    return of_text


def asker(
    model: Model, settings: Settings, backend: Backend
) -> tuple[QuestionAnswering, Callable[[Item], Sequence[Array]]]:
    """Returns the service's steps for questions, and a function from a window to its logits."""
    signatures = QuestionAnswering.plan(model, settings, backend.signature(model))

    def infer(item: Item) -> list[Array]:
        outputs = backend.infer(signatures[TOKENS], [array[np.newaxis] for array in item])
        return [output[0] for output in outputs]

    return QuestionAnswering(model, settings, signatures, {}), infer


def answer_to(
    task: QuestionAnswering, infer: Callable[[Item], Sequence[Array]], question: squad.Question
) -> Said:
    """Returns what the service would answer; its windows are computed one at a time."""
    prepared = task.preprocess({"question": question.question, "context": question.context})
    (best,) = task.postprocess(prepared, [infer(item) for item in prepared.items], 1)
    return best["answer"], best["score"]


def predict(
    infer: Callable[[Any], NDArray[np.float32]], examples: list[Example], name: str
) -> tuple[Probabilities, Labels]:
    """Returns probabilities [N, classes] and true classes [N], computed one example at a time."""
    shown = tqdm(examples, desc=name, mininterval=2, leave=False)
    rows = [softmax(infer(example)) for example, _ in shown]
    return np.array(rows), np.array([label for _, label in examples])


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
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    return Thresholds(probability=least_sure(first, correct), margin=least_sure(first - second, correct))


def least_sure(values: Probabilities, correct: NDArray[np.bool_]) -> float:
    """Computes the least value at which the answers just above are right in half of the cases."""
    window = max(1, len(values) // 10)
    order = np.argsort(values)
    for start in range(0, len(order) - window, window // 10 or 1):
        if correct[order[start : start + window]].mean() >= 0.5:
            return round(float(values[order[start]]), 2)
    return 1.0


def sure_from(probabilities: Probabilities, labels: Labels, right: float = SURE) -> Thresholds:
    """Computes the least probability from which on this share of the answers is right."""
    best = probabilities.max(axis=1)
    order = np.argsort(-best)
    shares = (probabilities.argmax(axis=1) == labels)[order].cumsum() / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(shares >= right)
    least = best[order[enough[-1]]] if len(enough) else 1.0
    return Thresholds(probability=math.ceil(100 * least) / 100, margin=0.0)


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


def summary(
    probabilities: Probabilities, labels: Labels, noun: str, thresholds: Thresholds
) -> dict[str, float | int]:
    """Returns the figures for model.json; the third class counts where there are more than three."""
    top3 = {"top3": round(top_k_accuracy(probabilities, labels, 3), 4)}
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    sure = (first >= thresholds.probability) & (first - second >= thresholds.margin)
    right = (probabilities.argmax(axis=1) == labels)[sure]
    return {
        noun: len(labels),
        "top1": round(top_k_accuracy(probabilities, labels, 1), 4),
        **(top3 if probabilities.shape[1] > 3 else {}),
        "expected_calibration_error": round(calibration_error(probabilities, labels), 4),
        "sure": round(float(sure.mean()), 4),
        "sure_top1": round(float(right.mean()), 4) if len(right) else 0.0,
    }


def print_confusion(matrix: NDArray[np.int64], labels: list[str]) -> None:
    """Prints the counts; rows are true classes, columns predicted ones."""
    typer.echo("confusion on val, true class by row:")
    for label, row in zip(labels, matrix, strict=True):
        typer.echo(f"  {label:16}" + "".join(f"{count:5}" for count in row))


def main(
    data_dir: Annotated[Path, typer.Argument(help="Folder with data/ and photos/.")],
    model_dirs: Annotated[list[Path] | None, typer.Argument(help="By default all of models/.")] = None,
    write: Annotated[bool, typer.Option(help="Put the figures into the model's folder.")] = False,
) -> None:
    """Prints the accuracy of models in both backends and every precision."""
    for folder in model_dirs or sorted(path.parent for path in Path("models").glob("*/model.json")):
        model = Model.read(folder)
        if model.description.task == QUESTION_ANSWERING:
            evaluate_questions(model, data_dir, write)
        else:
            evaluate(model, data_dir, write)


def loaded(model: Model) -> Iterator[tuple[str, BackendInfo, Settings, Backend]]:
    """Yields each backend in each precision with the model, and what it runs on."""
    for (backend_name, file, make_backend), precision in itertools.product(BACKENDS, PRECISIONS):
        if not model.has(file):
            continue
        backend = make_backend()
        settings = Settings.model_validate(
            {"model_dir": model.folder, "device": "cpu", "precision": precision}
        )
        name = f"{backend_name}, {precision}"
        try:
            info = backend.load(model, settings)
        except ConfigurationError as error:
            typer.echo(f"{name}: {error}")
            continue
        yield name, info, settings, backend
        backend.close()


def evaluate(model: Model, data_dir: Path, write: bool) -> None:
    """Prints the accuracy of a classifier in both backends and every precision."""
    sets = validation_sets(model, data_dir)
    noun = "texts" if model.description.text else "photos"
    expected: dict[str, tuple[Probabilities, Labels]] = {}
    typer.echo(
        f"{model.description.name}: " + ", ".join(f"{k} {len(v)} {noun}" for k, v in sets.items())
    )
    for name, info, settings, backend in loaded(model):
        infer = logits_of(model, settings, backend)
        answers = {kind: predict(infer, examples, f"{name}, {kind}") for kind, examples in sets.items()}
        if not expected:
            expected = answers
            is_photos = "valid" in answers
            thresholds = sure_from(*answers["valid"]) if is_photos else uncertain_below(*answers["dev"])
        figures = {kind: summary(*answer, noun, thresholds) for kind, answer in answers.items()}
        same = np.mean(
            np.concatenate([answers[k][0].argmax(1) == expected[k][0].argmax(1) for k in sets])
        )
        furthest = max(float(np.abs(answers[k][0] - expected[k][0]).max()) for k in sets)
        typer.echo(
            f"{name} ({info.backend}, {info.precision}): {json.dumps(figures)}; the first one's class "
            f"for {same:.2%}, probabilities within {furthest:.4f}"
        )
    measured, truth = next(iter(expected.values()))
    matrix = confusion(measured, truth)
    print_confusion(matrix, model.labels)
    if write:
        description = model.description
        description.accuracy = {
            kind: summary(*answer, noun, thresholds) for kind, answer in expected.items()
        }
        description.thresholds = thresholds
        write_description(model.folder, description)
        if not description.text:
            draw_confusion(matrix, model.labels, model.folder / "confusion.png")


def evaluate_questions(model: Model, data_dir: Path, write: bool) -> float:
    """Prints how well a model answers questions, in both backends and every precision; returns F1."""
    questions = squad.read(data_dir / "data" / squad.FOLDER / "val.json.gz")
    expected: list[Said] = []
    typer.echo(f"{model.description.name}: val {len(questions)} questions")
    for name, info, settings, backend in loaded(model):
        task, infer = asker(model, settings, backend)
        answers = [
            answer_to(task, infer, each) for each in tqdm(questions, name, mininterval=2, leave=False)
        ]
        expected = expected or answers
        figures = squad.scores([said for said, _ in answers], questions)
        same = np.mean([one[0] == other[0] for one, other in zip(answers, expected, strict=True)])
        furthest = max(abs(one[1] - other[1]) for one, other in zip(answers, expected, strict=True))
        typer.echo(
            f"{name} ({info.backend}, {info.precision}): {json.dumps(figures)}; the first one's answer "
            f"for {same:.2%}, scores within {furthest:.4f}"
        )
    said, scores = zip(*expected, strict=True)
    figures = {name: round(share, 4) for name, share in squad.scores(said, questions).items()}
    if write:
        right = np.array([squad.is_right(*pair) for pair in zip(said, questions, strict=True)])
        model.description.accuracy = {"val": {"questions": len(questions), **figures}}
        least = least_sure(np.array(scores), right)
        model.description.thresholds = Thresholds(probability=least, margin=0.0)
        write_description(model.folder, model.description)
    return figures["f1"]


if __name__ == "__main__":
    typer.run(main)

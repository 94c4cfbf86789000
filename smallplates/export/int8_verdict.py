"""Verdict on an int8 file: its answers beside those of fp32, and its speed; for `int8.py`."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fastapi_onnx import graph_file
from smallplates.engine.backend import Backend
from smallplates.export.photos import Photos
from smallplates.models.description import Int8Verdict, Kind
from smallplates.models.folder import Model
from smallplates.models.scores import softmax
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import precision_check

LEAST_AGREEMENT = 0.98
MAX_ACCURACY_LOST = 0.005
BATCH_SIZES, TIMING_ROUNDS = (1, 4), 20

Logits = Callable[[Array], NDArray[np.float32]]
"""Computes logits [N, classes] of RGB images [N, height, width, 3], or of tokens [N, tokens]."""


class Verdict(Int8Verdict):
    """Comparison of an int8 file with fp32 on the same photos or texts."""

    agreement: float
    photos: int
    mean_difference: float
    """Mean difference of a class's probability."""

    worst_difference: float
    """Largest difference of a class's probability."""

    accuracy: dict[str, float]
    """Top-1 accuracy of `fp32` and `int8`, where the photos have labels."""

    megabytes: dict[str, float]
    """Size of each precision's file."""

    batch_ms: dict[str, dict[int, float]]
    """Milliseconds of a batch on one thread, by precision and batch size."""

    fp32_nodes: list[str]
    """Nodes that were left in fp32 because they cost too much accuracy in int8."""

    @classmethod
    def of(cls, verdict: Int8Verdict) -> "Verdict":
        """Returns what `model.json` has kept. Raises ValueError if training did not write it."""
        return cls.model_validate(verdict.model_dump())


class Judge:
    """Compares an int8 file in a trial folder with fp32 on the same photos."""

    def __init__(self, trial: Model, make: Callable[[], Backend], photos: Photos) -> None:
        self._trial = trial
        self._make = make
        self._photos = photos
        self._fp32 = self._load("fp32")
        self._expected = self._probabilities(self._fp32, photos, "fp32")

    def _load(self, precision: str) -> Logits:
        backend = self._make()
        backend.load(
            self._trial,
            Settings.model_validate(
                {"device": "cpu", "precision": precision, "cpu_runtime": "onnxruntime"}
            ),
        )
        return partial(compute_logits, backend)

    @staticmethod
    def _probabilities(infer: Logits, photos: Photos, name: str) -> NDArray[np.float64]:
        """Computes probabilities [N, classes], one photo at a time; NaN becomes 0."""
        images = tqdm(photos.pixels, desc=name, unit=" photos", leave=False, delay=2)
        return np.nan_to_num(softmax(np.array([infer(image[np.newaxis])[0] for image in images])))

    def difference(self, most: int) -> float:
        """Returns the mean difference of a probability, on up to `most` photos."""
        actual = self._probabilities(self._load("int8"), self._photos.part(0, most), "int8")
        return float(np.abs(actual - self._expected[:most]).mean())

    def verdict(self, files: tuple[Kind, Kind], method: str, fp32_nodes: list[str]) -> Verdict:
        """Judges the trial folder's int8 file; `files` are those of fp32 and int8."""
        int8, expected, labels = self._load("int8"), self._expected, self._photos.labels
        actual = self._probabilities(int8, self._photos, "int8")
        sizes = [megabytes(self._trial.file(kind)) for kind in files]
        samples = precision_check.sample_images(self._trial.description.pipeline.output_size)
        return Verdict(
            **comparison(self._trial, expected, actual, labels, (self._fp32, int8), samples, "photos"),
            megabytes=dict(zip(("fp32", "int8"), sizes, strict=True)),
            method=method,
            fp32_nodes=fp32_nodes,
        )


def megabytes(path: Path) -> float:
    """Returns the size of a file with weights, and of its weights in other files."""
    size = graph_file.size(path) if path.suffix == ".onnx" else path.stat().st_size
    return round(size / 1e6, 1)


def comparison(
    model: Model,
    expected: NDArray[np.floating],
    actual: NDArray[np.floating],
    labels: NDArray[np.int64] | None,
    networks: tuple[Logits, Logits],
    samples: Array,
    noun: str,
) -> dict[str, Any]:
    """Returns the fields of a verdict that say how int8 answers beside fp32, and how fast.

    `expected` and `actual` are the probabilities [N, classes] of fp32 and int8; `networks` compute the
    logits of `samples` in either. `noun` is for the reason, in the plural.
    """
    agreement = float((actual.argmax(1) == expected.argmax(1)).mean())
    accuracy: dict[str, float] = {}
    if labels is not None:
        for name, answers in (("fp32", expected), ("int8", actual)):
            accuracy[name] = round(float((answers.argmax(1) == labels).mean()), 4)
    objection = objection_to(agreement, accuracy, noun)
    logits = [
        np.concatenate([infer(one) for one in np.split(samples, len(samples))]) for infer in networks
    ]
    return {
        "fit": objection is None,
        "reason": objection or f"it names fp32's class for {agreement:.1%} of {len(actual)} {noun}",
        "sample_difference": round(precision_check.comparison_for(model)(*logits).mean, 4),
        "agreement": round(agreement, 4),
        "mean_difference": round(float(np.abs(actual - expected).mean()), 5),
        "worst_difference": round(float(np.abs(actual - expected).max()), 4),
        "photos": len(actual),
        "accuracy": accuracy,
        "batch_ms": milliseconds(dict(zip(("fp32", "int8"), networks, strict=True)), samples),
    }


def objection_to(agreement: float, accuracy: dict[str, float], what: str = "photos") -> str | None:
    """Returns why such a file is not fit; None if it is. `accuracy` is empty without labels."""
    if agreement < LEAST_AGREEMENT:
        return (
            f"it names fp32's class for {agreement:.1%} of the {what}; {LEAST_AGREEMENT:.0%} are needed"
        )
    lost = accuracy["fp32"] - accuracy["int8"] if accuracy else 0.0
    if lost > MAX_ACCURACY_LOST:
        return f"it costs {100 * lost:.1f} points of accuracy; {100 * MAX_ACCURACY_LOST:.1f} are allowed"
    return None


def milliseconds(networks: dict[str, Logits], images: Array) -> dict[str, dict[int, float]]:
    """Measures networks in turn; returns the shortest time of a batch, by network and batch size."""
    times: dict[str, dict[int, float]] = {name: {} for name in networks}
    for size in BATCH_SIZES:
        for _ in range(TIMING_ROUNDS):
            for name, infer in networks.items():
                start = time.perf_counter()
                infer(images[:size])
                ms = 1000 * (time.perf_counter() - start)
                times[name][size] = round(min(ms, times[name].get(size, ms)), 3)
    return times

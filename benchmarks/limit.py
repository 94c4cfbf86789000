"""Upper limit of this machine, in one process and without HTTP: decoding, inference, and both.

`python -m benchmarks limit` measures decoding alone; inference alone, by backend, instances, threads of
an instance and batch size; and decoding with inference, as the service does them. Candidates take
turns for several rounds, so that a busy neighbour slows all of them.
"""

import importlib
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

from smallplates.cli.load import payloads, report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.engine.backend import Backend, BackendInfo
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.system import cpus
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PACKAGES = ("fastapi_onnx", "fastapi_pt")
Work = Callable[[], int]
"""Function that processes images and returns their number."""


@dataclass(frozen=True)
class Instances:
    """Division of the machine among instances of a model."""

    package: str
    count: int
    threads: int
    """Threads of each instance."""

    precision: str = "auto"
    """Value of the setting `precision`: `auto`, `fp32`, `fp16` on a GPU, `int8` on a CPU."""

    def __str__(self) -> str:
        return f"{self.package}, {self.count} x {self.threads} threads, precision {self.precision}"


@dataclass
class Figure:
    """Rates of one candidate, one per round."""

    what: str
    backend: str
    instances: int
    threads: int
    batch: int
    precision: str
    rounds: list[float]
    """Images a second."""

    @property
    def per_second(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    def row(self) -> dict[str, object]:
        """Returns a row of the table; `ms a batch` is how long one instance takes for a batch."""
        return {
            "backend": self.backend,
            "instances": self.instances,
            "threads each": self.threads,
            "batch": self.batch,
            "precision": self.precision,
            "pictures/s": self.per_second,
            "least": min(self.rounds),
            "most": max(self.rounds),
            "ms a batch": 1000 * self.instances * self.batch / self.per_second,
        }

    def record(self) -> dict[str, Any]:
        """Returns the JSON object for a results file."""
        return {**asdict(self), "per_second": round(self.per_second, 2)}


def rate(works: list[Work], seconds: float) -> float:
    """Returns images a second when all functions run together, each on a thread and at least once."""
    counts = [0] * len(works)
    end = time.perf_counter() + seconds

    def run(index: int) -> None:
        counts[index] += works[index]()
        while time.perf_counter() < end:
            counts[index] += works[index]()

    started = time.perf_counter()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def load(layout: Instances, model: Model, device: str) -> tuple[Backend, BackendInfo]:
    """Loads one instance. Raises ConfigurationError or ImportError."""
    module, _, name = importlib.import_module(layout.package).BACKEND.partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    settings = Settings.read(device=device, intra_op_threads=layout.threads, precision=layout.precision)
    return backend, backend.load(model, settings)


class Limit:
    """Experiments with one model and one image."""

    def __init__(self, model_dir: Path, photo: bytes, device: str, seconds: float, rounds: int) -> None:
        settings = Settings(model_dir=model_dir)
        self.model = Model.read(model_dir)
        self.decoder = ImageDecoder(self.model.description.pipeline, settings.max_image_pixels)
        self.photo = photo
        self.device = device
        self.seconds = seconds
        self.rounds = rounds

    def decoding(self, threads: list[int]) -> list[Figure]:
        """Measures decoding an image to pixels, for each number of threads."""

        def work() -> int:
            self.decoder.decode(self.photo)
            return 1

        figures = [Figure("decode", "Pillow", count, 1, 1, "uint8", []) for count in threads]
        for _ in range(self.rounds):
            for figure in figures:
                figure.rounds.append(rate([work] * figure.instances, self.seconds))
        return figures

    def inference(self, layout: Instances, batches: list[int]) -> list[Figure]:
        """Measures one layout by batch size: inference alone, and decoding with inference.

        Raises ConfigurationError or ImportError when the backend cannot be used on this machine.
        """
        loaded = [load(layout, self.model, self.device) for _ in range(layout.count)]
        precision = loaded[0][1].precision
        backends = [backend for backend, _ in loaded]
        pixels = self.decoder.decode(self.photo)

        def figure(what: str, batch: int) -> Figure:
            return Figure(what, layout.package, layout.count, layout.threads, batch, precision, [])

        def inferring(backend: Backend, batch: int) -> Work:
            images = np.repeat(pixels[np.newaxis], batch, axis=0)
            return lambda: len(compute_logits(backend, images))

        def answering(backend: Backend, batch: int) -> Work:
            return lambda: len(
                compute_logits(
                    backend, np.stack([self.decoder.decode(self.photo) for _ in range(batch)])
                )
            )

        candidates = [(figure("infer", n), [inferring(b, n) for b in backends]) for n in batches]
        candidates += [(figure("whole", n), [answering(b, n) for b in backends]) for n in batches]
        for _, works in candidates:
            rate(works, 0.1)  # warm
        for _ in range(self.rounds):
            for candidate, works in candidates:
                candidate.rounds.append(rate(works, self.seconds))
        for backend in backends:
            backend.close()
        return [candidate for candidate, _ in candidates]


def layouts(packages: list[str], cores: int, precisions: Sequence[str]) -> list[Instances]:
    """Returns three layouts: one thread, one instance with all cores, an instance per core."""
    shapes = dict.fromkeys([(1, 1), (1, cores), (cores, 1)])
    return [
        Instances(package, *shape, precision)
        for package in packages
        for precision in precisions
        for shape in shapes
    ]


def measure(
    experiments: Limit,
    packages: list[str],
    batches: list[int],
    cores: int,
    precisions: Sequence[str] = ("auto",),
) -> dict[str, list[Figure]]:
    """Runs all experiments; skips and reports backends that cannot be used on this machine."""
    by_experiment: dict[str, list[Figure]] = {"decode": experiments.decoding(sorted({1, cores}))}
    by_experiment |= {"infer": [], "whole": []}
    for layout in tqdm(layouts(packages, cores, precisions), desc="layouts", mininterval=1):
        try:
            figures = experiments.inference(layout, batches)
        except (ImportError, ConfigurationError) as error:
            tqdm.write(f"{layout}: {error}")
            continue
        for figure in figures:
            by_experiment[figure.what].append(figure)
    return by_experiment


def plot_inference(axes: "Axes", by_experiment: dict[str, list[Figure]]) -> None:
    """Plots images a second by batch size, a line per layout."""
    lines: dict[str, list[Figure]] = {}
    for figure in by_experiment["infer"]:
        name = f"{figure.backend}, {figure.precision}, {figure.instances} x {figure.threads}"
        lines.setdefault(name, []).append(figure)
    for name, points in lines.items():
        axes.plot([p.batch for p in points], [p.per_second for p in points], "o-", label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch size", ylabel="pictures a second, inference alone", ylim=(0, None))
    axes.legend(title="backend, precision, instances x threads")
    axes.grid(alpha=0.3)


def main(
    model_dir: Annotated[Path, typer.Option("--model", help="A model's folder.")] = Path(
        "models/food11"
    ),
    photo: Annotated[Path, typer.Option(help="An image.")] = payloads.SAMPLE,
    backend: Annotated[list[str] | None, typer.Option(help="fastapi_onnx, fastapi_pt.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    precision: Annotated[
        list[str] | None, typer.Option(help="fp32, int8, fp16, auto; repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Per candidate and round.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="The table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT.png and PLOT.svg.")] = None,
) -> None:
    """Measures decoding, inference, and both, without HTTP."""
    experiments = Limit(model_dir, photo.read_bytes(), device, seconds, rounds)
    packages = backend or list(PACKAGES)
    by_experiment = measure(experiments, packages, numbers(batch), cpus.usable(), precision or ["auto"])
    if not by_experiment["whole"]:
        raise typer.BadParameter(f"none of {', '.join(packages)} can be used here")
    titles = {
        "decode": "photo to pixels",
        "infer": "inference alone",
        "whole": "decoding and inference: what a service without any overhead would do",
    }
    for name, figures in by_experiment.items():
        report.print_table(titles[name], [figure.row() for figure in figures])
    if json_file:
        results = {
            name: [figure.record() for figure in figures] for name, figures in by_experiment.items()
        }
        write_results(json_file, report.command(), results, model=experiments.model.description.name)
    if csv_file:
        rows = [{"what": f.what, **f.row()} for figures in by_experiment.values() for f in figures]
        report.write_csv(csv_file, rows)
    if plot:
        report.save_picture(plot, partial(plot_inference, by_experiment=by_experiment))

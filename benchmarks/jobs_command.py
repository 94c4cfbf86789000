"""Command line of `jobs`: chooses the arrangements to measure, and writes the figures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import model
from benchmarks.jobs import Backend, Outcome, Progress, centralised, decentralised
from smallplates.cli.load import report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.settings import ROOT
from smallplates.system import cpus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLES = ROOT / "flask_app" / "static" / "samples"
CLASSES = 1000

PLOTTED = {"images_per_second": "images per second", "memory_mb": "highest memory, MB"}

Measurement = Callable[[Progress], Outcome]


def bars(axes: "Axes", rows: Sequence[dict[str, Any]], key: str, title: str) -> None:
    """Draws a figure of each arrangement; those with a service are blue."""
    names = [f"{row['arrangement']} ({row['backend']})" for row in rows]
    colours = ["tab:blue" if row["instances"] else "tab:orange" for row in rows]
    drawn = axes.barh(names, [row[key] for row in rows], color=colours)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    axes.set(title=title, xlabel=PLOTTED[key])
    axes.margins(x=0.15)
    axes.invert_yaxis()


def model_folder(chosen: Path | None, architecture: str) -> Path:
    """Returns the given folder, or one with random weights, made when it is missing."""
    if chosen:
        return chosen
    folder = ROOT / "runs" / f"jobs-{architecture}"
    if not (folder / "model.json").exists():
        typer.echo(f"making runs/{folder.name}")
        model.main(out=folder, architecture=architecture, classes=CLASSES)
    return folder


def arrangements(
    model_dir: Path,
    photos: Sequence[Path],
    backend: Backend,
    images: int,
    at_once: Sequence[int],
    instances: Sequence[int],
    max_batch_size: int,
    max_queue_delay_us: int,
) -> list[Measurement]:
    """Returns the measurements: own models with each number at once, then the service's variants."""

    def in_jobs(count: int) -> Measurement:
        return lambda progress: decentralised(model_dir, photos, backend, images, count, progress)

    def served(count: int, batch: int = 1, delay: int = 0) -> Measurement:
        clients = max(*at_once, max_batch_size)  # as many as fill a batch
        return lambda progress: centralised(
            model_dir, photos, backend, images, clients, count, batch, delay, progress
        )

    more = [served(count) for count in sorted(set(instances) - {1})]
    batched = served(1, max_batch_size, max_queue_delay_us)
    return [*(in_jobs(count) for count in at_once), served(1), batched, *more]


def main(
    images: Annotated[int, typer.Option(min=1, help="Images to classify, a process each.")] = 100,
    at_once: Annotated[str, typer.Option(help="Jobs with their own model at once.")] = "1,2,4",
    instances: Annotated[str, typer.Option(help="Of the model in the service.")] = "1,2,4,8",
    backend: Annotated[
        list[Backend] | None, typer.Option(help="May be repeated; PyTorch alone by default.")
    ] = None,
    architecture: Annotated[str, typer.Option(help="In torchvision; random weights.")] = "resnet152",
    model_dir: Annotated[Path | None, typer.Option("--model", help="A model's folder instead.")] = None,
    photos: Annotated[Path, typer.Option(help="A JPEG, or a folder of them.")] = SAMPLES,
    max_batch_size: Annotated[
        int, typer.Option(min=2, max=512, help="So many clients call the service.")
    ] = 8,
    max_queue_delay_us: Annotated[
        int, typer.Option(min=0, help="Of the service with batching.")
    ] = 20_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keeps all figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Keeps all figures.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT.png and PLOT.svg.")] = None,
) -> None:
    """Compares a model in every job with one service for all jobs: time, CPU, memory."""
    counts, sizes = numbers(at_once), numbers(instances)
    files = sorted(photos.glob("*.jp*g")) if photos.is_dir() else [photos]
    if not files:
        raise typer.BadParameter(f"no JPEG in {photos}")
    folder = model_folder(model_dir, architecture)
    measurements = [
        measurement
        for name in backend or [Backend.PT]
        for measurement in arrangements(
            folder, files, name, images, counts, sizes, max_batch_size, max_queue_delay_us
        )
    ]
    with tqdm(total=images * len(measurements), desc="jobs", mininterval=1) as bar:
        outcomes = [measurement(bar.update) for measurement in measurements]
    report.print_table(
        "a model in every job, and one service for all", [outcome.row() for outcome in outcomes]
    )
    rows = [{name: v for name, v in vars(outcome).items() if name != "answers"} for outcome in outcomes]
    command = (
        f"python -m benchmarks jobs --images {images} --at-once {at_once} --instances {instances} "
        f"--max-batch-size {max_batch_size} --max-queue-delay-us {max_queue_delay_us} "
    ) + (f"--model {model_dir.name}" if model_dir else f"--architecture {architecture}")
    command += "".join(f" --backend {name.value}" for name in backend or [])
    if json_file:
        write_results(json_file, command, [asdict(outcome) for outcome in outcomes])
    if csv_file:
        report.write_csv(csv_file, rows)
    if plot:
        title = f"{folder.name}, {images} jobs on {cpus.usable()} cores"
        report.save_picture(plot, *(partial(bars, rows=rows, key=key, title=title) for key in PLOTTED))

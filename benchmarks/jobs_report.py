"""Report of `jobs`: a table, a plot and a CSV file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.jobs import Outcome
from benchmarks.table import aligned
from smallplates.cli.load import report

HEAD = ("arrangement", "backend", "start s", "jobs s", "images/s", "CPU %", "memory MB")


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns one row per arrangement."""
    lines = [
        (
            outcome.arrangement,
            outcome.backend,
            f"{outcome.start_s:.1f}",
            f"{outcome.seconds:.1f}",
            f"{outcome.images_per_second:.2f}",
            f"{outcome.cpu_percent:.0f}",
            f"{outcome.memory_mb:.0f}",
        )
        for outcome in outcomes
    ]
    return aligned([HEAD, *lines])


def draw(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """Plots images per second and memory of each arrangement, as PATH.png and PATH.svg."""
    figure = Figure(figsize=(10, 1.2 + 0.4 * len(outcomes)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    names = [f"{outcome.arrangement} ({outcome.backend})" for outcome in outcomes]
    colours = ["tab:blue" if outcome.instances else "tab:orange" for outcome in outcomes]
    columns = {
        "images per second": [outcome.images_per_second for outcome in outcomes],
        "highest memory, MB": [outcome.memory_mb for outcome in outcomes],
    }
    for axis, (label, values) in zip(axes, columns.items(), strict=True):
        axis.bar_label(axis.barh(names, values, color=colours), fmt="%.3g", padding=3)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
    axes[0].invert_yaxis()
    figure.suptitle(title)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes one row per arrangement, without the answers."""
    rows = [asdict(outcome) for outcome in outcomes]
    report.write_csv(path, [{k: v for k, v in row.items() if k != "answers"} for row in rows])

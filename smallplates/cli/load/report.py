"""Output of results: a table, JSON with machine and command, CSV, plots."""

import csv
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, object]
WIDTH = 120  # of a table in a file or a notebook


def command() -> str:
    """Returns the command line that repeats this measurement, without the machine's folders."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    is_benchmark = "benchmarks" in Path(sys.argv[0]).parts
    return shlex.join([*(["python", "-m", "benchmarks"] if is_benchmark else ["smallplates"]), *words])


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Writes a line per row; columns are in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def cell(value: object) -> str:
    """Formats numbers to three or four digits; None becomes empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        digits = ",.0f" if abs(value) >= 1000 else ".1f" if abs(value) >= 100 else ".3g"
        return f"{value:{digits}}"
    return str(value)


def print_table(title: str, rows: Sequence[Row], notes: Iterable[str] = ()) -> None:
    """Prints a table on standard output, with numbers aligned right."""
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in columns))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    for note in notes:
        console.print(f"! {note}", style="yellow", markup=False)


def drawn(*plots: "Callable[[Axes], None]") -> "Figure":
    """Draws the plots beside each other in one figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(plots), 4.4), layout="constrained")
    for plot, axes in zip(plots, figure.subplots(1, len(plots), squeeze=False)[0], strict=True):
        plot(axes)
    return figure


def save_picture(path: Path, *plots: "Callable[[Axes], None]") -> None:
    """Saves the plots beside each other, as `PATH.png` and `PATH.svg`."""
    figure = drawn(*plots)
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=110)

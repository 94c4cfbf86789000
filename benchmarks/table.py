"""Figures of `compare`, by server and load, a row per round; as text and as CSV."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, float]
Loads = dict[str, list[Row]]
Results = dict[str, Loads]

REFERENCE = "this service"
HEAD = ("server", "load", "per second", "p50 ms", "p99 ms", "ours/its", "failed")


def keep(results: Results, name: str, loads: Loads) -> None:
    """Appends the rows of one round."""
    for load, rows in loads.items():
        results.setdefault(name, {}).setdefault(load, []).extend(rows)


def spread(rows: list[Row], key: str, digits: int) -> str:
    """Formats the median over the rounds, and the range from smallest to largest."""
    values = [row[key] for row in rows]
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return text


def ratios(reference: list[Row], rows: list[Row]) -> list[Row]:
    """Returns how much faster the reference is, round by round, as a slow minute slows both servers."""
    return [
        {"ratio": ours["per_second"] / its["per_second"] if its["per_second"] else float("inf")}
        for ours, its in zip(reference, rows, strict=True)
    ]


def lines(results: Results) -> list[tuple[str, ...]]:
    """Returns a line of text per server and load."""
    found = []
    for name, loads in results.items():
        for load, rows in loads.items():
            line = [name, load, spread(rows, "per_second", 1), "", "", "", ""]
            if "p50_ms" in rows[0]:
                line[3:5] = spread(rows, "p50_ms", 1), spread(rows, "p99_ms", 0)
                line[6] = f"{sum(row['failed'] for row in rows):.0f}"
            if reference := results.get(REFERENCE, {}).get(load):
                line[5] = spread(ratios(reference, rows), "ratio", 2)
            found.append(tuple(line))
    return found


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Formats columns as wide as their widest cell, the first one aligned left, all others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def text(results: Results) -> str:
    """Formats the whole table: medians, and ranges when there are several rounds."""
    return aligned([HEAD, *lines(results)])


def plot_load(axes: "Axes", results: Results, load: str) -> None:
    """Plots a bar per server: median rate under one load, with its range over the rounds."""
    found = {
        name: [row["per_second"] for row in loads[load]]
        for name, loads in results.items()
        if load in loads
    }
    medians = [statistics.median(values) for values in found.values()]
    below = [median - min(values) for median, values in zip(medians, found.values(), strict=True)]
    above = [max(values) - median for median, values in zip(medians, found.values(), strict=True)]
    colours = ["tab:blue" if name.startswith(REFERENCE) else "tab:grey" for name in found]
    axes.barh(list(found), medians, xerr=[below, above], color=colours, capsize=3)
    axes.invert_yaxis()
    axes.set(title=load, xlabel="answers a second")
    axes.grid(alpha=0.3, axis="x")


def write_csv(path: Path, results: Results) -> None:
    """Writes a row per server, load and round."""
    flat = [
        {"server": name, "load": load, "round": number, **row}
        for name, loads in results.items()
        for load, rows in loads.items()
        for number, row in enumerate(rows, 1)
    ]
    report.write_csv(path, flat)

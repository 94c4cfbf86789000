"""Figures of `compare`, by server and load, a row per round; as text and as CSV."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from smallplates.cli.load import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, float]
Loads = dict[str, list[Row]]
Results = dict[str, Loads]

REFERENCE = "this service"
IN_PROCESS = "in process, no HTTP"
ENDS = {"fp32": "", "int8": ", int8", "bf16": ", bf16"}
"""End of the names by precision."""

COLUMNS = {
    "p50 ms": ("p50_ms", 1),
    "p99 ms": ("p99_ms", 0),
    "CPU s/1000": ("cpu_s_per_1000", 2),
    "MB": ("memory_mb", 0),
}
"""Figures of a round beside the rate, with their digits."""


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


def precision(name: str) -> str:
    """Returns the end of a server's name that says its precision."""
    return next((end for end in ENDS.values() if end and name.endswith(end)), "")


def reference(name: str) -> str:
    """Returns the name of this service in the precision of another server."""
    return REFERENCE + precision(name)


def number(load: str) -> int:
    """Returns the number in the name of a load: `16 connections` -> 16."""
    return int(load.split()[0])


def shares(results: Results, name: str) -> Row:
    """Returns what a server reaches of the best rate in process, in any round, by load.

    Loads of one connection are left out: they keep one core busy.
    """
    in_process = results.get(IN_PROCESS + precision(name), {}).values()
    limit = max((row["per_second"] for rows in in_process for row in rows), default=0.0)
    return {
        load: statistics.median(row["per_second"] for row in rows) / limit
        for load, rows in results.get(name, {}).items()
        if limit and number(load) > 1
    }


def lines(results: Results) -> list[dict[str, str]]:
    """Returns a row of the table for each server and load, with ranges over several rounds."""
    rows_of_text = []
    for name, loads in results.items():
        for load, rows in loads.items():
            ours = results.get(reference(name), {}).get(load)
            row = {"server": name, "load": load, "per second": spread(rows, "per_second", 1)}
            for title, (key, digits) in COLUMNS.items():
                row[title] = spread(rows, key, digits) if key in rows[0] else ""
            row["ours/its"] = spread(ratios(ours, rows), "ratio", 2) if ours else ""
            row["failed"] = f"{sum(r['failed'] for r in rows):.0f}" if "failed" in rows[0] else ""
            rows_of_text.append(row)
    return rows_of_text


def notes(results: Results) -> list[str]:
    """Returns this service's shares of the best rate in process."""
    return [
        f"{name}: {share:.2f} of the best rate in process at {load}"
        for name in (REFERENCE + end for end in ENDS.values())
        for load, share in shares(results, name).items()
    ]


def plot_load(axes: "Axes", results: Results, load: str) -> None:
    """Plots a bar per server: median rate under one load, with its range over the rounds."""
    rates = {
        name: [row["per_second"] for row in loads[load]]
        for name, loads in results.items()
        if load in loads
    }
    medians = [statistics.median(values) for values in rates.values()]
    below = [median - min(values) for median, values in zip(medians, rates.values(), strict=True)]
    above = [max(values) - median for median, values in zip(medians, rates.values(), strict=True)]
    colours = ["tab:blue" if name.startswith(REFERENCE) else "tab:grey" for name in rates]
    axes.barh(list(rates), medians, xerr=[below, above], color=colours, capsize=3)
    axes.invert_yaxis()
    axes.set(title=load, xlabel="requests a second")
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

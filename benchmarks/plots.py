"""Draws the plots of README.md and docs/: `python -m benchmarks plots`.

Each plot is an SVG made from one file in `benchmarks/results/`. The SVG carries that file's command and
commit, so that a test finds a plot that is older than its figures.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import chapters, compare_report, table
from benchmarks.markdown import Content
from smallplates.cli.load import report
from smallplates.settings import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES = ROOT / "docs" / "images"

Plot = Callable[["Axes", Content], None]


def bars(axes: "Axes", values: dict[str, float], label: str, digits: int = 0) -> None:
    """One horizontal bar a name, with its value beside it; this service's bars are blue."""
    colours = ["tab:blue" if "service" in name else "tab:grey" for name in values]
    drawn = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(drawn, fmt=f"%.{digits}f", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3, axis="x")


def at_headline_load(content: Content, key: str) -> dict[str, float]:
    """The median of `key` of every server at 16 connections; of this service in each precision only."""
    return {
        name: compare_report.median(loads[compare_report.HEADLINE_LOAD], key)
        for name, loads in content["results"].items()
        if not name.startswith(table.IN_PROCESS)
        and (name == table.reference(name) or not name.startswith(table.REFERENCE))
    }


def rates(axes: "Axes", content: Content) -> None:
    """Requests a second of every server; more is better."""
    values = at_headline_load(content, "per_second")
    ordered = dict(sorted(values.items(), key=lambda item: -item[1]))
    bars(axes, ordered, f"requests a second, {compare_report.HEADLINE_LOAD} (more is better)")


def tails(axes: "Axes", content: Content) -> None:
    """The p99 latency of every server; less is better."""
    values = at_headline_load(content, "p99_ms")
    ordered = dict(sorted(values.items(), key=lambda item: item[1]))
    bars(axes, ordered, f"p99 latency in ms, {compare_report.HEADLINE_LOAD} (less is better)")


def percentiles(axes: "Axes", content: Content) -> None:
    """Latency by percentile, one line a load."""
    from smallplates.cli.load.measurement import Measurement, plot_latencies

    plot_latencies(axes, [Measurement(**row) for row in content["results"]])


def stages(axes: "Axes", content: Content) -> None:
    """The service's own medians of each stage, stacked, one bar a load."""
    rows = [row for row in content["results"] if row["server_ms"]]
    left = [0.0] * len(rows)
    for stage in chapters.STAGES:
        values = [row["server_ms"][stage] for row in rows]
        axes.barh([row["load"] for row in rows], values, left=left, label=stage)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("median ms of each stage")
    axes.legend()
    axes.grid(alpha=0.3, axis="x")


def latencies_by_clients(axes: "Axes", content: Content) -> None:
    """Mean latency by clients, one line for each number of instances."""
    from benchmarks.stress import Cell, Stressed, plot_table

    cells = [Cell(**{**row, "seen": Stressed(**row["seen"])}) for row in content["results"]]
    plot_table(axes, cells)


def images_per_second(axes: "Axes", content: Content) -> None:
    """Throughput of own models and of one service."""
    values = {row["arrangement"]: row["images_per_second"] for row in content["results"]}
    bars(axes, values, "images a second (more is better)", digits=1)


def rates_by_web_processes(axes: "Axes", content: Content) -> None:
    """Measured requests a second by web processes, one line for each time that workers sleep."""
    rows = content["results"]["measured"]
    for sleep in dict.fromkeys(row["sleep ms"] for row in rows):
        same = [row for row in rows if row["sleep ms"] == sleep]
        counts, rates = ([row[name] for row in same] for name in ("web processes", "1/s"))
        axes.plot(counts, rates, "o-", label=f"workers sleep {sleep:g} ms")
    axes.set_xticks(sorted({row["web processes"] for row in rows}))
    axes.set(xlabel="web processes", ylabel="requests a second, measured", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)


def rates_by_cores(axes: "Axes", content: Content) -> None:
    """Calculated requests a second by cores, with all web processes needed and with one."""
    rows = content["results"]["calculated"]
    for precision in dict.fromkeys(row["precision"] for row in rows):
        same = [row for row in rows if row["precision"] == precision]
        cores = [row["cores"] for row in same]
        (line,) = axes.plot(cores, [row["1/s"] for row in same], "o-", label=precision)
        single = [row["1/s with one web process"] for row in same]
        axes.plot(cores, single, "--", color=line.get_color(), label=f"{precision}, one web process")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    counts = sorted({row["cores"] for row in rows})
    axes.set_xticks(counts, labels=list(map(str, counts)))
    axes.set(xlabel="cores", ylabel="requests a second, calculated")
    axes.legend()
    axes.grid(alpha=0.3)


def waits_by_load(axes: "Axes", content: Content) -> None:
    """Latency of the answers by offered load, with and without a limit on the wait."""
    from benchmarks.waits import plot_by_load

    plot_by_load(axes, content["results"], "answered_p50_ms", "median ms of an answer")


def answers_by_load(axes: "Axes", content: Content) -> None:
    """Share of the peak that is answered, by offered load, with and without a limit on the wait."""
    from benchmarks.waits import plot_by_load

    plot_by_load(axes, content["results"], "answered_to_peak", "answered, as a share of the peak")


PLOTS: dict[str, tuple[Plot, ...]] = {
    "compare": (rates, tails),
    "load": (percentiles, stages),
    "stress": (latencies_by_clients,),
    "jobs": (images_per_second,),
    "waits": (waits_by_load, answers_by_load),
    "scale": (rates_by_web_processes, rates_by_cores),
}


def draw(name: str, content: Content, path: Path) -> None:
    """Writes one SVG."""
    import matplotlib as mpl

    def bound(plot: Plot) -> Callable[["Axes"], None]:
        return lambda axes: plot(axes, content)

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "axes.axisbelow": True}):
        figure = report.drawn(*map(bound, PLOTS[name]))
        figure.savefig(path, metadata={"Date": None, "Description": chapters.made_by(content)})


def main(
    results: Annotated[Path, typer.Option(help="Folder with the results.")] = chapters.RESULTS,
    out: Annotated[Path, typer.Option(help="Folder for the SVG files.")] = IMAGES,
) -> None:
    """Draws the documentation's plots from the results."""
    out.mkdir(parents=True, exist_ok=True)
    for name in PLOTS:
        draw(name, chapters.read(results, name), out / f"{name}.svg")

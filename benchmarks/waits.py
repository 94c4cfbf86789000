"""Latency and answered share by offered load, with and without a limit on the wait.

`python -m benchmarks waits` starts the service once for each limit, finds the capacity with a closed
loop (wrk), and sends multiples of it in an open loop (h2load).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import h2load, service
from benchmarks.h2load import Schedule
from benchmarks.overload import ONE_WINDOW
from smallplates.cli.load import payloads, report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import parse
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, float]
"""Figures of one limit and load: `max_wait_ms` (0: none), `times` the peak, and what was measured."""


def measure(
    package: str, photo: bytes, max_wait_ms: int, loads: list[float], seconds: float
) -> list[Row]:
    """Measures one service under each load, as a multiple of its peak."""
    limit = {"max_wait_ms": max_wait_ms} if max_wait_ms else {}
    rows = []
    with service.running(package, **limit) as served:
        target = Target(served.url, [photo], Protocol.RAW, motor="wrk")
        peak = target.closed(16, ONE_WINDOW).per_second
        for times in loads:
            plan = Schedule.of(peak * times)
            flood = h2load.run(served.url, target.payloads()[0], plan, seconds)
            rows.append(
                {
                    "max_wait_ms": max_wait_ms,
                    "times": times,
                    "peak_per_second": round(peak, 1),
                    "answered_per_second": round(flood.answers["200"] / seconds, 1),
                    "answered_to_peak": round(flood.answers["200"] / seconds / peak, 3),
                    "refused_per_second": round(flood.answers["503"] / seconds, 1),
                    "answered_p50_ms": flood.answered_p50_ms,
                    "refused_p50_ms": flood.refused_p50_ms,
                }
            )
    return rows


def plot_by_load(axes: "Axes", rows: list[Row], key: str, label: str) -> None:
    """Plots a figure by load, a line for each limit."""
    for limit in dict.fromkeys(row["max_wait_ms"] for row in rows):
        same = [row for row in rows if row["max_wait_ms"] == limit]
        name = f"at most {limit:g} ms" if limit else "no limit"
        axes.plot([row["times"] for row in same], [row[key] for row in same], "o-", label=name)
    axes.set_xscale("log")
    loads = sorted({row["times"] for row in rows})
    axes.set_xticks(loads, labels=[f"{load:g}" for load in loads], minor=False)
    axes.minorticks_off()
    axes.set(xlabel="offered load, as a multiple of the peak", ylabel=label, ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)


def main(
    max_wait_ms: Annotated[str, typer.Option(help="Limits of the wait, 0 for none.")] = "0,100",
    times: Annotated[
        str, typer.Option(help="Offered loads, as multiples of the peak.")
    ] = "0.5,0.8,1,1.5,3,10",
    package: Annotated[str, typer.Option(help="fastapi_onnx, fastapi_pt.")] = "fastapi_onnx",
    photo: Annotated[Path, typer.Option(help="An image, sent as it is.")] = payloads.SAMPLE,
    seconds: float = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Measures latency and answers by offered load, with each limit of the wait."""
    loads = parse(times, float, 0)
    rows = [
        row
        for limit in parse(max_wait_ms, int, 0)
        for row in measure(package, photo.read_bytes(), limit, loads, seconds)
    ]
    report.print_table("waits", [{key: str(value) for key, value in row.items()} for row in rows])
    if json_file:
        write_results(json_file, report.command(), rows)

"""Overload in an open loop: how many requests are refused, how fast, and whether the service recovers.

`python -m benchmarks overload URL --pid PID --photo FILE` finds the capacity with a closed loop (wrk),
then sends `--times` the capacity at constant intervals, whether or not answers come (h2load), and then
measures the latency of single requests again.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import h2load
from benchmarks.h2load import Flood, Schedule
from benchmarks.usage import memory_mb, tree
from smallplates.cli.load import payloads, report
from smallplates.cli.load.loops import Arrivals, OpenLoop, Plan, Windows
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.recorder import Recorder, merge
from smallplates.cli.load.target import Target, run_loop

ONE_WINDOW = Plan(warm_up_s=1, window_s=8, fewest=1, most=1)
LOOKED_AT_PER_SECOND = 5.0  # answers whose header fields are looked at, too, which h2load does not


async def overload(
    target: Target, plan: Schedule, seconds: float, pid: int
) -> tuple[Flood, Recorder, float]:
    """Returns the figures of h2load, those of a few requests beside it, and the memory in MB halfway."""
    loop_ = OpenLoop(target.connections(), target.wire(), LOOKED_AT_PER_SECOND, Arrivals.CONSTANT)
    windows = Windows()
    flooding = asyncio.to_thread(h2load.run, target.url, target.payloads()[0], plan, seconds)
    result = asyncio.create_task(flooding)
    await asyncio.wait({result}, timeout=plan.ramp_s)
    looking = asyncio.create_task(loop_.run(windows))
    await asyncio.wait({result}, timeout=seconds / 2)
    halfway = memory_mb(tree(pid))
    flood = await result
    looking.cancel()
    await asyncio.gather(looking, *loop_.waiting, return_exceptions=True)
    windows.turn()
    await loop_.connections.close()
    return flood, merge(windows.done), halfway


def measure(target: Target, times: float, seconds: float, pid: int) -> dict[str, object]:
    """Measures capacity, overload and recovery, as the module describes; returns the figures by name."""
    before = target.closed(1, ONE_WINDOW)
    peak = target.closed(16, ONE_WINDOW).per_second
    memory_before = memory_mb(tree(pid))
    plan = Schedule.of(peak * times)
    flood, looked_at, memory_halfway = run_loop(overload(target, plan, seconds, pid))
    memory_after = memory_mb(tree(pid))
    after = target.closed(1, ONE_WINDOW)
    peak_after = target.closed(16, ONE_WINDOW).per_second
    answered = flood.answers["200"] / seconds
    return {
        "peak_per_second": round(peak, 1),
        "peak_per_second_after": round(peak_after, 1),
        "offered_per_second": round(plan.rate, 1),
        "answered_per_second": round(answered, 1),
        "answered_to_peak": round(2 * answered / (peak + peak_after), 3),
        "answers": dict(flood.answers),
        "generator_cores": round(flood.generator_cores, 3),
        "refusals_looked_at": looked_at.statuses["503"],
        "refused_without_retry_after": looked_at.without_retry_after,
        "refused_p50_ms": flood.refused_p50_ms,
        "answered_p50_ms": flood.answered_p50_ms,
        "one_client_p50_ms_before": before.p50,
        "one_client_p50_ms_after": after.p50,
        "memory_mb_before": round(memory_before, 1),
        "memory_mb_halfway": round(memory_halfway, 1),
        "memory_mb_after": round(memory_after, 1),
    }


def main(
    url: str,
    pid: Annotated[int, typer.Option(help="The service's main process, for its memory.")],
    photo: Annotated[Path, typer.Option(help="An image, sent as it is.")] = payloads.SAMPLE,
    times: Annotated[float, typer.Option(help="Offered load, as a multiple of the capacity.")] = 3,
    seconds: float = 60,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Sends more requests than the service can answer; measures refusals and recovery."""
    if shutil.which("h2load") is None:
        raise typer.BadParameter("h2load is not installed; Debian's package is nghttp2-client")
    target = Target(url, [photo.read_bytes()], Protocol.RAW, motor="wrk")
    figures = measure(target, times, seconds, pid)
    report.print_table("overload", [{"": key, "value": str(value)} for key, value in figures.items()])
    if json_file:
        write_results(json_file, report.command(), figures)

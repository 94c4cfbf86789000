"""More requests than can be answered, in an open loop: what is refused, how fast, and what is left.

`python -m benchmarks overload URL --photo FILE` finds the capacity with a closed loop, then sends at
constant intervals, at `--times` the capacity, whether or not answers come; then looks again at the
latency of single requests.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import payloads, report
from benchmarks.loops import Arrivals, OpenLoop, Windows
from benchmarks.machine import write_results
from benchmarks.payloads import Protocol
from benchmarks.recorder import Recorder, merged, ms
from benchmarks.service import resident_mb
from benchmarks.target import Plan, Target, Usage, run_loop

ONE_WINDOW = Plan(warm_up_s=1, window_s=8, fewest=1, most=1)


async def overload(loop_: OpenLoop, seconds: float, pid: int) -> tuple[Recorder, float]:
    """What was answered in `seconds` and after them, and the memory in MB halfway."""
    windows = Windows()
    sending = asyncio.create_task(loop_.run(windows))
    await asyncio.wait({sending}, timeout=seconds / 2)
    halfway = resident_mb(pid)
    await asyncio.wait({sending}, timeout=seconds / 2)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    windows.turn()
    if loop_.waiting:
        await asyncio.wait(loop_.waiting)
    windows.turn()
    await loop_.connections.close()
    return merged(windows.done), halfway


def measure(target: Target, times: float, seconds: float, pid: int) -> dict[str, object]:
    """See the module."""
    before = target.closed(1, ONE_WINDOW)
    peak = target.closed(16, ONE_WINDOW).per_second
    memory_before = resident_mb(pid)
    loop_ = OpenLoop(target.connections(), target.wire(), peak * times, Arrivals.CONSTANT)
    usage = Usage()
    seen, memory_halfway = run_loop(overload(loop_, seconds, pid))
    generator_cores, _ = usage.look()
    memory_after = resident_mb(pid)
    after = target.closed(1, ONE_WINDOW)
    peak_after = target.closed(16, ONE_WINDOW).per_second
    answered = seen.statuses["200"] / seconds
    return {
        "peak_per_second": round(peak, 1),
        "peak_per_second_after": round(peak_after, 1),
        "offered_per_second": round(peak * times, 1),
        "answered_per_second": round(answered, 1),
        "answered_to_peak": round(2 * answered / (peak + peak_after), 3),
        "answers": dict(seen.statuses),
        "generator_cores": generator_cores,
        "refused_without_retry_after": seen.without_retry_after,
        "refused_p50_ms": ms(seen.refusal, 50),
        "answered_p50_ms": ms(seen.latency, 50),
        "one_client_p50_ms_before": before.p50,
        "one_client_p50_ms_after": after.p50,
        "memory_mb_before": round(memory_before, 1),
        "memory_mb_halfway": round(memory_halfway, 1),
        "memory_mb_after": round(memory_after, 1),
    }


def main(
    url: str,
    pid: Annotated[int, typer.Option(help="The service's main process, for its memory.")],
    photo: Annotated[Path, typer.Option(help="A picture, sent as it is.")] = payloads.SAMPLE,
    times: Annotated[float, typer.Option(help="Offered load, as a multiple of the capacity.")] = 3,
    seconds: float = 60,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Sends more than can be answered, and looks at what is refused, and what is left."""
    target = Target(url, [photo.read_bytes()], Protocol.RAW)
    found = measure(target, times, seconds, pid)
    report.print_table("overload", [{"": key, "value": str(value)} for key, value in found.items()])
    if json_file:
        write_results(json_file, report.command(), found)

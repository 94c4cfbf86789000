"""Ceiling of the web processes, measured with workers that sleep, and calculated for more cores.

`python -m benchmarks scale` runs the service with workers that sleep (`benchmarks.sleeping`), for
every pair of a worker's time for an image and a number of web processes. It reports the CPU time that a
request takes of each part, and which part was busy. From these times it calculates, without a
measurement, what machines with more cores would need and answer.
"""

import os
import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from tqdm import tqdm

from benchmarks import service
from benchmarks.peers.common import graph
from benchmarks.usage import cpu_seconds, tree
from smallplates.cli.load import payloads, report, server_side, wrk
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import milliseconds, numbers
from smallplates.cli.load.payloads import Payload, Protocol
from smallplates.models.folder import Model

WARM_UP_S = 1
FULL = 0.9
"""Busy share from which on a part is said to be the limit."""

CORES = (4, 8, 16, 32, 64)
CALCULATION = (
    "calculation, not a measurement: every core busy, nothing else in the way, clients elsewhere"
)
WORKER = "smallplates.worker.process"

Figures = dict[str, float]


@dataclass
class Case:
    """A worker's time for an image and a number of web processes, with the figures of each round."""

    service_ms: float
    web_processes: int
    rounds: list[Figures] = field(default_factory=list)

    @property
    def median(self) -> Figures:
        """Median of each figure over the rounds."""
        return {
            name: statistics.median(round_figures[name] for round_figures in self.rounds)
            for name in self.rounds[0]
        }

    @property
    def limits(self) -> str:
        """Names of the parts that were busy all the time, as the medians say."""
        busy = {part: self.median[f"{part} busy"] for part in ("web", "workers", "machine")}
        return ", ".join(part for part, share in busy.items() if share >= FULL) or "none"

    def row(self) -> dict[str, Any]:
        """Returns a row of the table; `web ms`, `worker ms` and `wrk ms` are CPU time of a request."""
        median = {name: round(value, 3) for name, value in self.median.items()}
        case = {"sleep ms": self.service_ms, "web processes": self.web_processes}
        return {**case, **median, "limit": self.limits}


def cpu_by_part(pid: int) -> Figures:
    """Returns the CPU seconds of a service's web processes and workers, and of wrk, which has ended."""
    processes = tree(pid)
    workers = [process for process in processes if WORKER in process.cmdline()]
    times = os.times()
    return {
        "web": cpu_seconds(process for process in processes if process not in workers),
        "worker": cpu_seconds(workers),
        "wrk": times.children_user + times.children_system,
    }


def figures(case: Case, load: wrk.Load, cpu: Figures, instances: int, machine_busy: float) -> Figures:
    """Returns the figures of a round: rate, latency, CPU ms of a request, busy shares.

    `cpu` has the CPU seconds of each part. A worker is busy while it sleeps, too. `machine_busy` is the
    share of all cores that was busy, with other programs.
    """
    per_request = {f"{part} ms": 1000 * used / max(1, load.requests) for part, used in cpu.items()}
    worker_s = (case.service_ms + per_request["worker ms"]) / 1000
    return {
        "1/s": load.per_second,
        "p99 ms": load.p99_ms,
        "failed": load.failed,
        **per_request,
        "web busy": cpu["web"] / load.seconds / case.web_processes,
        "workers busy": load.per_second * worker_s / instances,
        "machine busy": machine_busy,
    }


def run(
    case: Case, request: Payload, model_dir: Path, instances: int, connections: int, seconds: float
) -> Figures:
    """Measures one round of a case."""
    with service.running(
        "benchmarks.sleeping",
        {"BENCHMARK_SLEEP_MS": str(case.service_ms)},
        model_dir=model_dir,
        device="cpu",
        instances=instances,
        web_processes=case.web_processes,
        max_batch_size=1,
        idle_threads=1,
    ) as served:
        url = served.url + request.path
        wrk.run(url, request.body, connections, WARM_UP_S, request.headers)
        before = cpu_by_part(served.keeper_pid)
        psutil.cpu_percent()
        load = wrk.run(url, request.body, connections, seconds, request.headers)
        machine_busy = psutil.cpu_percent() / 100  # since the call before
        after = cpu_by_part(served.keeper_pid)
    cpu = {part: after[part] - before[part] for part in before}
    return figures(case, load, cpu, instances, machine_busy)


def busiest(cases: list[Case]) -> Case:
    """Returns the case of the fewest web processes in which they were busiest."""
    fewest = min(case.web_processes for case in cases)
    alone = (case for case in cases if case.web_processes == fewest)
    return max(alone, key=lambda case: case.median["web busy"])


def measured_worker_ms(model_dir: Path, precision: str) -> float:
    """Returns a worker's time for an image, in ms: from warm-up, at the batch size it has chosen."""
    with service.running(
        model_dir=model_dir, precision=precision, device="cpu", instances=1, idle_threads=1
    ) as served:
        described = server_side.describe(served.url)
    size: int = described["max_batch_size"]
    return float(described["batch_ms"][str(size)]) / size


def calculated(web: float, workers: Figures, ceiling: float) -> list[dict[str, Any]]:
    """Returns what machines with more cores would answer: a row per precision and number of cores.

    `web` is the CPU time of a web process for a request, `workers` that of a worker by precision, in ms;
    `ceiling` is the most requests a second of one web process.
    """
    return [
        {
            "precision": precision,
            "cores": count,
            "web processes": round(count * web / (worker + web), 1),
            "1/s": round(1000 * count / (worker + web)),
            "1/s with one web process": round(min(1000 * count / (worker + web), ceiling)),
        }
        for precision, worker in workers.items()
        for count in CORES
    ]


def worker_times(model_dir: Path, fp32_ms: float | None, int8_ms: float | None) -> Figures:
    """Returns a worker's ms by precision: as given, else measured; no int8 for a model without it."""
    times = {"fp32": fp32_ms or measured_worker_ms(model_dir, "fp32")}
    if int8_ms or graph(Model.read(model_dir), "int8").is_file():
        times["int8"] = int8_ms or measured_worker_ms(model_dir, "int8")
    return times


def main(
    photo: Annotated[Path, typer.Option(help="An image, sent as base64 JSON.")] = payloads.SAMPLE,
    model_dir: Annotated[Path, typer.Option("--model", help="A model's folder.")] = Path(
        "models/food11"
    ),
    service_ms: Annotated[str, typer.Option(help="A worker's times for an image.")] = "0,1.5,5",
    web_processes: Annotated[str, typer.Option(help="Numbers of web processes.")] = "1,2,4",
    instances: Annotated[int, typer.Option(min=1, help="Workers.")] = 16,
    connections: Annotated[int, typer.Option(min=1)] = 64,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Per case and round.")] = 4,
    fp32_ms: Annotated[float | None, typer.Option(help="Else measured.")] = None,
    int8_ms: Annotated[float | None, typer.Option(help="Else measured, if the model has it.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Measures how many requests web processes can take; calculates what more cores would answer."""
    if shutil.which("wrk") is None:
        raise typer.BadParameter("wrk must be installed; it is a package of most Linux systems")
    counts = numbers(web_processes)
    cases = [Case(ms, count) for ms in milliseconds(service_ms) for count in counts]
    request, folder = payloads.PHOTOS.payload(photo.read_bytes(), Protocol.JSON), model_dir.resolve()
    for case in tqdm(cases * rounds, desc="cases", mininterval=1):
        case.rounds.append(run(case, request, folder, instances, connections, seconds))
    web, workers = busiest(cases), worker_times(folder, fp32_ms, int8_ms)
    web_times = {"web_ms": web.median["web ms"], "ceiling": web.median["1/s"] / web.web_processes}
    table = calculated(web_times["web_ms"], workers, web_times["ceiling"])
    sleeping = f"{instances} workers that sleep, {connections} connections"
    report.print_table(sleeping, [case.row() for case in cases])
    web_process = "a web process takes {web_ms:.2f} ms and answers {ceiling:.0f}/s at most".format(
        **web_times
    )
    notes = [f"a worker takes {ms:.2f} ms in {precision}" for precision, ms in workers.items()]
    report.print_table(CALCULATION, table, [web_process, *notes])
    if json_file:
        measured = [{**case.row(), "rounds": case.rounds} for case in cases]
        results = {"measured": measured, **web_times, "worker_ms": workers, "calculated": table}
        write_results(json_file, report.command(), results)

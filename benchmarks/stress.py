"""Classic stress test of a small inference server: client processes, a few at a time.

`python -m benchmarks stress URL --num-simultaneous-clients 5 --num-total-clients 100
--num-requests-per-client 10` loads a running service; `python -m benchmarks stress --table` starts the
service itself, with 1, 2, 4 and 8 instances, and loads each with 1, 5, 20 and 50 clients at a time.
"""

import json
import statistics
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from benchmarks import service
from benchmarks.usage import memory_mb
from smallplates.cli.load import payloads, report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.settings import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Stressed:
    """Figures of the clients."""

    simultaneous_clients: int
    total_clients: int
    requests_per_client: int
    seconds: float
    """Time from the first client's start to the last one's end, including the start of processes."""

    answered: int
    failed: int
    mean_ms: float
    """Mean latency of the requests of all clients."""

    sd_ms: float
    client_mean_sd_ms: float
    """Standard deviation of the clients' own means: whether some were served worse than others."""

    slowest_ms: float

    def row(self) -> dict[str, object]:
        """Returns a row of the table."""
        return {
            "clients at a time": self.simultaneous_clients,
            "clients": self.total_clients,
            "requests each": self.requests_per_client,
            "mean ms": self.mean_ms,
            "sd ms": self.sd_ms,
            "sd of clients' means": self.client_mean_sd_ms,
            "slowest ms": self.slowest_ms,
            "answered/s": round(self.answered / self.seconds, 1),
            "failed": self.failed,
        }


def one_client(url: str, body: bytes, requests: int) -> tuple[list[float], int]:
    """Runs a client process; returns latencies in seconds, and the number of failed requests."""
    done = subprocess.run(  # noqa: S603 our own program
        [sys.executable, "-m", "benchmarks.stress_client", url, str(requests)],
        input=body,
        capture_output=True,
        cwd=ROOT,
        check=True,
    )
    latencies, failed = json.loads(done.stdout)
    return latencies, failed


def stress(url: str, photo: bytes, simultaneous: int, total: int, requests: int) -> Stressed:
    """Runs `total` clients, `simultaneous` at a time; each sends `requests` requests in a row."""
    body = json.dumps({"image": b64encode(photo).decode()}).encode()
    started = time.perf_counter()
    with ThreadPoolExecutor(simultaneous) as pool:
        futures = [pool.submit(one_client, url, body, requests) for _ in range(total)]
        clients = [future.result() for future in tqdm(futures, desc="clients", mininterval=1)]
    seconds = time.perf_counter() - started
    latencies = [1000 * value for client, _ in clients for value in client]
    means = [1000 * statistics.mean(client) for client, _ in clients if client]
    if not latencies:
        raise RuntimeError(f"{url} answered none of the requests")
    return Stressed(
        simultaneous_clients=simultaneous,
        total_clients=total,
        requests_per_client=requests,
        seconds=round(seconds, 3),
        answered=len(latencies),
        failed=sum(failed for _, failed in clients),
        mean_ms=round(statistics.mean(latencies), 2),
        sd_ms=round(statistics.pstdev(latencies), 2),
        client_mean_sd_ms=round(statistics.pstdev(means), 2),
        slowest_ms=round(max(latencies), 2),
    )


@dataclass(frozen=True)
class Cell:
    """Figures of one number of instances and of clients."""

    instances: int
    memory_mb: float | None
    """Proportional set size of all processes of the service, after the load; None: not known."""

    seen: Stressed

    def row(self) -> dict[str, object]:
        """Returns a row of the table."""
        memory = None if self.memory_mb is None else round(self.memory_mb)
        return {"instances": self.instances, **self.seen.row(), "MB": memory}


def by_clients(
    url: str, photo: bytes, clients: list[int], total: int, requests: int
) -> Iterator[Stressed]:
    """Measures a running service with each number of clients at a time.

    The total number of clients is at least the number at a time.
    """
    stress(url, photo, 1, 1, 5)  # warm
    for simultaneous in clients:
        yield stress(url, photo, simultaneous, max(total, simultaneous), requests)


def table(
    package: str,
    photo: bytes,
    instances: list[int],
    clients: list[int],
    total: int,
    requests: int,
    **settings: object,
) -> list[Cell]:
    """Measures every pair of instances and clients; starts the service for each number of instances."""
    cells = []
    for count in instances:
        with service.running(package, instances=count, **settings) as served:
            cells += [
                Cell(count, memory_mb(served.processes()), seen)
                for seen in by_clients(served.url, photo, clients, total, requests)
            ]
    return cells


def plot_table(axes: "Axes", cells: list[Cell]) -> None:
    """Plots mean latency and its standard deviation by clients, a line per number of instances."""
    for count in dict.fromkeys(cell.instances for cell in cells):
        seen = [cell.seen for cell in cells if cell.instances == count]
        axes.errorbar(
            [s.simultaneous_clients for s in seen],
            [s.mean_ms for s in seen],
            [s.sd_ms for s in seen],
            fmt="o-",
            capsize=3,
            label=f"{count} instance{'s' if count > 1 else ''}",
        )
    axes.set(xlabel="clients at a time", ylabel="latency, ms (mean and sd)", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)


def main(
    url: Annotated[str | None, typer.Argument(help="A running service; none with --table.")] = None,
    num_simultaneous_clients: Annotated[int, typer.Option(min=1, max=500)] = 5,
    num_total_clients: Annotated[int, typer.Option(min=1)] = 100,
    num_requests_per_client: Annotated[int, typer.Option(min=1)] = 10,
    whole_table: Annotated[bool, typer.Option("--table", help="Instances by clients.")] = False,
    instances: Annotated[str, typer.Option(help="Of the table.")] = "1,2,4,8",
    clients: Annotated[str, typer.Option(help="Of the table: clients at a time.")] = "1,5,20,50",
    package: Annotated[
        str, typer.Option(help="Of the table: fastapi_onnx, fastapi_pt.")
    ] = "fastapi_onnx",
    photo: Annotated[Path, typer.Option(help="An image.")] = payloads.SAMPLE,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="The table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT.png and PLOT.svg; with --table.")] = None,
) -> None:
    """Runs client processes, a few at a time; reports mean and standard deviation of their latencies."""
    if (url is None) != whole_table:
        raise typer.BadParameter("give the URL of a running service, or --table")
    image = photo.read_bytes()
    if url is None:
        counts, loads = numbers(instances), numbers(clients)
        cells = table(package, image, counts, loads, num_total_clients, num_requests_per_client)
        rows = [cell.row() for cell in cells]
        results = [asdict(cell) for cell in cells]
        if plot:
            report.save_picture(plot, partial(plot_table, cells=cells))
    else:
        seen = stress(url, image, num_simultaneous_clients, num_total_clients, num_requests_per_client)
        rows, results = [seen.row()], [asdict(seen)]
    report.print_table("clients as processes, base64 JSON", rows)
    if json_file:
        write_results(json_file, report.command(), results)
    if csv_file:
        report.write_csv(csv_file, rows)

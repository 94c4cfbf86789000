"""What Ray Serve's ingress costs, against the service alone.

`python -m benchmarks ray` needs `make .venv-ray/installed`. The service and one of the arrangements on
Ray run at the same time, and wrk asks them in turn: whatever slows the machine slows both.
"""

import os
import shutil
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import service
from benchmarks.running import free_port, program, wait_for_answer
from benchmarks.usage import cpu_seconds, tree
from smallplates.cli.load import payloads, report, wrk
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.cli.load.payloads import Payload, Protocol

ALONE = "alone"
START_S = 120
WARM_UP_S = 2
COMMAND = (
    ". smallplates/ray/local.sh && exec python -m smallplates.ray fastapi_onnx "
    '--port "$0" --replicas "$1"'
)


Seen = dict[tuple[str, int], list[tuple[wrk.Load, float]]]
"""Server and connections -> each round's load, and the CPU ms of a request in all processes."""


@dataclass(frozen=True)
class Arrangement:
    """One way to serve on Ray."""

    proxy: str
    haproxy: bool
    replicas: int


ARRANGEMENTS = [
    Arrangement("HAProxy", True, 1),
    Arrangement("HAProxy", True, 3),
    Arrangement("Python proxy", False, 1),
    Arrangement("Python proxy", False, 3),
]


def measure(
    arrangement: Arrangement,
    request: Payload,
    python: Path,
    precision: str,
    connections: list[int],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Returns a row for each number of connections: requests a second of both, and their ratio."""
    port = free_port()
    environment = {
        "PATH": f"{python.parent.absolute()}{os.pathsep}{os.environ['PATH']}",
        "RAY_SERVE_ENABLE_HA_PROXY": str(int(arrangement.haproxy)),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_PRECISION": precision,
    }
    command = ["sh", "-c", COMMAND, str(port), str(arrangement.replicas)]
    seen: Seen = defaultdict(list)
    with (
        service.running(precision=precision) as alone,
        program(command, environment) as on_ray,
    ):
        url = f"http://127.0.0.1:{port}{request.path}"
        wait_for_answer(url, request.body, on_ray, START_S)
        servers = {
            ALONE: (alone.url + request.path, alone.keeper_pid),
            arrangement.proxy: (url, on_ray.keeper.pid),
        }
        for target, _ in servers.values():
            wrk.run(target, request.body, max(connections), WARM_UP_S)
        for _ in range(rounds):
            for count in connections:
                for name, (target, pid) in servers.items():
                    before = cpu_seconds(tree(pid))
                    load = wrk.run(target, request.body, count, seconds)
                    used = cpu_seconds(tree(pid)) - before
                    seen[name, count].append((load, 1000 * used / load.requests))
    return [row(arrangement, count, seen) for count in connections]


def row(arrangement: Arrangement, count: int, seen: Seen) -> dict[str, Any]:
    """Returns medians over the rounds; the ratio is the median of each round's own."""
    (alone, alone_ms), (on_ray, ray_ms) = (
        zip(*seen[name, count], strict=True) for name in (ALONE, arrangement.proxy)
    )
    ratios = [b.per_second / a.per_second for a, b in zip(alone, on_ray, strict=True)]
    return {
        "proxy": arrangement.proxy,
        "replicas": arrangement.replicas,
        "connections": count,
        "alone 1/s": round(statistics.median(load.per_second for load in alone), 1),
        "1/s": round(statistics.median(load.per_second for load in on_ray), 1),
        "ratio": round(statistics.median(ratios), 3),
        "alone p99 ms": round(statistics.median(load.p99_ms for load in alone), 1),
        "p99 ms": round(statistics.median(load.p99_ms for load in on_ray), 1),
        "alone CPU ms": round(statistics.median(alone_ms), 2),
        "CPU ms": round(statistics.median(ray_ms), 2),
        "failed": sum(load.failed for load in on_ray),
    }


def main(
    photo: Annotated[Path, typer.Option(help="An image, sent as base64 JSON.")] = payloads.SAMPLE,
    python: Annotated[Path, typer.Option(help="The one that Ray is installed for.")] = Path(
        ".venv-ray/bin/python"
    ),
    precision: Annotated[str, typer.Option(help="fp32 or int8.")] = "fp32",
    connections: Annotated[str, typer.Option()] = "16,1",
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Per server and round.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Measures Ray Serve's HAProxy and Python proxy, one and three replicas, against the service."""
    if shutil.which("wrk") is None:
        raise typer.BadParameter("wrk must be installed; it is a package of most Linux systems")
    if not python.exists():
        raise typer.BadParameter(f"there is no {python}: make .venv-ray/installed")
    request, counts = payloads.PHOTOS.payload(photo.read_bytes(), Protocol.JSON), numbers(connections)
    rows = [
        measured
        for arrangement in tqdm(ARRANGEMENTS, desc="arrangements")
        for measured in measure(arrangement, request, python, precision, counts, rounds, seconds)
    ]
    report.print_table(f"Ray Serve against the service alone, {precision}", rows)
    if json_file:
        write_results(json_file, report.command(), rows, precision=precision)

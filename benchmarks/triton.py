"""A real Triton beside this service, and Triton's load generator; notebook 7 calls it.

Triton is that of the wheel nvidia-pytriton, whose only backend is Python's; perf_analyzer is that of the
wheel tritonclient 2.47.0. `make notebook-triton` installs both. In the Jupyter of
docker-compose-triton.yaml, TRITON_URL names the Triton of the stack, which is measured as it is.
"""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import service
from benchmarks.running import free_port, program, wait_for_answer
from smallplates.export.triton.build import build
from smallplates.settings import ROOT, Settings

MODEL = "food_classifier"
TRITON = ROOT / "runs" / "triton-test" / "bin" / "python"
PERF = ROOT / "runs" / "perf-analyzer"
INPUT = ROOT / "notebooks" / "input.json"
"""What perf_analyzer sends: one photo in base64."""

URL = os.environ.get("TRITON_URL")
START_S = 120
SAME: dict[str, str | int] = {"device": "cpu", "precision": "fp32", "cpu_runtime": "onnxruntime"}
"""Settings with which this service computes what Triton's Python backend computes."""


class MissingProgramError(RuntimeError):
    """Triton or perf_analyzer is not installed."""


@dataclass(frozen=True)
class Layout:
    """Settings that both servers have."""

    instances: int = 1
    max_batch_size: int = 16
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0

    def settings(self) -> dict[str, str | int]:
        """Returns them as settings of this service."""
        sizes = ",".join(map(str, self.preferred_batch_sizes))
        return {
            **SAME,
            "instances": self.instances,
            "intra_op_threads": 1,
            "max_batch_size": self.max_batch_size,
            "max_queue_delay_us": self.max_queue_delay_us,
            "queue_size": 2048,  # perf_analyzer ends at the first refusal
            "request_timeout_ms": 60_000,
            **({"preferred_batch_sizes": sizes} if sizes else {}),
        }


@contextmanager
def triton(layout: Layout) -> Iterator[str]:
    """Serves the shipped model with Triton until the block ends; yields its URL.

    Raises MissingProgramError without Triton, and RuntimeError if it does not start.
    """
    if URL:
        yield URL
        return
    if not TRITON.exists():
        raise MissingProgramError("no Triton: run make notebook-triton")
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ("--disable-auto-complete-config", "--exit-on-error=false", "--strict-readiness=false")
    with TemporaryDirectory(prefix="triton-") as folder:
        build(Path(folder), Settings.read(**layout.settings()))
        launch = [str(TRITON), "-m", "benchmarks.peers.triton_launch", folder, str(port), *options]
        with program(launch, {}) as started:
            wait_for_answer(f"{url}/v2/models/{MODEL}/ready", None, started, START_S)
            yield url


@contextmanager
def ours(layout: Layout) -> Iterator[str]:
    """Serves the shipped model with this service until the block ends; yields its URL."""
    with service.running("fastapi_onnx", **layout.settings()) as served:
        yield served.url


SERVERS = {"triton": triton, "this service": ours}


@dataclass(frozen=True)
class Seen:
    """Figures of one run of perf_analyzer; times in ms."""

    per_second: float
    """Photos a second, in requests of one or more."""

    p50: float
    p95: float
    p99: float
    queue: float
    """Mean wait for an instance, as the server says."""

    infer: float
    """Mean time of a request in the network, as the server says."""

    mean_batch: float
    """Photos that an instance computed at a time."""

    def row(self) -> dict[str, float]:
        """Returns a row of a table."""
        names = {"per_second": "photos/s", "mean_batch": "mean batch"}
        return {names.get(name, f"{name} ms"): round(value, 2) for name, value in vars(self).items()}


def libraries() -> str:
    """Returns the folders with the libraries that perf_analyzer needs, for LD_LIBRARY_PATH."""
    found = [*PERF.glob("nvidia/cuda_runtime/lib"), *PERF.glob("usr/lib/*/")]
    return os.pathsep.join([*map(str, found), os.environ.get("LD_LIBRARY_PATH", "")])


def perf_analyzer(url: str, seconds: float, *load: str) -> Seen:
    """Runs perf_analyzer for three windows of so many seconds; `load` are its options.

    Raises MissingProgramError, and RuntimeError with its output if it fails.
    """
    program_ = shutil.which("perf_analyzer", path=f"{PERF / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program_ is None:
        raise MissingProgramError("no perf_analyzer: run make notebook-triton")
    with TemporaryDirectory() as folder:
        table = Path(folder, "seen.csv")
        target = ("-m", MODEL, "-u", url.removeprefix("http://"), "--input-data", str(INPUT))
        for window in (seconds, 5 * seconds):  # no answer in a window counts as a failure
            # three windows are the fewest that it accepts; with this tolerance it never asks for more
            windows = ("-p", str(int(1000 * window)), "-r", "3", "-s", "999")
            done = subprocess.run(  # noqa: S603
                [program_, *target, *load, *windows, "-f", str(table), "--verbose-csv"],
                env={**os.environ, "LD_LIBRARY_PATH": libraries()},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and table.exists():
                return read(table.read_text(), done.stdout)
    raise RuntimeError((done.stdout + done.stderr)[-2000:])


def read(table: str, printed: str) -> Seen:
    """Reads the table and the text of one run of perf_analyzer."""
    (row,) = csv.DictReader(table.splitlines())
    counted = [re.search(rf"{what} count: (\d+)", printed) for what in ("Inference", "Execution")]
    photos, batches = (int(match[1]) if match else 0 for match in counted)
    p50, p95, p99 = (int(row[f"p{percent} latency"]) / 1000 for percent in (50, 95, 99))
    return Seen(
        per_second=float(row["Inferences/Second"]),
        p50=p50,
        p95=p95,
        p99=p99,
        queue=int(row["Server Queue"]) / 1000,
        infer=int(row["Server Compute Infer"]) / 1000,
        mean_batch=photos / max(1, batches),
    )


def closed(clients: int, batch: int = 1) -> tuple[str, ...]:
    """Returns the options for clients that wait for their answers, with so many photos a request."""
    return ("-b", str(batch), "--concurrency-range", str(clients))


def opened(rate: int, arrivals: str) -> tuple[str, ...]:
    """Returns the options for requests at a rate, with `constant` or `poisson` arrivals."""
    return ("--async", "--request-rate-range", str(rate), "--request-distribution", arrivals)


def measure(
    question: str, layouts: Sequence[Layout], loads: Mapping[str, tuple[str, ...]], seconds: float
) -> list[dict[str, Any]]:
    """Measures both servers in each layout under each load; one server runs at a time.

    A running Triton (TRITON_URL) is measured once, as it is configured.
    """
    rows = []
    for layout in layouts:
        for name, start in SERVERS.items():
            if name == "triton" and URL and layout != layouts[0]:
                continue
            with start(layout) as url:
                for load, options in loads.items():
                    seen = perf_analyzer(url, seconds, *options)
                    about = {"question": question, "server": name, **asdict(layout), "load": load}
                    rows.append({**about, **asdict(seen)})
    return rows


def shown(rows: Iterable[Mapping[str, Any]], *settings: str) -> list[dict[str, object]]:
    """Returns rows of a table: the server, these settings, the load and the figures."""
    return [
        {
            "server": row["server"],
            **{name.replace("_", " "): str(row[name] or "any") for name in settings},
        }
        | {"load": row["load"], **Seen(**{each.name: row[each.name] for each in fields(Seen)}).row()}
        for row in rows
    ]


def of(rows: Iterable[Mapping[str, Any]], key: str, **wanted: object) -> float:
    """Returns a figure of the one row that has these values."""
    (found,) = [
        float(row[key]) for row in rows if all(row[name] == value for name, value in wanted.items())
    ]
    return found

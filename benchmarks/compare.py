"""The same photo, pipeline, model, cores and load on this service and on others.

`python -m benchmarks compare --model DIR --photo FILE` sets up every peer in a virtual environment of
its own, runs all of them in turn, several rounds, and prints medians, ranges, and ratios to this
service. wrk must be installed.
"""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import wrk
from benchmarks.peers.common import Classify
from serving.settings import ROOT

PORT = 8300
COMMON = [
    "msgspec",
    "numpy",
    "onnx",
    "onnxruntime",
    "orjson",
    "pillow",
    "prometheus-client",
    "pybase64",
    "pydantic-settings",
    "python-multipart",
    "fastapi",
    "structlog",
]
START_S = 60


class Pipeline(StrEnum):
    """See `peers.common.Classify`."""

    PLAIN = "plain"
    SHARED = "shared"


@dataclass(frozen=True)
class Server:
    """One way to serve the model."""

    name: str
    packages: tuple[str, ...]
    """What its virtual environment needs beside COMMON; empty: this project's own."""

    command: tuple[str, ...]
    """Arguments of Python; MODEL, PORT and PIPELINE are replaced."""

    path: str
    body: Callable[[str], dict[str, Any]]
    """Base64 -> the JSON that it is sent."""

    settings: tuple[tuple[str, str], ...] = ()


def native(base64: str) -> dict[str, Any]:
    """Our own request, and that of the peers that leave its shape to their users."""
    return {"image": base64}


def inference_protocol(base64: str) -> dict[str, Any]:
    """Triton's."""
    tensor = {"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [base64]}
    return {"inputs": [tensor]}


def ours(name: str, **settings: str) -> Server:
    """This service with other settings than the defaults."""
    values = tuple((f"SERVING_{key.upper()}", value) for key, value in settings.items())
    command = ("-m", "serving", "fastapi_onnx", "--port", "PORT")
    return Server(name, (), command, "/predict", native, values)


def peer(name: str, package: str, path: str, body: Callable[[str], dict[str, Any]]) -> Server:
    """A file in `benchmarks/peers/`."""
    command = ("-m", f"benchmarks.peers.{name}_server", "MODEL", "PORT", "PIPELINE")
    return Server(name, (package,), command, path, body)


SERVERS = [
    ours("this service"),
    peer("mosec", "mosec==0.9.8", "/inference", native),
    peer("litserve", "litserve==0.2.19", "/predict", native),
    peer("triton", "nvidia-pytriton==0.7.0", "/v2/models/classifier/infer", inference_protocol),
    ours("this service, 2 web processes", web_processes="2"),
    ours("this service, 4 instances", instances="4"),
]


def python_for(server: Server, environments: Path) -> Path:
    """The interpreter of the server's virtual environment, which is made where it is missing."""
    if not server.packages:
        return Path(sys.executable)
    folder = environments / server.name
    marker = folder / "installed"
    if not marker.exists():
        typer.echo(f"setting up {server.name}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)  # noqa: S603
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *COMMON, *server.packages], check=True)  # noqa: S603
        marker.touch()
    return folder / "bin" / "python"


def post(url: str, body: bytes) -> bytes:
    """One request, for waiting and for checking the answer; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with opener.open(request, timeout=20) as response:
        content: bytes = response.read()
        return content


@contextmanager
def running(
    server: Server, model_dir: Path, environments: Path, pipeline: Pipeline, body: bytes
) -> Iterator[str]:
    """Starts it, waits for its first answer, ends it and all that it has started."""
    url = f"http://127.0.0.1:{PORT}{server.path}"
    words = {"MODEL": str(model_dir), "PORT": str(PORT), "PIPELINE": pipeline.value}
    settings = {"SERVING_MODEL_DIR": str(model_dir), "SERVING_LOG_LEVEL": "warning"}
    process = subprocess.Popen(  # noqa: S603
        [python_for(server, environments), *(words.get(word, word) for word in server.command)],
        cwd=ROOT,
        env={**os.environ, **settings, **dict(server.settings), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                post(url, body)
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{server.name} does not start: {error}") from error
                time.sleep(0.1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def in_process(model_dir: Path, base64: str, threads: int, seconds: float) -> float:
    """Answers a second of `threads` threads that decode, resize and infer in a loop: no HTTP."""
    workers = [Classify(str(model_dir), "shared") for _ in range(threads)]
    counts = [0] * threads
    end = time.monotonic() + seconds

    def work(index: int) -> None:
        while time.monotonic() < end:
            workers[index].text(base64)
            counts[index] += 1

    running_threads = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in running_threads:
        thread.start()
    for thread in running_threads:
        thread.join()
    return sum(counts) / seconds


Results = dict[str, dict[str, list[dict[str, float]]]]


def measure(
    model_dir: Path,
    photo: bytes,
    servers: list[Server],
    rounds: int,
    seconds: float,
    start: Callable[[Server, bytes], AbstractContextManager[str]],
) -> Results:
    """Every round runs every server once, at 1, 16 and 64 connections."""
    results: Results = {}
    base64 = b64encode(photo).decode()

    def keep(name: str, load: str, **figures: float) -> None:
        results.setdefault(name, {}).setdefault(load, []).append(figures)

    for _ in tqdm(range(rounds), desc="rounds", mininterval=1):
        for threads in (1, 2):
            rate = in_process(model_dir, base64, threads, seconds)
            keep("in process, no HTTP", f"{threads} threads", per_second=rate)
        for server in servers:
            body = json.dumps(server.body(base64)).encode()
            with start(server, body) as url:
                wrk.run(url, body, 4, 1)
                for connections in (1, 16, 64):
                    load = wrk.run(url, body, connections, seconds)
                    figures = {**asdict(load), "per_second": load.per_second}
                    keep(server.name, f"{connections} connections", **figures)
    return results


def median(figures: list[dict[str, float]], key: str) -> float:
    """Over the rounds."""
    return statistics.median(round_[key] for round_ in figures)


def print_table(results: Results) -> None:
    """Medians; the ratio is of each round's own, so that a slow minute slows both of its sides."""
    reference = results.get("this service", {})
    typer.echo(
        f"{'server':32}{'load':>16}{'per s':>8}{'p50 ms':>9}{'p99 ms':>9}{'ours/its':>10}{'failed':>8}"
    )
    for name, loads in results.items():
        for load, figures in loads.items():
            line = f"{name:32}{load:>16}{median(figures, 'per_second'):8.1f}"
            if "p50_ms" in figures[0]:
                ratios = [
                    a["per_second"] / b["per_second"]
                    for a, b in zip(reference.get(load, figures), figures, strict=True)
                ]
                failed = sum(round_["failed"] for round_ in figures)
                line += f"{median(figures, 'p50_ms'):9.2f}{median(figures, 'p99_ms'):9.1f}"
                line += f"{statistics.median(ratios):10.2f}{failed:8.0f}"
            typer.echo(line)


def machine() -> dict[str, str]:
    """What a figure means nothing without."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    cores = str(len(os.sched_getaffinity(0)))
    return {"cpu": cpu, "cores": cores, "python": platform.python_version(), "commit": commit}


def main(
    photo: Annotated[Path, typer.Option(help="A JPEG, sent as base64 JSON.")],
    model_dir: Annotated[
        Path, typer.Option("--model", help="Made by `python -m benchmarks model`.")
    ] = Path("runs/benchmark-model"),
    rounds: int = 3,
    seconds: Annotated[float, typer.Option(help="Per load, server and round.")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="Names of servers.")] = None,
    environments: Annotated[Path, typer.Option(help="Where the peers are set up.")] = Path("runs/peers"),
    pipeline: Annotated[
        Pipeline, typer.Option(help="What the peers run: a tutorial's handler, or this project's.")
    ] = Pipeline.PLAIN,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all figures.")] = None,
) -> None:
    """Runs this service and the others in turn; prints medians and ratios."""
    servers = [server for server in SERVERS if not only or server.name in only]
    for server in servers:
        python_for(server, environments.resolve())
    folder = model_dir.resolve()

    def start(server: Server, body: bytes) -> AbstractContextManager[str]:
        return running(server, folder, environments.resolve(), pipeline, body)

    results = measure(folder, photo.read_bytes(), servers, rounds, seconds, start)
    print_table(results)
    if out:
        command = (
            f"python -m benchmarks compare --photo {photo.name} --rounds {rounds} "
            f"--seconds {seconds:g} --pipeline {pipeline.value}"
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps({"command": command, "machine": machine(), "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    typer.run(main)

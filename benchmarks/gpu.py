"""GPU measurement, `make bench-gpu`: both backends alone, the service, and two other servers.

The load generator runs on the same cores as the service. Every ratio is between figures of one run.
"""

import json
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import compare, gpu_report, limit, model, service, table
from benchmarks.running import Running, running
from benchmarks.servers import GPU_SERVERS, Pipeline, Server
from smallplates.cli.load import payloads, report, server_side
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.target import Target
from smallplates.settings import ROOT
from smallplates.system import cpus

CONNECTIONS = 256
PLAN = Plan(3, 3, 3, 6)
SMALL, LARGE = "mobilenet_v2", "resnet152"
PACKAGES = ("fastapi_onnx", "fastapi_pt")
Row = dict[str, Any]
"""JSON object of a results file."""


def model_folder(architecture: str) -> Path:
    """Returns the folder of a model with random weights; makes it when it is missing."""
    folder = ROOT / "runs" / f"benchmark-{architecture}"
    if not (folder / "model.json").exists():
        model.main(folder, architecture)
    return folder


def alone(architecture: str, seconds: float) -> Iterator[Row]:
    """Measures each backend, precision and way to launch kernels, in a process of its own."""
    for package in PACKAGES:
        for precision in ("fp32", "fp16"):
            for graphs in (False, True):
                words = [str(model_folder(architecture)), package, precision, str(graphs), str(seconds)]
                command = [sys.executable, "-m", "benchmarks.gpu_alone", *words]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
                if done.returncode:
                    tqdm.write(f"{package}, {precision}, graphs {graphs}: {done.stderr[-2000:]}")
                    continue
                for row in json.loads(done.stdout.splitlines()[-1]):
                    yield {"model": architecture, **row}


def served(package: str, architecture: str, photo: bytes, motor: str, full: bool) -> Row:
    """Measures the service at CONNECTIONS connections; `full` adds base64 and random arrivals."""
    with service.running(package, device="cuda", model_dir=model_folder(architecture)) as running_:

        def target(protocol: Protocol, motor: str = motor) -> Target:
            return Target(running_.url, [photo], protocol, motor=motor)

        raw = target(Protocol.RAW).closed(CONNECTIONS, PLAN)
        figures = {"backend": package, "model": architecture, "described": described(running_.url)}
        figures["raw"] = asdict(raw)
        if full:
            figures["json"] = asdict(target(Protocol.JSON).closed(CONNECTIONS, PLAN))
            python = target(Protocol.RAW, "python")  # wrk does not support --rate
            figures["one"] = asdict(python.closed(1, PLAN))
            for name, share in (("half", 0.5), ("most", 0.8)):
                rate = round(share * raw.per_second)
                figures[name] = asdict(python.open(rate, Arrivals.POISSON, PLAN))
    return figures


def described(url: str) -> Row:
    """Returns the fields of `/model` that matter for the report."""
    answer = server_side.describe(url)
    names = ("precision", "max_batch_size", "batch_ms", "instances", "web_processes", "device")
    return {name: answer.get(name) for name in names}


def decoding(photo: bytes, seconds: float) -> Row:
    """Measures the images a second that all cores decode and resize in one process."""
    experiments = limit.Limit(model_folder(SMALL), photo, "cpu", seconds, 3)
    return experiments.decoding([cpus.usable()])[0].record()


def against(photo: bytes, rounds: int, seconds: float) -> table.Results:
    """Measures the other servers in their best configuration, and this service, in turn."""
    folder = ROOT / "runs" / "peers"
    results: table.Results = {}
    base64 = b64encode(photo).decode()

    def start(server: Server, body: bytes) -> AbstractContextManager[Running]:
        return running(server, model_folder(SMALL), folder, Pipeline.SHARED, body)

    for _ in range(rounds):
        for server in GPU_SERVERS:
            loads = compare.measure_server(server, [base64], [compare.Load(CONNECTIONS)], seconds, start)
            table.keep(results, server.name, loads)
    return results


def gpu_facts() -> dict[str, str]:
    """Returns the first GPU's name, memory and driver. Raises BadParameter when there is none."""
    import pynvml  # here, because most commands of this program do not need it

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        return {
            "name": pynvml.nvmlDeviceGetName(handle),
            "memory": f"{total / 2**30:.0f} GiB",
            "driver": pynvml.nvmlSystemGetDriverVersion(),
        }
    except pynvml.NVMLError as error:
        raise typer.BadParameter(f"no GPU to measure: {error}") from error


def main(
    photo: Annotated[Path, typer.Option(help="A JPEG of about 30 KB.")] = payloads.SAMPLE,
    seconds: Annotated[float, typer.Option(help="Per batch size, alone.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=0, help="Of the comparison; 0: none.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keeps all figures.")] = None,
) -> None:
    """Measures both backends on the first GPU, alone and served, and two other servers."""
    facts, data = gpu_facts(), photo.read_bytes()
    motor = "wrk" if shutil.which("wrk") else "python"
    if motor == "python":
        typer.echo("wrk is not installed: Python sends the load, and may be its limit", err=True)
    figures: Row = {"gpu": facts, "decoding": decoding(data, seconds)}
    figures["alone"] = [row for name in (SMALL, LARGE) for row in alone(name, seconds)]
    figures["served"] = [served(package, SMALL, data, motor, full=True) for package in PACKAGES]
    figures["served"] += [served(package, LARGE, data, motor, full=False) for package in PACKAGES]
    if motor == "wrk" and rounds:
        figures["peers"] = against(data, rounds, 5)
    typer.echo(gpu_report.report(figures))
    if json_file:
        write_results(json_file, report.command(), figures)

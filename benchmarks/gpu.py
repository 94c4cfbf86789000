"""GPU measurement, `make bench-gpu`: both backends alone, the service, and two other servers.

Everything starts side by side, because loading takes longer than measuring, and is measured in turn. The
load generator runs on the same cores as the service. Every ratio is between figures of one run.
"""

import json
import shutil
import statistics
import subprocess
import sys
from base64 import b64encode
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import compare, gpu_report, limit, model, service, table, text_model
from benchmarks.running import running
from benchmarks.servers import GPU_SERVERS, Pipeline
from smallplates.cli.load import payloads, report, server_side, wrk
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.target import Target
from smallplates.settings import ROOT
from smallplates.system import cpus

FEWER, CONNECTIONS = 64, 256
PLAN = Plan(2, 1, 3, 6)
START_S = 300
SMALL, LARGE, TEXTS = "mobilenet_v2", "resnet152", "DistilBERT's shape"
PACKAGES = ("fastapi_onnx", "fastapi_pt")
Row = dict[str, Any]
"""JSON object of a results file."""


class Part(StrEnum):
    """A part of the measurement, which can also run alone."""

    DECODING = "decoding"
    ALONE = "alone"
    SERVED = "served"
    PEERS = "peers"


def model_folder(architecture: str) -> Path:
    """Returns the folder of a model with random weights; makes it when it is missing."""
    folder = ROOT / "runs" / f"benchmark-{architecture}"
    if not (folder / "model.json").exists():
        model.main(folder, architecture)
    return folder


def alone(architecture: str, seconds: float) -> Iterator[Row]:
    """Measures each backend, precision and way to launch kernels, in a process of its own."""
    folder = model_folder(architecture)
    with NamedTemporaryFile() as turn:
        started = {}
        for kind in product(PACKAGES, ("fp32", "fp16"), ("False", "True")):
            words = [str(folder), *kind, str(seconds), turn.name]
            started[kind] = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "benchmarks.gpu_alone", *words],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        for kind, process in started.items():
            output, errors = process.communicate()
            if process.returncode:
                tqdm.write(f"{', '.join(kind)}: {errors[-2000:]}")
                continue
            for row in json.loads(output.splitlines()[-1]):
                yield {"model": architecture, **row}


def served(photo: bytes, motor: str) -> Iterator[Row]:
    """Measures the service with each backend and network at CONNECTIONS connections.

    The small network gets base64 and random arrivals, too, the text classifier gets texts.
    """
    kinds = [*product(PACKAGES, (SMALL, LARGE)), (PACKAGES[0], TEXTS)]
    with ExitStack() as services:
        started = {}
        for package, name in kinds:
            folder = text_model.ensure() if name == TEXTS else model_folder(name)
            started[package, name] = services.enter_context(
                service.start(package, device="cuda", model_dir=folder)
            )
        for (package, name), (url, program) in started.items():
            try:
                service.wait(url, program, START_S)
            except RuntimeError as error:
                tqdm.write(f"{package}, {name}: {error}")
                continue
            yield {"backend": package, "model": name, **measure(url, name, photo, motor)}


def measure(url: str, name: str, photo: bytes, motor: str) -> Row:
    """Measures one service, see `served`."""

    def target(protocol: Protocol, motor: str = motor) -> Target:
        items = [photo] if name != TEXTS else [text.encode() for text in text_model.texts(64)]
        return Target(url, items, protocol, motor=motor)

    figures = {"described": described(url)}
    raw = target(Protocol.TEXT if name == TEXTS else Protocol.RAW)
    figures["fewer"] = asdict(raw.closed(FEWER, PLAN))
    figures["raw"] = asdict(raw.closed(CONNECTIONS, PLAN))
    if name == SMALL:
        figures["json"] = asdict(target(Protocol.JSON).closed(CONNECTIONS, PLAN))
        python = target(Protocol.RAW, "python")  # wrk does not support --rate
        figures["one"] = asdict(python.closed(1, PLAN))
        for share, part in (("half", 0.5), ("most", 0.8)):
            rate = round(part * figures["raw"]["per_second"])
            figures[share] = asdict(python.open(rate, Arrivals.POISSON, PLAN))
    return figures


def described(url: str) -> Row:
    """Returns the fields of `/model` that matter for the report."""
    answer = server_side.describe(url)
    names = ("precision", "max_batch_size", "batch_ms", "instances", "web_processes", "device")
    return {name: answer.get(name) for name in names}


def decoding(photo: bytes, seconds: float) -> Row:
    """Measures the images a second that all cores decode and resize, in a process each."""
    count = cpus.usable()
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        decode = partial(decoding_rate, model_folder(SMALL), photo)
        rounds = [sum(pool.map(decode, [each] * count)) for each in (0.1, seconds, seconds, seconds)]
    return {"processes": count, "rounds": rounds[1:], "per_second": statistics.median(rounds[1:])}


def decoding_rate(model_dir: Path, photo: bytes, seconds: float) -> float:
    """Returns the images a second that this thread decodes."""
    decoder = limit.Limit(model_dir, photo, "cpu", seconds, 1).decoder
    return limit.rate([lambda: len([decoder.decode(photo)])], seconds)


def against(photo: bytes, rounds: int, seconds: float) -> table.Results:
    """Measures the other servers in their best configuration, and this service, in turn."""
    folder = ROOT / "runs" / "peers"
    results: table.Results = {}
    base64, load = b64encode(photo).decode(), compare.Load(CONNECTIONS)
    with ExitStack() as servers:
        started = {}
        for server in GPU_SERVERS:
            bodies = load.bodies(server, [base64])
            entered = running(server, model_folder(SMALL), folder, Pipeline.SHARED, bodies[0])
            started[server.name] = servers.enter_context(entered), bodies
        for _ in range(rounds):
            for name, (served_, bodies) in started.items():
                wrk.run(served_.url, bodies, CONNECTIONS, compare.WARM_UP_S)
                row = compare.measure_load(served_, bodies, load, seconds)
                table.keep(results, name, {str(load): [row]})
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


def steps(
    parts: Collection[Part], figures: Row, photo: bytes, seconds: float, rounds: int
) -> Iterator[None]:
    """Measures the parts into `figures`; yields whenever something was added."""
    motor = "wrk" if shutil.which("wrk") else "python"
    if motor == "python":
        typer.echo("wrk is not installed: Python sends the load, and may be its limit", err=True)
    if Part.DECODING in parts:
        figures["decoding"] = decoding(photo, seconds)
        yield
    rows = (row for name in (SMALL, LARGE) for row in alone(name, seconds))
    for part, found in ((Part.ALONE, rows), (Part.SERVED, served(photo, motor))):
        for row in found if part in parts else ():
            figures.setdefault(part, []).append(row)
            yield
    if Part.PEERS in parts and motor == "wrk":
        figures["peers"] = against(photo, rounds, 5)
        yield


def main(
    parts: Annotated[list[Part] | None, typer.Argument(help="What to measure; default: all.")] = None,
    photo: Annotated[Path, typer.Option(help="A JPEG of about 30 KB.")] = payloads.SAMPLE,
    seconds: Annotated[float, typer.Option(help="Per batch size, alone.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of the comparison.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for all figures; it is written after each one.")
    ] = None,
) -> None:
    """Measures both backends on the first GPU, alone and served, and two other servers."""
    figures: Row = {"gpu": gpu_facts()}
    for _ in steps(parts or [*Part], figures, photo.read_bytes(), seconds, rounds):
        if json_file:
            write_results(json_file, report.command(), figures)
    typer.echo(gpu_report.report(figures))

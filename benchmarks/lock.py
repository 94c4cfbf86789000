"""Does Python's lock matter at high load? Threads of one process against processes, on both backends.

`python -m benchmarks lock` classifies one photo in base64 over and over, as the handler of a tutorial
does (Pillow, NumPy or torchvision, one photo a call, one thread a call), by some workers: threads that
share Python's lock, or processes that each have their own. Each worker has its own model. Both kinds
take turns, so that a busy neighbour slows both.
"""

import multiprocessing
import statistics
from base64 import b64encode
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.jobs import Backend
from benchmarks.limit import Work, rate
from benchmarks.peers.common import Classify
from smallplates.cli.load import payloads, report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.settings import Settings
from smallplates.system import cpus

LOADING_S = 300


def work(backend: str, photo: bytes) -> Work:
    """Loads a model; returns a function that classifies one photo and returns 1."""
    model_dir, text = str(Settings().model_dir), b64encode(photo).decode()
    if backend == Backend.PT:
        import torch

        from benchmarks.peers.eager import Eager

        torch.set_num_threads(1)
        model: Any = Eager(model_dir)
    else:
        model = Classify(model_dir, "plain", threads=1, precision="fp32")

    def classify() -> int:
        model.text(text)
        return 1

    classify()
    return classify


def serve(backend: str, photo: bytes, pipe: Connection) -> None:
    """Runs in a process: for each time that the pipe names, returns the rate over that time."""
    one = work(backend, photo)
    pipe.send(0.0)
    while seconds := pipe.recv():
        pipe.send(rate([one], seconds))


class Processes:
    """Processes with a model each."""

    def __init__(self, stack: ExitStack, backend: str, count: int, photo: bytes) -> None:
        """Starts them; they end with the stack."""
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(backend, photo, theirs), daemon=True)
            process.start()
            stack.callback(process.join, LOADING_S)
            stack.callback(ours.send, 0)
            self.pipes.append(ours)
        self._answers()

    def rate(self, seconds: float) -> float:
        """Returns the photos a second of all of them together."""
        for pipe in self.pipes:
            pipe.send(seconds)
        return sum(self._answers())

    def _answers(self) -> list[float]:
        """Raises RuntimeError if a process says nothing for too long."""
        if not all(pipe.poll(LOADING_S) for pipe in self.pipes):
            raise RuntimeError("a process has not answered")
        return [pipe.recv() for pipe in self.pipes]


def measure(backend: str, count: int, photo: bytes, seconds: float, rounds: int) -> dict[str, Any]:
    """Returns the medians of both kinds with so many workers, and of their ratio."""
    with ExitStack() as stack:
        processes = Processes(stack, backend, count, photo)
        threads = [work(backend, photo) for _ in range(count)]
        pairs = [(rate(threads, seconds), processes.rate(seconds)) for _ in range(rounds)]
    ratios = [by_processes / by_threads for by_threads, by_processes in pairs]
    return {
        "backend": backend,
        "workers": count,
        "threads_per_second": round(statistics.median(pair[0] for pair in pairs), 2),
        "processes_per_second": round(statistics.median(pair[1] for pair in pairs), 2),
        "processes_to_threads": round(statistics.median(ratios), 3),
        "rounds": [round(ratio, 3) for ratio in ratios],
    }


def main(
    workers: Annotated[
        str, typer.Option(help="Numbers of workers; by default 1, and 1, 2 and 4 a core.")
    ] = "",
    photo: Annotated[Path, typer.Option(help="An image.")] = payloads.SAMPLE,
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keeps all figures.")] = None,
) -> None:
    """Compares threads of one process with processes, on both backends."""
    cores = cpus.usable()
    counts = numbers(workers) if workers else sorted({1, cores, 2 * cores, 4 * cores})
    content = photo.read_bytes()
    rows = [
        measure(backend, count, content, seconds, rounds)
        for backend in (Backend.ONNX.value, Backend.PT.value)
        for count in counts
    ]
    report.print_table("photos a second", rows)
    if json_file:
        write_results(json_file, report.command(), rows)

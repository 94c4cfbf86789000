"""Decentralised against centralised inference: a model in every job, or one service for all jobs.

`python -m benchmarks jobs` classifies N images, each in a process of its own: first with a model that
the process loads itself, 1 to M at a time; then as clients of this service, with one instance, with
batching, with more instances. All compute in fp32 with the same library. `decentralised` and
`centralised` measure one such arrangement each; notebooks call them, too.
"""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

from benchmarks import service
from benchmarks.usage import Usage
from smallplates.cli.load.server_side import Scrape
from smallplates.settings import ROOT
from smallplates.system import cpus

JOB_S = 300
START_S = 600
ANSWER = "/predict"

Progress = Callable[[], object]


class Backend(StrEnum):
    """Service to measure; a job with its own model uses the same library, PyTorch or ONNX Runtime."""

    PT = "fastapi_pt"
    ONNX = "fastapi_onnx"


@dataclass(frozen=True)
class Outcome:
    """Figures of one arrangement."""

    arrangement: str
    backend: Backend
    images: int
    at_once: int  # largest number of jobs that run at the same time
    instances: int = 0  # of the model in the service; 0: every job has its own
    max_batch_size: int = 1
    start_s: float = 0.0  # seconds until the service was ready; 0 without a service
    seconds: float = 0.0
    """Time from the first job's start to the last one's end, including the start of processes."""

    images_per_second: float = 0.0
    classify_s: float = 0.0
    """Mean seconds of a job's classification alone: of the inference, or of the request."""

    load_share: float = 0.0
    """Share of the jobs' time that came before: start of the process, imports, reading the weights."""

    mean_batch: float | None = None  # images that the service computed together
    cpu_percent: float = 0.0  # highest CPU use of jobs and service together; 100 is one core
    memory_mb: float = 0.0  # highest memory of jobs and service together, from the service's start on
    answers: list[str] = field(default_factory=list)  # class of each image

    def row(self) -> dict[str, object]:
        """Returns a row of the table."""
        return {
            "arrangement": self.arrangement,
            "backend": self.backend.removeprefix("fastapi_"),
            "start s": self.start_s,
            "jobs s": self.seconds,
            "images/s": self.images_per_second,
            "classify ms": 1000 * self.classify_s,
            "before %": 100 * self.load_share,
            "CPU %": self.cpu_percent,
            "MB": self.memory_mb,
        }


def run_job(command: Sequence[str], usage: Usage) -> tuple[str, float, float]:
    """Returns the class, and the seconds of the whole job and of its classification.

    Raises RuntimeError when the job fails or takes too long.
    """
    started = time.perf_counter()
    arguments = [sys.executable, "-m", "benchmarks.job", *command]
    with Popen(arguments, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True) as process:  # noqa: S603
        usage.add(process.pid)
        try:
            output, complaint = process.communicate(timeout=JOB_S)
        except TimeoutExpired:
            process.kill()
            raise RuntimeError(f"a job took longer than {JOB_S} s") from None
    if process.returncode:
        raise RuntimeError(f"a job failed: {complaint[-2000:]}")
    seconds, _, answer = output.strip().partition(" ")
    return answer, time.perf_counter() - started, float(seconds)


def nothing() -> None:
    """Ignores progress; default of the `progress` arguments."""


def measure(
    outcome: Outcome, commands: Sequence[Sequence[str]], usage: Usage, progress: Progress
) -> Outcome:
    """Runs the jobs; returns the outcome with their figures."""

    def run(command: Sequence[str]) -> tuple[str, float, float]:
        done = run_job(command, usage)
        progress()
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(outcome.at_once) as executor:
        answers, whole, classifying = zip(*executor.map(run, commands), strict=True)
    seconds = time.perf_counter() - started
    return replace(
        outcome,
        seconds=seconds,
        images_per_second=len(answers) / seconds,
        classify_s=sum(classifying) / len(answers),
        load_share=1 - sum(classifying) / sum(whole),
        cpu_percent=usage.cpu_percent,
        memory_mb=usage.memory_mb,
        answers=list(answers),
    )


def decentralised(
    model_dir: Path,
    photos: Sequence[Path],
    backend: Backend,
    images: int,
    at_once: int,
    progress: Progress = nothing,
) -> Outcome:
    """Measures jobs that load their own model each; the processes share the cores evenly."""
    threads = str(max(1, cpus.usable() // at_once))
    model = str(model_dir.resolve())
    commands = [
        ["load", backend.value, model, threads, str(photo.resolve())]
        for photo in islice(cycle(photos), images)
    ]
    outcome = Outcome(f"own models, {at_once} at once", backend, images, at_once)
    with Usage() as usage:
        return measure(outcome, commands, usage, progress)


def centralised(
    model_dir: Path,
    photos: Sequence[Path],
    backend: Backend,
    images: int,
    at_once: int,
    instances: int = 1,
    max_batch_size: int = 1,
    max_queue_delay_us: int = 0,
    progress: Progress = nothing,
) -> Outcome:
    """Measures the same jobs as clients of one service, which runs only for them."""
    settings = {
        **service.ALIKE,
        "model_dir": model_dir.resolve(),
        "instances": instances,
        "max_batch_size": max_batch_size,
        "max_queue_delay_us": max_queue_delay_us,
        "request_timeout_ms": JOB_S * 1000,
    }
    batching = f", batches of {max_batch_size}" if max_batch_size > 1 else ""
    name = f"service, {instances} instance{'s' * (instances > 1)}{batching}"
    started = time.perf_counter()
    with Usage() as usage, service.start(backend, **settings) as (url, program):
        usage.add(program.keeper.pid, itself=False)
        service.wait(url, program, START_S)
        start_s = time.perf_counter() - started
        chosen = islice(cycle(photos), images)
        commands = [["ask", url + ANSWER, str(photo.resolve())] for photo in chosen]
        outcome = Outcome(name, backend, images, at_once, instances, max_batch_size, start_s)
        outcome = measure(outcome, commands, usage, progress)
        scrape = Scrape.of(url)
        return replace(outcome, mean_batch=scrape.mean_batch() if scrape else None)

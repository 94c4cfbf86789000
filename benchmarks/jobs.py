"""Decentralised against centralised inference: a model in every job, or one service for all jobs.

`python -m benchmarks jobs` classifies N images, each in a process of its own: first with a model that
the process loads itself, 1 to M at a time; then as clients of this service, with one instance, with
batching, with more instances. `decentralised` and `centralised` measure one such arrangement each;
notebooks call them, too.
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
SAME: dict[str, dict[str, object]] = {
    "fastapi_pt": {"precision": "fp32"},
    "fastapi_onnx": {"precision": "fp32", "cpu_runtime": "onnxruntime"},
}
"""Settings with which the service computes as a job with its own model does."""

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
    importing: float = 0.0  # share of the jobs' time in which they import the library
    loading: float = 0.0  # and in which they read the weights
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


@dataclass(frozen=True)
class Done:
    """A job that has ended: the class, and its seconds."""

    answer: str
    import_s: float
    load_s: float
    classify_s: float
    seconds: float  # from the start of the process to its end


def run_job(command: Sequence[str], usage: Usage) -> Done:
    """Returns what the job did. Raises RuntimeError when the job fails or takes too long."""
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
    answer, *figures = output.rstrip("\n").split("\t")
    import_s, load_s, classify_s = map(float, figures)
    return Done(answer, import_s, load_s, classify_s, time.perf_counter() - started)


def nothing() -> None:
    """Ignores progress; default of the `progress` arguments."""


def measure(
    outcome: Outcome, commands: Sequence[Sequence[str]], usage: Usage, progress: Progress
) -> Outcome:
    """Runs the jobs; returns the outcome with their figures."""

    def run(command: Sequence[str]) -> Done:
        done = run_job(command, usage)
        progress()
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(outcome.at_once) as executor:
        done = list(executor.map(run, commands))
    seconds = time.perf_counter() - started
    in_jobs, classifying = sum(job.seconds for job in done), sum(job.classify_s for job in done)
    return replace(
        outcome,
        seconds=seconds,
        images_per_second=len(done) / seconds,
        classify_s=classifying / len(done),
        load_share=1 - classifying / in_jobs,
        cpu_percent=usage.cpu_percent,
        memory_mb=usage.memory_mb,
        importing=sum(job.import_s for job in done) / in_jobs,
        loading=sum(job.load_s for job in done) / in_jobs,
        answers=[job.answer for job in done],
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
    """Measures the same jobs as clients of one service, which runs only for them, in fp32 as they do."""
    settings: dict[str, object] = {
        **SAME[backend],
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

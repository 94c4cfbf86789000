"""Decentralised against centralised inference: a model in every job, or one service for all jobs.

`python -m benchmarks jobs` classifies N images, each in a process of its own: first with a model that
the process loads itself, 1 to M at a time; then as clients of this service, with one instance, with
batching, with more instances. `decentralised` and `centralised` measure one such arrangement each;
notebooks call them, too.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

from benchmarks.running import free_port, program, wait_for_answer
from benchmarks.usage import Usage
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
    at_once: int
    """Largest number of jobs that run at the same time."""

    instances: int
    """Instances of the model in the service; 0: every job has its own."""

    max_batch_size: int
    start_s: float
    """Seconds until the service was ready; 0 without a service."""

    seconds: float
    """Time from the first job's start to the last one's end, including the start of processes."""

    images_per_second: float
    cpu_percent: float
    """Highest CPU use of jobs and service together; 100 is one core."""

    memory_mb: float
    """Highest memory of jobs and service together, from the service's start on."""

    answers: list[str]
    """Class of each image."""


def run_job(command: Sequence[str], usage: Usage) -> str:
    """Returns the job's output. Raises RuntimeError when the job fails or takes too long."""
    arguments = [sys.executable, "-m", "benchmarks.job", *command]
    with Popen(arguments, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True) as process:  # noqa: S603
        usage.add(process.pid)
        try:
            output, complaint = process.communicate(timeout=JOB_S)
        except TimeoutExpired:
            process.kill()
            raise RuntimeError(f"a job took longer than {JOB_S} s") from None
        finally:
            usage.remove(process.pid)
    if process.returncode:
        raise RuntimeError(f"a job failed: {complaint[-2000:]}")
    return output.strip()


def run_jobs(
    commands: Sequence[Sequence[str]], at_once: int, usage: Usage, progress: Progress
) -> tuple[float, list[str]]:
    """Returns the seconds for all jobs, and the output of each."""

    def run(command: Sequence[str]) -> str:
        answer = run_job(command, usage)
        progress()
        return answer

    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as executor:
        answers = list(executor.map(run, commands))
    return time.perf_counter() - started, answers


def nothing() -> None:
    """Ignores progress; default of the `progress` arguments."""


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
    chosen = islice(cycle(photos), images)
    commands = [["load", backend.value, model, threads, str(photo.resolve())] for photo in chosen]
    with Usage() as usage:
        seconds, answers = run_jobs(commands, at_once, usage, progress)
    return Outcome(
        arrangement=f"own models, {at_once} at once",
        backend=backend,
        images=images,
        at_once=at_once,
        instances=0,
        max_batch_size=1,
        start_s=0.0,
        seconds=seconds,
        images_per_second=images / seconds,
        cpu_percent=usage.cpu_percent,
        memory_mb=usage.memory_mb,
        answers=answers,
    )


@contextmanager
def service(
    backend: Backend, settings: dict[str, str], photo: Path, usage: Usage
) -> Iterator[tuple[str, float]]:
    """Yields the service's URL and the seconds until its first answer."""
    port = str(free_port())
    started = time.perf_counter()
    command = [sys.executable, "-m", "smallplates.service", backend.value, "--port", port]
    with program(command, settings) as running:
        usage.add(running.keeper.pid, itself=False)
        url = f"http://127.0.0.1:{port}{ANSWER}"
        wait_for_answer(url, photo.read_bytes(), running, START_S, "image/jpeg")
        yield url, time.perf_counter() - started


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
        "SERVING_MODEL_DIR": str(model_dir.resolve()),
        "SERVING_LOG_LEVEL": "warning",
        "SERVING_INSTANCES": str(instances),
        "SERVING_MAX_BATCH_SIZE": str(max_batch_size),
        "SERVING_MAX_QUEUE_DELAY_US": str(max_queue_delay_us),
        "SERVING_REQUEST_TIMEOUT_MS": str(JOB_S * 1000),
    }
    chosen = list(islice(cycle(photos), images))
    with Usage() as usage, service(backend, settings, photos[0], usage) as (url, start_s):
        commands = [["ask", url, str(photo.resolve())] for photo in chosen]
        seconds, answers = run_jobs(commands, at_once, usage, progress)
    batching = f", batches of {max_batch_size}" if max_batch_size > 1 else ""
    plural = "s" if instances > 1 else ""
    return Outcome(
        arrangement=f"service, {instances} instance{plural}{batching}",
        backend=backend,
        images=images,
        at_once=at_once,
        instances=instances,
        max_batch_size=max_batch_size,
        start_s=start_s,
        seconds=seconds,
        images_per_second=images / seconds,
        cpu_percent=usage.cpu_percent,
        memory_mb=usage.memory_mb,
        answers=answers,
    )

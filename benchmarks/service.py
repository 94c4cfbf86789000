"""Starts this project's own service for an experiment, with the given settings."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.running import Program, Running, free_port, program, wait_for_answer

ALIKE = {"precision": "fp32", "cpu_runtime": "onnxruntime"}
"""Settings with which services, and models without one, compute alike."""

START_S = 180  # a large model on few cores measures its batch sizes for a while


@contextmanager
def start(
    package: str, environment: Mapping[str, str] | None = None, /, **settings: object
) -> Iterator[tuple[str, Program]]:
    """Starts the service, and ends it with the block; yields its URL at once, before it is ready.

    `settings` are those of `smallplates.settings`, in lower case: `instances=4`; `environment` adds
    other variables.
    """
    port = free_port()
    values = {f"SERVING_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "smallplates.service", package, "--port", str(port)]
    with program(command, {"SERVING_LOG_LEVEL": "error", **(environment or {}), **values}) as started:
        yield f"http://127.0.0.1:{port}", started


def wait(url: str, started: Program, seconds: float = START_S) -> None:
    """Waits until the service is ready. Raises RuntimeError with its output if it is not in time."""
    wait_for_answer(f"{url}/health/ready", None, started, seconds)


@contextmanager
def running(
    package: str = "fastapi_onnx", environment: Mapping[str, str] | None = None, /, **settings: object
) -> Iterator[Running]:
    """Serves until the block ends; see `start`. Raises RuntimeError when the service does not start."""
    with start(package, environment, **settings) as (url, started):
        wait(url, started)
        yield Running(url, started.keeper.pid)

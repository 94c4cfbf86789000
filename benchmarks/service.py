"""Starts this project's own service for an experiment, with the given settings."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.running import Running, free_port
from smallplates.cli.load import server_side
from smallplates.settings import ROOT

START_S = 180  # a large model on few cores measures its batch sizes for a while


@contextmanager
def running(
    package: str = "fastapi_onnx", environment: Mapping[str, str] | None = None, /, **settings: object
) -> Iterator[Running]:
    """Serves until the block ends.

    `settings` are those of `smallplates.settings`, in lower case: `instances=4`; `environment` adds
    other variables. Raises RuntimeError when the service does not start.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    values = {f"SERVING_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(  # noqa: S603 our own program
        [sys.executable, "-m", "smallplates.service", package, "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "SERVING_LOG_LEVEL": "error", **(environment or {}), **values},
    )
    try:
        wait_until_ready(url, process)
        yield Running(url, process.pid)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Waits for the service. Raises RuntimeError when its process ends first, or takes too long."""
    end = time.monotonic() + START_S
    while True:
        try:
            if server_side.get(f"{url}/health/ready"):
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the service did not start; its log says why")
        time.sleep(0.05)

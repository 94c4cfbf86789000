"""Starts the project's programs as real processes on free ports, and ends them again."""

import asyncio
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import requests

from smallplates.cli import processes

ROOT = Path(__file__).resolve().parent.parent
PORTS = range(10_000, 32_000)
"""Below those that the system gives to clients' connections."""

UNMEASURED = {
    "SERVING_CPU_RUNTIME": "onnxruntime",
    "SERVING_INSTANCES": "1",
    "SERVING_PRECISION": "fp32",
}
"""Settings of a service that does not measure which runtime, layout and precision to use."""

PATIENT = {"SERVING_REQUEST_TIMEOUT_MS": "300000"}
"""A deadline that a busy machine does not miss while a worker starts anew."""

_ports = itertools.count(random.randrange(len(PORTS)))


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 that nobody has; each call in this process returns another one."""
    while True:
        port = PORTS[next(_ports) % len(PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until_answers(url: str, process: subprocess.Popen[str], seconds: float = 300) -> None:
    """Polls `url` until it answers 200; fails early if the process has ended."""
    end = time.monotonic() + seconds
    while processes.get(url) is None:
        if process.poll() is not None:
            raise RuntimeError(f"exit code {process.returncode} before {url} answered")
        if time.monotonic() > end:
            raise TimeoutError(f"{url} did not answer within {seconds} s")
        time.sleep(0.05)


def wait_for(condition: Callable[[], object], what: str = "a condition", seconds: float = 120) -> None:
    """Returns as soon as the condition holds; fails with `what` was awaited."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)


async def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """The same for a coroutine."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 what is awaited happens in other processes, too
            await asyncio.sleep(0.001)


def run(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a program that ends by itself, and keeps what it writes."""
    own = {**os.environ, **(env or {})}
    return subprocess.run(
        arguments, cwd=cwd, env=own, capture_output=True, text=True, timeout=seconds, check=False
    )


@contextmanager
def replying(reply: bytes) -> Iterator[str]:
    """The base URL of a server that sends these bytes to whatever its only client sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def metric(url: str, name: str) -> float:
    """Returns the current value of a series without labels, or of all models together."""
    return value(requests.get(f"{url}/metrics", timeout=60).text, name)


def value(text: str, name: str) -> float:
    """Returns the same of the text of `/metrics`."""
    values = re.findall(rf'^{name}(?:{{model="[^"]*"}})? ([\d.e+]+)$', text, re.MULTILINE)
    assert values, name
    return sum(map(float, values))


@contextmanager
def running(
    arguments: Sequence[str],
    ready_url: str,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Runs `python -m ARGUMENTS` from the repository's root until the block ends.

    What it writes to standard error goes to the file `log`, where one is named.
    """
    with log.open("w") if log else nullcontext() as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **PATIENT, **(env or {})},
            text=True,
            stderr=stderr,
        )
    try:
        wait_until_answers(ready_url, process)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def api(
    package: str = "fastapi_onnx", env: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[str]:
    """Runs one package's service; yields its base URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with running(["smallplates.service", package, "--port", str(port)], f"{url}/health/ready", env, log):
        yield url


@contextmanager
def process_of(url: str) -> Iterator[psutil.Process]:
    """The child process that listens at `url`."""
    port = urlsplit(url).port
    for child in psutil.Process().children(recursive=True):
        if any(c.laddr and c.laddr.port == port for c in child.net_connections("tcp")):
            yield child
            return
    raise LookupError(url)

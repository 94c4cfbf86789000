"""Starts a server, waits for its first answer, and ends it with all processes that it started."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.environments import python_for
from benchmarks.servers import Pipeline, Server
from benchmarks.usage import tree
from smallplates.settings import ROOT

END_S = 60
"""Longer than `keeper` can take."""

LOG_CHARACTERS = 2000


@dataclass(frozen=True)
class Program:
    """Running program, with the keeper process that ends it."""

    keeper: subprocess.Popen[bytes]
    log: Path
    """File with its output, both streams."""

    def end_of_log(self) -> str:
        """Returns the end of its output."""
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS:]


@dataclass(frozen=True)
class Running:
    """Server that answers."""

    url: str
    keeper_pid: int

    def processes(self) -> list[psutil.Process]:
        """Returns all processes of the server."""
        return tree(self.keeper_pid)[1:]


def free_port() -> int:
    """Returns a TCP port that was free on 127.0.0.1 a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def program(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Program]:
    """Runs a command from the repository's root, with its own folder for temporary files."""
    with TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            keeper = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "benchmarks.keeper", *command],
                cwd=ROOT,
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT), "TMPDIR": folder},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Program(keeper, log)
        finally:
            keeper.terminate()
            keeper.wait(END_S)


def post(url: str, body: bytes | None) -> bytes:
    """Posts once, never through a proxy; None: GET. Returns the body of the answer. Raises OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with opener.open(request, timeout=20) as response:
        content: bytes = response.read()
        return content


def wait_for_answer(url: str, body: bytes | None, started: Program, seconds: float) -> bytes:
    """Returns the first answer that is not an error. Raises RuntimeError with the program's output."""
    end = time.monotonic() + seconds
    while True:
        try:
            return post(url, body)
        except OSError as error:
            if started.keeper.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no answer at {url}: {error}\n{started.end_of_log()}") from error
            time.sleep(0.1)


@contextmanager
def running(
    server: Server, model_dir: Path, environments: Path, pipeline: Pipeline, body: bytes
) -> Iterator[Running]:
    """Yields the server, with the URL to POST `body` to, after it was answered there once."""
    port = str(free_port())
    words = {"MODEL": str(model_dir), "PORT": port, "PIPELINE": pipeline.value}
    command = [words.get(word, word) for word in server.command]
    settings = {"SERVING_MODEL_DIR": str(model_dir), "SERVING_LOG_LEVEL": "warning"}
    python = str(python_for(server.environment, environments))
    with program([python, *command], {**settings, **dict(server.settings)}) as started:
        url = f"http://127.0.0.1:{port}{server.path}"
        wait_for_answer(url, body, started, server.start_s)
        yield Running(url, started.keeper.pid)

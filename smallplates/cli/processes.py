"""Runs the API and the page beside each other, and ends both together; called by `serve.py`."""

import contextlib
import http.client
import json
import math
import os
import queue
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any

from flask_app.settings import Settings as PageSettings
from smallplates import __version__
from smallplates.errors import ConfigurationError
from smallplates.logging import Sink
from smallplates.settings import Settings
from smallplates.system import cpus, python
from smallplates.system.pdeathsig import set_pdeathsig
from smallplates.system.signals import ending_signals

NOT_TOLD = {"model_dir", "models", "host", "port", "log_format"}
"""Settings that other lines tell, or that differ from their default under this command."""

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
OUTPUT = Sink(1)
ENDING_S = 5
"""Time in which the service may end, beyond what its settings leave for accepted requests."""


def run(
    service: Sequence[str], settings: Settings, page: PageSettings | None, models: Sequence[str]
) -> int:
    """Runs `python -m SERVICE` and the page until a signal, or until one of them ends.

    Both read the environment; `settings`, `page` and `models`, the models' names, tell what is in it.
    Returns the exit code: 0 after a signal.
    """
    say(banner(settings, models, service[-1]))
    processes: list[subprocess.Popen[bytes]] = []
    stop = Stop(processes)
    if "MAKELEVEL" in os.environ:  # a killed make must not leave this process behind
        end_with_parent(os.getppid())
    progress = Progress(settings, page, models)
    try:
        processes.append(start(*service, "--host", settings.host, "--port", str(settings.port)))
        if page:
            processes.append(start("flask_app"))
        while not stop.wait(0.5 if progress.is_complete else 0.1) and all(
            process.poll() is None for process in processes
        ):
            progress.tell()
        return 0 if stop.is_wanted else 1
    finally:
        stop.is_wanted = True
        signal.alarm(math.ceil(settings.shutdown_delay_s + settings.shutdown_timeout_s + ENDING_S))
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def banner(settings: Settings, models: Sequence[str], package: str) -> str:
    """Returns what is served, how, and for whom."""
    cores = cpus.usable()
    lines = [
        f"smallplates {__version__}: {', '.join(models)}; {package} on {cores} core{'s'[: cores > 1]}"
    ]
    fields = Settings.model_fields.items()
    changed = [
        f"{name}={getattr(settings, name)}"
        for name, field in fields
        if name not in NOT_TOLD
        and getattr(settings, name) != field.get_default(call_default_factory=True, validated_data={})
    ]
    if changed:
        lines.append(f"settings: {', '.join(changed)}")
    if settings.api_key is None and settings.host in LOOPBACK:
        lines.append("no API key: only programs on this machine can use the models")
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints a text. It is lost if nobody reads standard output, or if the disk is full."""
    OUTPUT.write(f"{text}\n".encode(errors="backslashreplace"))


class Stop:
    """Handles the signals that end the launcher. SIGINT kills `processes` if it is not the first signal.

    A second SIGTERM changes nothing: `make` and systemd send one to every process, so several arrive.
    """

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self.is_wanted = False
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        """What has arrived. Its `put` may interrupt itself and `get`; an Event's `set` deadlocks."""

        for number in (*ending_signals(), signal.SIGALRM):
            signal.signal(number, self._on_signal)

    def wait(self, seconds: float) -> bool:
        """Waits for a signal, this many seconds at most; returns whether one has ever arrived."""
        with contextlib.suppress(queue.Empty):
            self._signals.get(timeout=seconds)
        return self.is_wanted

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        is_urgent = self.is_wanted and number in (signal.SIGINT, signal.SIGALRM)
        for process in self._processes:
            process.send_signal(signal.SIGKILL if is_urgent else signal.SIGTERM)
        self.is_wanted = True
        self._signals.put(number)


class Progress:
    """Tells which models are ready, and the addresses as soon as both servers answer."""

    def __init__(self, settings: Settings, page: PageSettings | None, models: Sequence[str]) -> None:
        self._api = f"http://{reachable(settings.host)}:{settings.port}"
        self._page = f"http://{reachable(page.host)}:{page.port}" if page else None
        self._loading = list(models)
        self._is_logged = settings.log_format == "console" and settings.log_level in ("debug", "info")
        self._count = len(models)
        self._start = time.monotonic()
        self._is_told = False
        """Whether the addresses have been printed."""

        if not self._is_logged:
            say(f"loading {', '.join(models)}")

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to tell."""
        return self._is_told and not self._loading

    def tell(self) -> None:
        """Prints what is new."""
        if self.is_complete:
            return
        states = answer(f"{self._api}/health/ready").get("models", {})
        for name in [name for name in self._loading if states.get(name, "loading") != "loading"]:
            self._loading.remove(name)
            place = f"{self._count - len(self._loading)} of {self._count}"
            seconds = time.monotonic() - self._start
            if not self._is_logged:
                say(f"{name} is {states[name]} ({place}, {seconds:.0f} s)")
        if states and not self._is_told and (not self._page or get(f"{self._page}/healthz")):
            self._is_told = True
            page = f"  page  {self._page}\n" if self._page else ""
            say(f"\n{page}  API   {self._api}/docs\n")


def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts `python -m MODULE` in a session of its own, which Ctrl-C does not reach.

    Raises ConfigurationError if the system refuses a process.
    """
    try:
        return subprocess.Popen(  # noqa: S603 our own modules
            python.command(module, *arguments),
            env=python.environment(),
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    except OSError as error:
        raise ConfigurationError(f"{module} cannot be started: {error}") from error


def end_with_parent(parent: int) -> None:
    """Makes the end of `parent`, a process id, send SIGTERM to this process."""
    if not set_pdeathsig(parent, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)


def reachable(host: str) -> str:
    """Returns the address at which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 compared, not bound
    return f"[{host}]" if ":" in host else host


def answer(url: str) -> dict[str, Any]:
    """Returns the JSON object that `url` answers with 200; an empty one for any other answer."""
    try:
        content = json.loads(get(url) or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def get(url: str) -> bytes | None:
    """Returns what GET `url` answers with 200, else None; never asks through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return bytes(response.read())
    except (OSError, http.client.HTTPException):  # the latter: another program answers, not in HTTP
        return None

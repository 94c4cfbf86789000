"""Several web processes over one engine, on one port: `python -m serving` with `web_processes` > 1.

This process holds the engine's supervisor and the listening socket. It accepts every connection and
hands it to the web process with the fewest, so that the load is even; sharing the socket would leave
that to chance. It replaces a web process that dies, and takes part in switching versions.
"""

import contextlib
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from serving import control, logs
from serving.engine import layout
from serving.engine.memory import Tally
from serving.engine.supervisor import Supervisor
from serving.errors import ConfigurationError
from serving.frontends.tcp import bind
from serving.logs import logger
from serving.model import Model
from serving.server import ACCEPT_PAUSE_S, listen
from serving.settings import Settings

RESTART_S = 0.5


@dataclass
class Web:
    """One web process's place."""

    index: int
    popen: subprocess.Popen[bytes]
    sock: socket.socket
    ready: bool = False
    given: int = 0
    """Connections handed to it."""


class Cluster:
    """`run` lasts until SIGTERM or SIGINT."""

    def __init__(self, package: str, settings: Settings) -> None:
        self._package = package
        self._backend: str = importlib.import_module(package).BACKEND
        self._settings = settings
        self._count = layout.web_processes(settings)
        self._selector = selectors.DefaultSelector()
        self._webs: dict[int, Web] = {}
        self._engines: dict[int, Supervisor] = {}
        self._users: dict[int, set[int]] = {}
        self._current = 0
        self._stopping = False
        self._opened = False
        """Whether all web processes have been ready once: none gets all the first connections."""

        self._any_ready = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe()
        self._news: list[tuple[Web, Supervisor | str]] = []

    def run(self) -> int:
        """Serves; returns the exit code. Raises ConfigurationError when it cannot start."""
        logs.configure(self._settings)
        model = Model.read(self._settings.model_dir)
        count = self._count
        self._tally = Tally.create(count)
        self._folder = tempfile.mkdtemp(prefix="serving-metrics-", dir=metrics_parent())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            self._listener = listen(self._settings)
            if self._settings.tcp_port is not None:
                self._tcp_port = bind(self._settings)  # held, not listened on: that is for the others
            for index in range(count):
                self._start_web(index)
            supervisor = Supervisor(self._backend, model, self._settings, count)
            supervisor.start()
            self._engines[0] = supervisor
            for web in list(self._webs.values()):
                self._offer(web)
            threading.Thread(target=self._accept, daemon=True).start()
            host, port = self._listener.getsockname()[:2]
            logger().info("listening", host=host, port=port, web_processes=count)
            return self._loop()
        finally:
            for web in self._webs.values():
                web.popen.kill()
                web.popen.wait()
            for engine in self._engines.values():
                engine.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping:
            for web in self._webs.values():
                web.popen.kill()
            os._exit(128 + number)
        self._stopping = True
        for web in self._webs.values():
            web.popen.send_signal(signal.SIGTERM)

    def _loop(self) -> int:
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        while self._webs or not self._stopping:
            for key, _ in self._selector.select(RESTART_S if self._missing() else None):
                if key.fd == self._wake_reader:
                    os.read(self._wake_reader, 4096)
                    self._on_news()
                else:
                    self._on_message(key.data)
            for index in self._missing():
                self._start_web(index)
                self._offer(self._webs[index])
        return 0

    def _missing(self) -> list[int]:
        if self._stopping:
            return []
        return [i for i in range(self._count) if i not in self._webs]

    def _start_web(self, index: int) -> None:
        ours, theirs = control.pair()
        self._tally.ended[index] = 0
        numbers = (os.getpid(), theirs.fileno(), self._tally.fd, index)
        popen = subprocess.Popen(  # noqa: S603 our own module
            [sys.executable, "-m", "serving.web", self._package, *map(str, numbers)],
            pass_fds=(theirs.fileno(), self._tally.fd),
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._folder},
        )
        theirs.close()
        web = Web(index, popen, ours)
        self._webs[index] = web
        self._selector.register(ours, selectors.EVENT_READ, web)

    def _offer(self, web: Web) -> None:
        """Gives the current engine to a web process."""
        engine = self._engines[self._current]
        self._users.setdefault(self._current, set()).add(web.index)
        with contextlib.suppress(OSError):  # it has died; that is noticed elsewhere
            control.send_engine(
                web.sock, self._current, engine.version, engine.attachment(web.index), engine.profile
            )

    def _on_message(self, web: Web) -> None:
        try:
            data = web.sock.recv(control.MAX_MESSAGE)
        except ConnectionError:
            data = b""
        if not data:
            self._on_death(web)
            return
        message: dict[str, Any] = json.loads(data)
        if message["type"] == "switch":
            version = str(message["version"])
            threading.Thread(target=self._load, args=(web, version), daemon=True).start()
        elif message["type"] == "ready":
            web.ready = True
            if self._opened or all(other.ready for other in self._webs.values()):
                self._opened = True
                self._any_ready.set()
        else:
            self._released(message["key"], web.index)

    def _on_death(self, web: Web) -> None:
        """What it had asked for is not computed any more; its successor takes over its slots."""
        self._selector.unregister(web.sock)
        web.sock.close()
        code = web.popen.wait()
        del self._webs[web.index]
        if not any(other.ready for other in self._webs.values()):
            self._any_ready.clear()
        if not self._stopping:
            logger().error("a web process died", web=web.index, exit_code=code)
            time.sleep(RESTART_S if code > 0 else 0)
        for key, engine in list(self._engines.items()):
            engine.abandon(web.index)
            self._released(key, web.index)

    def _load(self, web: Web, version: str) -> None:
        """On a thread of its own, which the workers outlive: the supervisor's starts them."""
        result: Supervisor | str
        try:
            model = Model.read(self._settings.model_dir, version)
            result = Supervisor(self._backend, model, self._settings, self._count)
            result.start()
        except ConfigurationError as error:
            result = str(error)
        self._news.append((web, result))
        os.write(self._wake_writer, b"n")

    def _on_news(self) -> None:
        """A version has been loaded, or could not be."""
        while self._news:
            asker, result = self._news.pop()
            if isinstance(result, Supervisor):
                self._current = max(self._engines) + 1
                self._engines[self._current] = result
                for web in self._webs.values():
                    self._offer(web)
            error = result if isinstance(result, str) else None
            with contextlib.suppress(OSError):
                control.send(asker.sock, type="switched", error=error)

    def _released(self, key: int, web: int) -> None:
        """The last web process that leaves an old engine ends it."""
        users = self._users.get(key, set())
        users.discard(web)
        if not users and key != self._current and key in self._engines:
            self._engines.pop(key).close()

    def _accept(self) -> None:
        """Hands every connection to the web process that has the fewest."""
        while self._any_ready.wait():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # no descriptor is left, or that client has gone already
                logger().error("a connection cannot be accepted", reason=str(error))
                time.sleep(ACCEPT_PAUSE_S)
                continue
            with connection:
                ready = [web for web in self._webs.values() if web.ready]
                for web in sorted(ready, key=self._open_connections):
                    try:
                        socket.send_fds(web.sock, [control.CONNECTION], [connection.fileno()])
                    except OSError:  # it has just died: the next one
                        continue
                    web.given += 1
                    break

    def _open_connections(self, web: Web) -> int:
        return web.given - self._tally.ended[web.index]


def metrics_parent() -> str | None:
    """A folder in memory where there is one: also a read-only container has it."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 mkdtemp makes it safe

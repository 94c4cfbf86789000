"""Several web processes over one engine, on one port: `python -m serving` with `web_processes` > 1.

This process holds the engine's supervisor and the listening socket. It accepts every connection and
hands it to the web process with the fewest, so that the load is even; sharing the socket would leave
that to chance. It replaces a web process that dies or no longer answers, and takes part in switching
versions.
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from serving.cluster import messages
from serving.engine import scratch, topology
from serving.engine.memory import Tally
from serving.engine.supervisor import Supervisor
from serving.errors import ConfigurationError
from serving.logging import configure_logging, logger
from serving.model import Model
from serving.protocols import tcp
from serving.server import ACCEPT_PAUSE_S, bind, listen
from serving.settings import Settings

RESTART_S = 0.5
ASK_S = 5.0
MOST_UNANSWERED = 5  # counted, not timed: after a pause of all processes, one at most is unanswered
FULL_PAUSE_S = 0.01
METRICS = "serving-metrics-"


@dataclass
class FrontendProcess:
    """One web process's place."""

    index: int
    popen: subprocess.Popen[bytes]
    sock: socket.socket
    ready: bool = False
    given: int = 0
    """Connections handed to it."""

    unanswered: int = 0
    """Questions whether it is there, in a row."""


class Cluster:
    """`run` lasts until SIGTERM or SIGINT."""

    def __init__(self, package: str, settings: Settings) -> None:
        self._package = package
        self._backend: str = importlib.import_module(package).BACKEND
        self._settings = settings
        self._count = topology.web_processes(settings)
        self._selector = selectors.DefaultSelector()
        self._frontends: dict[int, FrontendProcess] = {}
        self._engines: dict[int, Supervisor] = {}
        self._users: dict[int, set[int]] = {}
        self._current = -1
        self._loaders: list[threading.Thread] = []
        self._loading: list[Supervisor] = []
        self._stopping = False
        self._opened = False
        """Whether all web processes have been ready once: none gets all the first connections."""

        self._any_ready = threading.Event()
        self._watching = False
        self._ask_at = 0.0
        """A time of time.monotonic(): the web processes are not asked again before it."""

        self._wake_reader, self._wake_writer = os.pipe()
        self._news: list[tuple[FrontendProcess | None, Supervisor | str]] = []
        self._askers: dict[int, FrontendProcess] = {}
        """By the engine that is still to end: who asked for its successor."""

    def run(self) -> int:
        """Serves; returns the exit code. Raises ConfigurationError when it cannot start."""
        configure_logging(self._settings)
        Model.read(self._settings.model_dir)  # what is wrong there is said before anything is started
        self._tally = Tally.create(self._count)
        self._folder = scratch.create(METRICS, metrics_parent())
        if self._folder is None:
            raise ConfigurationError("there is no folder that can be written, not even for a short time")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            self._listener = bind(self._settings)
            listen(self._listener, self._settings)
            if self._settings.tcp_port is not None:
                self._tcp_port = tcp.bind(
                    self._settings
                )  # held, not listened on: that is for the others
            for index in range(self._count):
                self._start_frontend(index)
            self._load(None, None)
            return self._loop()
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing that was started stays."""
        self._stopping = True
        for frontend in self._frontends.values():
            frontend.popen.kill()
            frontend.popen.wait()
        self._give_up_loading()
        for thread in self._loaders:
            thread.join()
        loaded = [result for _, result in self._news if isinstance(result, Supervisor)]
        for engine in (*self._engines.values(), *loaded):
            engine.close()
        scratch.remove(self._folder)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """`_loop` hears of the first one; the second one ends all at once."""
        if self._stopping:
            os._exit(128 + number)  # web processes and workers die with this one
        self._stopping = True

    def _loop(self) -> int:
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        told_to_stop = False
        while self._frontends or not self._stopping:
            if self._stopping and not told_to_stop:
                told_to_stop = True
                self._give_up_loading()
                for frontend in self._frontends.values():
                    frontend.popen.send_signal(signal.SIGTERM)
            pause_s = self._watch()
            for key, _ in self._selector.select(RESTART_S if self._missing() else pause_s):
                if key.fd == self._wake_reader:
                    os.read(self._wake_reader, 4096)
                    self._on_news()
                else:
                    self._on_message(key.data)
            for index in self._missing():
                try:
                    self._start_frontend(index)
                except OSError as error:  # no memory, or too many processes, for now
                    logger().error("a web process cannot be started", reason=str(error))
                    break
                if self._engines:
                    self._offer(self._frontends[index])
        return 0

    def _missing(self) -> list[int]:
        if self._stopping:
            return []
        return [i for i in range(self._count) if i not in self._frontends]

    def _watch(self) -> float | None:
        """Asks web processes whether they are there, and kills those that leave too much unanswered.

        Returns the seconds until they are to be asked again; None while nobody needs them.
        """
        self._watching = False  # before it looks for connections: `_accept` asks after it has given one
        if not self._in_use():
            return None
        self._watching = True
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            for frontend in self._frontends.values():
                if frontend.ready or self._stopping:  # a slow start is not ended, but the end comes
                    self._ask(frontend)
        return self._ask_at - now

    def _in_use(self) -> bool:
        """Whether a web process has connections, or may have: of other ports they are not known here."""
        settings = self._settings
        others = settings.tcp_port is not None or settings.grpc_port is not None
        return (
            others
            or self._stopping
            or any(self._open_connections(frontend) > 0 for frontend in self._frontends.values())
        )

    def _ask(self, frontend: FrontendProcess) -> None:
        if frontend.unanswered >= MOST_UNANSWERED:
            self._give_up(frontend)
            return
        frontend.unanswered += 1
        with contextlib.suppress(OSError):  # it has died, or reads nothing
            frontend.sock.send(messages.QUESTION, socket.MSG_DONTWAIT)

    def _give_up(self, frontend: FrontendProcess) -> None:
        """Its event loop does not run; `_on_death` hears of the end."""
        logger().error("a web process does not answer", web=frontend.index)
        frontend.ready = False
        frontend.popen.kill()

    def _start_frontend(self, index: int) -> None:
        ours, theirs = messages.pair()
        limit = struct.pack("@ll", int(ASK_S * MOST_UNANSWERED), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._tally.ended[index] = 0
        numbers = (os.getpid(), theirs.fileno(), self._tally.fd, index)
        with theirs:
            try:
                popen = subprocess.Popen(  # noqa: S603 our own module
                    [
                        sys.executable,
                        "-m",
                        "serving.cluster.frontend",
                        self._package,
                        *map(str, numbers),
                    ],
                    pass_fds=(theirs.fileno(), self._tally.fd),
                    env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self._folder)},
                )
            except OSError:
                ours.close()
                raise
        frontend = FrontendProcess(index, popen, ours)
        self._frontends[index] = frontend
        self._selector.register(ours, selectors.EVENT_READ, frontend)

    def _offer(self, frontend: FrontendProcess) -> None:
        """Gives the current engine to a web process."""
        engine = self._engines[self._current]
        self._users.setdefault(self._current, set()).add(frontend.index)
        try:
            messages.send_engine(
                frontend.sock,
                self._current,
                engine.version,
                engine.engine_fds(frontend.index),
                engine.profile,
            )
        except BlockingIOError:  # it has not read its messages for long, and cannot do without this one
            self._give_up(frontend)
        except OSError:  # it has died; that is noticed elsewhere
            pass

    def _on_message(self, frontend: FrontendProcess) -> None:
        try:
            data = frontend.sock.recv(messages.MAX_MESSAGE)
        except ConnectionError:
            data = b""
        if not data:
            self._on_death(frontend)
            return
        message: dict[str, Any] = json.loads(data)
        if message["type"] == "switch":
            self._load(frontend, str(message["version"]))
        elif message["type"] == "ready":
            frontend.ready = True
            if self._opened or all(other.ready for other in self._frontends.values()):
                self._opened = True
                self._any_ready.set()
        elif message["type"] == "here":
            frontend.unanswered = 0
        else:
            self._released(message["key"], frontend.index)

    def _on_death(self, frontend: FrontendProcess) -> None:
        """What it had asked for is not computed any more; its successor takes over its slots."""
        self._selector.unregister(frontend.sock)
        frontend.sock.close()
        code = frontend.popen.wait()
        del self._frontends[frontend.index]
        if not any(other.ready for other in self._frontends.values()):
            self._any_ready.clear()
        if not self._stopping:
            logger().error("a web process died", web=frontend.index, exit_code=code)
            if code > 0 and not self._opened:
                raise ConfigurationError(f"a web process ended with exit code {code}")
            time.sleep(RESTART_S if code > 0 else 0)
        for key, engine in list(self._engines.items()):
            engine.abandon(frontend.index)
            self._released(key, frontend.index)

    def _load(self, asker: FrontendProcess | None, version: str | None) -> None:
        """Begins; `_on_news` goes on. Nobody asks for the engine to begin with."""
        loader = threading.Thread(target=self._load_on_thread, args=(asker, version))
        self._loaders = [*filter(threading.Thread.is_alive, self._loaders), loader]
        loader.start()

    def _load_on_thread(self, asker: FrontendProcess | None, version: str | None) -> None:
        """On a thread of its own, which the workers outlive: the supervisor's starts them."""
        result: Supervisor | str
        try:
            result = self._started(Model.read(self._settings.model_dir, version))
        except ConfigurationError as error:
            result = str(error)
        self._news.append((asker, result))
        os.write(self._wake_writer, b"n")

    def _started(self, model: Model) -> Supervisor:
        """An engine whose workers are ready. Raises ConfigurationError."""
        supervisor = Supervisor(self._backend, model, self._settings, self._count)
        self._loading.append(supervisor)
        try:
            if self._stopping:
                supervisor.give_up()
            supervisor.start()
        finally:
            self._loading.remove(supervisor)
        return supervisor

    def _give_up_loading(self) -> None:
        for supervisor in list(self._loading):
            supervisor.give_up()

    def _on_news(self) -> None:
        """A version has been loaded, or could not be."""
        while self._news and not self._stopping:
            asker, result = self._news.pop(0)
            if isinstance(result, str):
                if asker is None:
                    raise ConfigurationError(result)
                tell(asker, result)
                continue
            if asker is None:
                self._open()
            else:
                self._askers[self._current] = asker
            self._current += 1
            self._engines[self._current] = result
            for frontend in self._frontends.values():
                self._offer(frontend)

    def _open(self) -> None:
        """The engine to begin with is there."""
        threading.Thread(target=self._accept, daemon=True).start()
        host, port = self._listener.getsockname()[:2]
        logger().info("listening", host=host, port=port, web_processes=self._count)

    def _released(self, key: int, frontend: int) -> None:
        """The last web process that leaves an old engine ends it."""
        users = self._users.get(key, set())
        users.discard(frontend)
        if not users and key != self._current and key in self._engines:
            self._engines.pop(key).close()
            if asker := self._askers.pop(key, None):
                tell(asker, None)

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
                while not self._hand_over(connection):
                    time.sleep(FULL_PAUSE_S)
                if not self._watching:
                    with contextlib.suppress(BlockingIOError):  # `_loop` has much to wake up for already
                        os.write(self._wake_writer, b"c")

    def _hand_over(self, connection: socket.socket) -> bool:
        """Whether a web process has it; one that may not be there any more is the last that is tried."""

        def burden(frontend: FrontendProcess) -> tuple[bool, int]:
            return frontend.unanswered > 1, self._open_connections(frontend)

        ready = [
            frontend for frontend in list(self._frontends.values()) if frontend.ready
        ]  # another thread's
        for frontend in sorted(ready, key=burden):
            try:
                messages.send_connection(frontend.sock, connection)
            except OSError:  # it has just died, or has many that it has not looked at: the next one
                continue
            frontend.given += 1
            return True
        return False

    def _open_connections(self, frontend: FrontendProcess) -> int:
        return frontend.given - self._tally.ended[frontend.index]


def tell(asker: FrontendProcess, error: str | None) -> None:
    """What became of the version it asked for."""
    with contextlib.suppress(OSError):  # it has died
        messages.send(asker.sock, type="switched", error=error)


def metrics_parent() -> Path | None:
    """A folder in memory where one can be written: also a read-only container has it."""
    shm = Path("/dev/shm")  # noqa: S108 mkdtemp makes it safe
    return shm if os.access(shm, os.W_OK) else None

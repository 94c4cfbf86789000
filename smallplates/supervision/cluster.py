"""Parent of several web processes on one port: `python -m smallplates.service` with `web_processes` > 1.

The parent runs the engines' supervisors and binds the port. The web processes inherit the socket, which
starts to listen when all of them are ready, and accept connections themselves. The parent replaces web
processes that die or stop responding, and loads other versions. With `web_processes=auto` it loads the
default model's engine first, because warm-up determines the number of web processes.

A web process tells the parent about its first connection. While any web process has connections, the
parent pings all of them, and each answers with its number of open connections. While the service is
idle, there are no pings.
"""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from smallplates.engine import topology
from smallplates.engine.memory import UNKNOWN
from smallplates.errors import ConfigurationError
from smallplates.logging import configure_logging, logger, warn_of_unknown_variables
from smallplates.models.folder import Model, configured_models, stored_models
from smallplates.settings import Settings
from smallplates.supervision import balance, messages, scratch
from smallplates.supervision.planner import planner, task_of
from smallplates.supervision.registry import Registry
from smallplates.supervision.supervisor import Supervisor
from smallplates.supervision.web_process import MAX_OF_A_START, MAX_UNANSWERED, WebProcess
from smallplates.supervision.worker_process import STARTS_IF_KILLED, describe_exit
from smallplates.system.open_files import allow_open_files
from smallplates.system.signals import ending_signals
from smallplates.web.server import listen
from smallplates.web.sockets import bind, reserve

RESTART_S = 0.5
SIGNAL_S = 0.01  # enough time for the event loop to handle a signal
PING_S = 5.0
METRICS, METRICS_BYTES = "serving-metrics-", 16 << 20
SHARED_MEMORY = "/dev/shm"  # noqa: S108 mkdtemp makes it safe
OPEN_FILES = 65536  # for hundreds of engines; each takes two for every web process, two for a worker


class Cluster:
    """The parent's state; `run` serves until SIGTERM or SIGINT."""

    def __init__(self, package: str, settings: Settings) -> None:
        self._package = package
        self._settings = settings
        plan = planner(importlib.import_module(package).BACKEND, settings)
        models = configured_models(settings)
        self._registry = Registry(settings, plan, models, topology.most_web_processes(settings))
        self._registry.on_first = self._on_first_engine
        self._web_processes: dict[int, WebProcess] = {}
        self._spawn = self._registry.spawn
        self._changes = 0
        """Number of changes that web processes have requested and that are not made yet."""

        self._deaths: Counter[int] = Counter()
        """Number of web processes with each index that have died before all were ready."""

        self._next_ping: asyncio.TimerHandle | None = None
        self._shutdown = False
        self._is_open = False
        """Whether all web processes have been ready once; else the first would get all connections."""

    def run(self) -> int:
        """Serves and returns the exit code. Raises ConfigurationError if the service cannot start."""
        configure_logging(self._settings)
        allow_open_files(OPEN_FILES)
        warn_of_unknown_variables([*self._registry.models, *stored_models(self._settings)])
        asyncio.run(self._serve())
        return 0

    async def _serve(self) -> None:
        with contextlib.ExitStack() as stack:
            self._listener = stack.enter_context(bind(self._settings))
            stack.enter_context(reserve(self._settings, shared=True))  # the web processes listen
            for number in ending_signals():
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            parent = metrics_parent()
            folder = parent and stack.enter_context(scratch.folder(METRICS, parent))
            if folder is None:
                raise ConfigurationError(
                    "no folder for temporary files is writable and has 16 MB of room"
                )
            self._metrics_folder = folder
            self._watch()
            self._start = start = self._spawn(self._registry.start())
            keepers: list[asyncio.Task[None]] = []
            try:
                if self._settings.web_processes == "auto":
                    await start
                count = self._registry.web_processes
                keepers = [self._spawn(self._keep(index)) for index in range(count)]
                await start
                await asyncio.gather(self._registry.start_others(), *keepers)
            except ConfigurationError:
                if not self._shutdown:  # otherwise the start was aborted
                    raise
            finally:
                await self._end()
                await asyncio.gather(*keepers, return_exceptions=True)  # asyncio logs what nobody reads

    def _on_signal(self, number: int) -> None:
        """Shuts the service down; a SIGINT during this ends it at once."""
        if self._shutdown:
            if number == signal.SIGINT:
                os._exit(128 + number)  # web processes and workers die with this process
            return
        self._listener.close()  # the web processes keep theirs until they have drained
        self._stop(signal.SIGTERM)
        self._watch()

    def _stop(self, number: int) -> None:
        """Signals all web processes, prevents new starts, and aborts loading."""
        self._shutdown = True
        for web_process in self._web_processes.values():
            web_process.popen.send_signal(number)
        self._registry.stop()

    async def _end(self) -> None:
        """Ends all processes and tasks that were started."""
        self._stop(signal.SIGKILL)
        if self._next_ping:
            self._next_ping.cancel()
        await self._registry.close()

    # -- web processes --

    async def _keep(self, index: int) -> None:
        """Keeps a web process with this index running until shutdown. Raises ConfigurationError."""
        loop, count = asyncio.get_running_loop(), self._registry.web_processes
        while not self._shutdown:
            try:
                web_process = WebProcess.start(
                    index, count, self._package, self._listener, self._metrics_folder
                )
            except OSError as error:  # out of memory or processes, perhaps only for a while
                if not self._is_open:
                    raise ConfigurationError(f"a web process cannot be started: {error}") from error
                logger().error("a web process cannot be started", reason=str(error))
                await asyncio.sleep(RESTART_S)
                continue
            self._web_processes[index] = web_process
            self._watch()
            join = self._spawn(self._join(web_process))
            with web_process.sock, contextlib.suppress(ConnectionError):
                while data := await loop.sock_recv(web_process.sock, messages.MAX_MESSAGE):
                    self._on_message(web_process, json.loads(data))
            code = await web_process.exit_code()
            self._registry.counts.web_cpu_s[0] += web_process.cpu_s
            web_process.calls.end(None)
            self._registry.remove(web_process)  # before: a start that fails waits for its engine
            await join
            await asyncio.sleep(SIGNAL_S)  # the signal that ended it may have been sent to us, too
            self._on_death(web_process, code)
            await asyncio.sleep(RESTART_S if code > 0 else 0)

    def _on_message(self, web_process: WebProcess, message: dict[str, Any]) -> None:
        match message["type"]:
            case "ready":
                web_process.ready = True
                self._on_ready(web_process)
            case "connections":
                web_process.connections, web_process.unanswered = message["count"], 0
                self._watch()
            case "load":
                self._spawn(self._change(web_process, message["id"], self._load(message)))
            case "unload":
                work = self._registry.unload(message["model"])
                self._spawn(self._change(web_process, message["id"], work))
            case "done":
                web_process.calls.on_done(message["id"], message["error"])
            case "released":
                for engine in self._registry.engines:
                    if engine.key == message["key"]:
                        engine.release(web_process.index)

    async def _join(self, web_process: WebProcess) -> None:
        """Tells a new web process what is in service. Raises ConfigurationError at the start only."""
        try:
            await self._registry.add(web_process)
            await self._start
        except ConfigurationError:
            if not self._is_open:
                web_process.popen.kill()
                raise
        await web_process.begin()

    async def _change(
        self, web_process: WebProcess, number: int, work: Coroutine[Any, Any, None]
    ) -> None:
        """Makes a change requested by a web process, and replies to it."""
        self._changes += 1
        self._watch()
        await messages.answer(web_process.send, number, work)
        self._changes -= 1
        self._watch()

    async def _load(self, message: dict[str, Any]) -> None:
        """Puts a model into service. Raises ConfigurationError."""
        path, version, name = (message[key] for key in ("path", "version", "model"))
        model = await asyncio.to_thread(Model.read, Path(path), version, name)
        await self._registry.load(model)

    def _on_ready(self, web_process: WebProcess) -> None:
        count, ready = self._registry.web_processes, sum(p.ready for p in self._web_processes.values())
        if self._is_open:
            web_process.send("accept")
        elif ready == count and not self._shutdown:
            self._is_open = True
            listen(self._listener, self._settings)
            for process in self._web_processes.values():
                process.send("accept")
            host, port = self._listener.getsockname()[:2]
            logger().info("listening", host=host, port=port, web_processes=count)

    def _on_death(self, web_process: WebProcess, code: int) -> None:
        """Cancels the dead web process's items in all engines. Raises ConfigurationError."""
        index = web_process.index
        del self._web_processes[index]
        self._registry.remove(web_process)
        counts = self._registry.counts
        counts.in_flight[index], counts.connections[index] = 0, UNKNOWN
        self._watch()
        if not self._shutdown:
            logger().error("a web process died", web=index, exit_code=code)
            self._deaths[index] += not self._is_open
            is_failure = code != -signal.SIGKILL or self._deaths[index] >= STARTS_IF_KILLED
            if is_failure and not self._is_open:
                raise ConfigurationError(f"a web process {describe_exit(code)}")

    def _watch(self) -> None:
        """Schedules pings while web processes may have connections, or make a change.

        TCP and gRPC report no connections.
        """
        must_ping = (
            self._shutdown
            or self._settings.tcp_port is not None
            or self._settings.grpc_port is not None
            or self._changes > 0
            or not all(web_process.ready for web_process in self._web_processes.values())
            or any(web_process.connections for web_process in self._web_processes.values())
        )
        if must_ping and self._next_ping is None:
            self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)
        elif not must_ping and self._next_ping is not None:
            self._next_ping.cancel()
            self._next_ping = None

    def _ping(self) -> None:
        self._next_ping = None
        self._watch()
        for web_process in self._web_processes.values():
            is_starting = not (web_process.ready or self._shutdown)
            web_process.ping(MAX_OF_A_START if is_starting else MAX_UNANSWERED)

    def _on_first_engine(self, supervisor: Supervisor) -> None:
        """Settles the number of web processes."""
        if self._settings.web_processes == "auto":
            signatures, schemas = supervisor.layout.signatures, supervisor.report.schemas
            task = task_of(supervisor.model, self._settings, schemas, signatures)
            count, reason = balance.web_processes(supervisor, task)
            self._registry.web_processes, self._registry.web_processes_reason = count, reason


def metrics_parent() -> Path | None:
    """Returns /dev/shm, as in a container with a read-only root, or the folder for temporary files.

    Web processes write through mappings, and the kernel kills them if there is no room. Returns None if
    neither folder is writable and has room.
    """
    for name in (SHARED_MEMORY, ""):
        with contextlib.suppress(OSError):  # there is no such folder
            folder = Path(name or tempfile.gettempdir())
            room = os.statvfs(folder)
            if os.access(folder, os.W_OK) and room.f_bavail * room.f_frsize >= METRICS_BYTES:
                return folder
    return None

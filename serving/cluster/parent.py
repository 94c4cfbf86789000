"""Parent of several web processes on one port: `python -m serving` with `web_processes` > 1.

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
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from serving.cluster import balance, messages
from serving.cluster.web_process import WebProcess
from serving.engine import scratch, topology
from serving.engine.memory import ServiceCounts
from serving.engine.provider import UNLOADED, EnginePlan, settings_beside_others
from serving.engine.supervisor import Supervisor
from serving.errors import ConfigurationError
from serving.logging import configure_logging, logger
from serving.model import Model, configured_models
from serving.protocols import tcp
from serving.server import bind, listen
from serving.settings import Settings
from serving.tasks.registry import planner, task_of

RESTART_S = 0.5
SIGNAL_S = 0.01  # enough time for the event loop to handle a signal
PING_S = 5.0
METRICS = "serving-metrics-"


class SharedEngine:
    """Engine of one model version, and the web processes that use it."""

    def __init__(self, key: int, supervisor: Supervisor) -> None:
        self.key = key
        self.supervisor = supervisor
        self.unused = asyncio.Event()
        self.unused.set()
        self._users: set[int] = set()

    def send_to(self, web_process: WebProcess) -> None:
        """Sends the engine to a web process and counts it as a user."""
        self._users.add(web_process.index)
        self.unused.clear()
        web_process.send_engine(self.key, self.supervisor)

    def release(self, web_process: WebProcess) -> None:
        """Removes a web process from the users."""
        self._users.discard(web_process.index)
        if not self._users:
            self.unused.set()


class Cluster:
    """The parent's state; `run` serves until SIGTERM or SIGINT."""

    def __init__(self, package: str, settings: Settings) -> None:
        self._package = package
        self._plan = planner(importlib.import_module(package).BACKEND, settings)
        self._settings = settings
        self._count = topology.most_web_processes(settings)
        """Number of web processes; before the first engine is loaded, its upper limit."""

        self._count_reason: str | None = None
        self._counts = ServiceCounts(self._count)
        self._web_processes: dict[int, WebProcess] = {}
        self._models = configured_models(settings)
        self._engines: list[SharedEngine] = []
        """All running engines, including those about to be replaced."""

        self._in_service: dict[str, SharedEngine] = {}
        """Name -> engine of the model in service, the default model's first."""

        self._reasons: dict[str, str] = {}
        """Name -> reason why a model has no engine."""

        self._changing = asyncio.Lock()
        self._loaded = 0
        self._loading: list[Supervisor] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_ping: asyncio.TimerHandle | None = None
        self._stopping = False
        self._accepting = False
        """Whether all web processes have been ready once; else the first would get all connections."""

    def run(self) -> int:
        """Serves and returns the exit code. Raises ConfigurationError if the service cannot start."""
        configure_logging(self._settings)
        asyncio.run(self._serve())
        return 0

    async def _serve(self) -> None:
        with contextlib.ExitStack() as held:
            self._listener = held.enter_context(bind(self._settings))
            if self._settings.tcp_port is not None:  # reserves the port; the web processes listen
                held.enter_context(tcp.bind(self._settings, shared=True))
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            folder = held.enter_context(scratch.folder(METRICS, metrics_parent()))
            if folder is None:
                raise ConfigurationError("no folder for temporary files is writable")
            self._metrics_folder = folder
            self._watch()
            plans = {name: await self._planned(model) for name, model in self._models.items()}
            default, *others = self._models.values()
            loading = self._spawn(self._load(default, plans[default.description.name]))
            try:
                if self._settings.web_processes == "auto":
                    await loading
                keepers = [self._spawn(self._keep(index)) for index in range(self._count)]
                await loading
                for model in others:
                    await self._load_beside(model, plans[model.description.name])
                await asyncio.gather(*keepers)
            except ConfigurationError:
                if not self._stopping:  # otherwise the start was aborted
                    raise
            finally:
                await self._end()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_signal(self, number: int) -> None:
        """Shuts the service down; a SIGINT during this ends it at once."""
        if self._stopping:
            if number == signal.SIGINT:
                os._exit(128 + number)  # web processes and workers die with this process
            return
        self._listener.close()  # the web processes keep theirs until they have drained
        self._stop(signal.SIGTERM)
        self._watch()

    def _stop(self, number: int) -> None:
        """Signals all web processes, prevents new starts, and aborts loading."""
        self._stopping = True
        for web_process in self._web_processes.values():
            web_process.popen.send_signal(number)
        for supervisor in self._loading:
            supervisor.abort_start()

    async def _end(self) -> None:
        """Ends all processes and tasks that were started."""
        self._stop(signal.SIGKILL)
        if self._next_ping:
            self._next_ping.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self._engines:
            await asyncio.to_thread(engine.supervisor.close)

    # -- web processes --

    async def _keep(self, index: int) -> None:
        """Keeps a web process with this index running until shutdown. Raises ConfigurationError."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                web_process = WebProcess.start(
                    index, self._count, self._package, self._listener, self._metrics_folder
                )
            except OSError as error:  # out of memory or processes, perhaps only for a while
                if not self._accepting:
                    raise ConfigurationError(f"a web process cannot be started: {error}") from error
                logger().error("a web process cannot be started", reason=str(error))
                await asyncio.sleep(RESTART_S)
                continue
            self._web_processes[index] = web_process
            for engine in self._in_service.values():
                engine.send_to(web_process)
            for name, reason in self._reasons.items():
                web_process.send("out_of_service", model=name, reason=reason)
            with web_process.sock, contextlib.suppress(ConnectionError):
                while data := await loop.sock_recv(web_process.sock, messages.MAX_MESSAGE):
                    self._on_message(web_process, json.loads(data))
            code = web_process.popen.wait()
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
                self._spawn(self._change(web_process, self._load_requested(message)))
            case "unload":
                self._spawn(self._change(web_process, self._unload(message["model"])))
            case "released":
                for engine in self._engines:
                    if engine.key == message["key"]:
                        engine.release(web_process)

    def _on_ready(self, web_process: WebProcess) -> None:
        if self._accepting:
            web_process.send("accept")
        elif (
            sum(process.ready for process in self._web_processes.values()) == self._count
            and not self._stopping
        ):
            self._accepting = True
            listen(self._listener, self._settings)
            for process in self._web_processes.values():
                process.send("accept")
            host, port = self._listener.getsockname()[:2]
            logger().info("listening", host=host, port=port, web_processes=self._count)

    def _on_death(self, web_process: WebProcess, code: int) -> None:
        """Cancels the dead web process's items in all engines. Raises ConfigurationError."""
        del self._web_processes[web_process.index]
        for engine in self._engines:
            engine.supervisor.cancel_requests_of(web_process.index)
            engine.release(web_process)
        index = web_process.index
        self._counts.in_flight[index] = self._counts.connections[index] = 0
        self._watch()
        if not self._stopping:
            logger().error("a web process died", web=web_process.index, exit_code=code)
            if code > 0 and not self._accepting:
                raise ConfigurationError(f"a web process ended with exit code {code}")

    def _watch(self) -> None:
        """Schedules pings while web processes may have connections; TCP and gRPC report none."""
        needed = (
            self._stopping
            or self._settings.tcp_port is not None
            or self._settings.grpc_port is not None
            or any(web_process.connections for web_process in self._web_processes.values())
        )
        if needed and self._next_ping is None:
            self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)
        elif not needed and self._next_ping is not None:
            self._next_ping.cancel()
            self._next_ping = None

    def _ping(self) -> None:
        self._next_ping = None
        self._watch()
        for web_process in self._web_processes.values():
            if web_process.ready or self._stopping:  # must not kill a web process that is slow to start
                web_process.ping()

    # -- engines --

    async def _planned(self, model: Model) -> EnginePlan:
        return await asyncio.to_thread(self._plan, model)  # may start a process

    async def _load(self, model: Model, plan: EnginePlan) -> None:
        """Puts a version of a model into service. Raises ConfigurationError."""
        name = model.description.name
        settings = settings_beside_others(model, self._settings, next(iter(self._models)))
        backend, signatures = plan
        supervisor = Supervisor(backend, model, signatures, settings, self._counts, self._count)
        self._loading.append(supervisor)
        try:
            if self._stopping:
                supervisor.abort_start()
            await asyncio.to_thread(supervisor.start)
        finally:
            self._loading.remove(supervisor)
        if not self._loaded and self._settings.web_processes == "auto":
            task = task_of(model, self._settings, supervisor.report.schemas, signatures)
            self._count, self._count_reason = balance.web_processes(self._settings, supervisor, task)
        supervisor.report.web_processes = self._count
        supervisor.report.web_processes_reason = self._count_reason
        engine = self._in_service[name] = SharedEngine(self._loaded, supervisor)
        self._engines.append(engine)
        self._loaded += 1
        for web_process in self._web_processes.values():
            engine.send_to(web_process)

    async def _load_beside(self, model: Model, plan: EnginePlan) -> None:
        """Puts a model other than the default into service, or reports why that is impossible."""
        try:
            async with self._changing:
                await self._load(model, plan)
        except ConfigurationError as error:
            if self._stopping:
                raise
            self._withdraw(model.description.name, str(error))

    async def _change(self, web_process: WebProcess, work: Coroutine[Any, Any, None]) -> None:
        """Makes a change requested by a web process, after all earlier changes, and replies to it."""
        error = None
        try:
            async with self._changing:
                await work
        except ConfigurationError as reason:
            error = str(reason)
        web_process.send("changed", error=error)

    async def _load_requested(self, message: dict[str, Any]) -> None:
        """Puts a model into service and closes the engine of its previous version."""
        before = self._in_service.get(message["model"])
        model = Model.read(Path(message["path"]), message["version"], message["model"])
        await self._load(model, await self._planned(model))
        self._reasons.pop(message["model"], None)
        if before:
            await self._close(before)

    async def _unload(self, name: str) -> None:
        engine = self._in_service.pop(name, None)
        self._withdraw(name, UNLOADED)
        if engine:
            await self._close(engine)

    def _withdraw(self, name: str, reason: str) -> None:
        """Tells all web processes, including those started later, that a model is out of service."""
        self._reasons[name] = reason
        for web_process in self._web_processes.values():
            web_process.send("out_of_service", model=name, reason=reason)

    async def _close(self, engine: SharedEngine) -> None:
        """Closes an engine once no web process uses it any more."""
        await engine.unused.wait()
        self._engines.remove(engine)
        await asyncio.to_thread(engine.supervisor.close)


def metrics_parent() -> Path | None:
    """Returns /dev/shm if it is writable, as in a container with a read-only root; else None."""
    shm = Path("/dev/shm")  # noqa: S108 mkdtemp makes it safe
    return shm if os.access(shm, os.W_OK) else None

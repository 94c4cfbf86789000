"""Registry: the one owner of what is in service, for the whole service.

It runs where the engines run: in the only web process or, if there are several, in their parent. Every
change goes through it, one after the other: start, load, switch, unload. An engine is loaded, serves
when every web process has prepared it, and drains when its successor serves or the model is unloaded; it
is closed when no web process uses it any more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple, Protocol

from smallplates.engine.memory import EngineFds, ServiceCounts
from smallplates.engine.report import WorkerReport
from smallplates.errors import ConfigurationError, raise_all
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.supervision.supervisor import Supervisor

UNLOADED = "unloaded"
"""The reason of a model that was unloaded on request."""

ENDING = "the service is shutting down"


class EnginePlan(NamedTuple):
    """What a model's workers run."""

    backend: str  # name of a `engine.backend.Backend`, as `module:class`
    signatures: tuple[Signature, ...]  # ways to call the network; warm-up measures the first


Planner = Callable[[Model, Event], EnginePlan]
"""Plans a model's engine; raises ConfigurationError, also if the event is set meanwhile."""


@dataclass(frozen=True)
class EngineHandle:
    """An engine with ready workers, as seen by one web process."""

    key: int  # number of the engine in its registry
    model: Model
    fds: EngineFds
    report: WorkerReport
    release: Callable[[], None]  # releases the engine when the web process has stopped using it


class Engine:
    """The engine of one version of a model, and the web processes that use it."""

    def __init__(self, key: int, supervisor: Supervisor) -> None:
        self.key = key
        self.supervisor = supervisor
        self.is_serving = False
        """Whether it answers the model's new requests: not while it loads or drains."""

        self.free = asyncio.Event()
        """Set while no web process uses it."""

        self.free.set()
        self.users: set[int] = set()
        """Indices of the web processes that have its handle."""

    @property
    def model(self) -> Model:
        """The version that it computes."""
        return self.supervisor.model

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.description.name

    def handle(self, member: int) -> EngineHandle:
        """Returns what the web process with this index needs, and counts it as a user."""
        fds, report = self.supervisor.engine_fds(member), self.supervisor.report
        self.users.add(member)
        self.free.clear()
        return EngineHandle(self.key, self.model, fds, report, partial(self.release, member))

    def release(self, member: int) -> None:
        """Removes a web process from the users."""
        self.users.discard(member)
        if not self.users:
            self.free.set()


class Member(Protocol):
    """A web process, as the registry sees it: the process itself, or the parent's end of a socket to it.

    Calls return when the process has done so, or has died.
    """

    index: int

    async def prepare(self, handle: EngineHandle) -> None:
        """Builds all that is needed to serve an engine.

        Raises ConfigurationError, and releases the engine then.
        """

    async def serve(self, key: int) -> None:
        """Answers the model's requests with a prepared engine from now on."""

    async def discard(self, key: int) -> None:
        """Releases a prepared engine that will not serve."""

    async def withdraw(self, name: str, reason: str) -> None:
        """Takes a model out of service."""


class Registry:
    """Starts engines and tells the web processes which one serves each model.

    The only web process calls `join`, `load`, `unload`, `stop` and `close`; one of several calls them on
    its `web.remote_registry.RemoteRegistry`, which passes them on.
    """

    shares_ports = False
    """Whether other web processes listen on the same ports."""

    def __init__(
        self, settings: Settings, plan: Planner, models: Mapping[str, Model], web_processes: int = 1
    ) -> None:
        """`models` maps names to the models to serve, the default model first."""
        self.settings = settings
        self.models = models
        self.web_processes = web_processes
        """Number of web processes that the engines are made for."""

        self.web_processes_reason: str | None = None
        """Why `auto` chose this number."""

        self.counts = ServiceCounts(web_processes)
        self.engines: list[Engine] = []
        """All that run, serving or not."""

        self.reasons: dict[str, str] = {}
        """Name -> reason why a model is out of service."""

        self._counters: dict[str, tuple[int, int]] = {}
        """Name -> counters of the last engine of an unloaded model."""

        self.members: dict[int, Member] = {}
        self.on_first: Callable[[Supervisor], None] = lambda _: None
        """Called with the first engine before any web process gets it."""

        self._planner = plan
        self._plans: dict[str, EnginePlan] = {}
        self._next_key = 0
        self._starts: set[Supervisor] = set()
        """Engines that are starting."""

        self._turn = asyncio.Lock()
        """Held by the change that is being made."""

        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = Event()
        """Set when the service ends."""

    # start and end

    async def join(self, member: Member) -> None:
        """Returns when the default model is in service, or is known to be unloaded.

        Calls the member for every change. Raises ConfigurationError.
        """
        await self.add(member)
        await self.start()
        self.spawn(self.start_others())

    async def start(self) -> None:
        """Puts the default model into service. Raises ConfigurationError, also if other models cannot
        be planned.
        """
        errors = []
        for name, model in self.models.items():
            try:
                self._plans[name] = await self._plan(model)
            except ConfigurationError as error:
                errors.append(error)
        raise_all(errors)
        async with self._turn:
            await self._start(next(iter(self.models)))

    async def start_others(self) -> None:
        """Puts the other models into service, or reports why that is impossible.

        Leaves out those that were loaded or unloaded meanwhile.
        """
        for name in list(self.models)[1:]:
            async with self._turn:
                if self.engine_of(name) or name in self.reasons:
                    continue
                try:
                    await self._start(name)
                except ConfigurationError as error:
                    if self._ending.is_set():
                        return
                    await self._withdraw(name, str(error))
                except Exception:  # a defect, which must not keep the other models out of service
                    logger().exception("a model cannot be loaded", model=name)
                    await self._withdraw(name, "an unexpected error, which is in the log")

    async def _start(self, name: str) -> None:
        await self._replace(self.models[name], self._plans[name])

    def stop(self) -> None:
        """Makes pending loads raise ConfigurationError; none begins any more."""
        if self.engines and not self._ending.is_set():
            logger().info("shutting down", inputs=sum(self.counts.in_flight))
        self._ending.set()
        for supervisor in self._starts:
            supervisor.abort_start()

    async def close(self) -> None:
        """Ends all engines; the web processes must have ended, or released theirs."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines:
            engine.supervisor.stop()
        for engine in self.engines:
            await asyncio.to_thread(engine.supervisor.close)
        if self.engines:
            logger().info("ended")

    # web processes

    async def add(self, member: Member) -> None:
        """Tells a new web process what is in service. Raises ConfigurationError if it cannot serve a
        model; that model is out of service there, and the others are in service.
        """
        self.members[member.index] = member
        for name, reason in list(self.reasons.items()):
            if self.reasons.get(name) == reason:  # still
                await member.withdraw(name, reason)
        failure = None
        for engine in [engine for engine in self.engines if engine.is_serving]:
            if engine.is_serving:  # still
                failure = await self._serve(member, engine) or failure
        if failure:
            raise failure

    def remove(self, member: Member) -> None:
        """Cancels the requests of a web process that has died, and releases its engines."""
        if self.members.get(member.index) is member:
            del self.members[member.index]
        for engine in self.engines:
            engine.supervisor.cancel_requests_of(member.index)
            engine.release(member.index)

    # changes

    def engine_of(self, name: str) -> Engine | None:
        """Returns the engine that serves a model."""
        engines = (engine for engine in self.engines if engine.is_serving)
        return next((engine for engine in engines if engine.name == name), None)

    async def load(self, model: Model) -> None:
        """Puts a model, or another version of it, into service everywhere. Raises ConfigurationError.

        A version that is in service is loaded again only if its files have changed. Continues if the
        caller is cancelled. If it fails, what was in service before stays so.
        """

        async def change() -> None:
            now = self.engine_of(model.description.name)
            version = model.description.version
            if now is None or (now.model.description.version, now.model.files) != (version, model.files):
                await self._replace(model, await self._plan(model))

        await self._in_turn(change)

    async def unload(self, name: str) -> None:
        """Takes a model out of service and ends its engine. Raises ConfigurationError."""

        async def change() -> None:
            if engine := self.engine_of(name):
                engine.is_serving = False
                self._counters[name] = engine.supervisor.memory.counters
                await self._withdraw(name, UNLOADED)
                await self._end(engine)

        await self._in_turn(change)

    async def _in_turn(self, change: Callable[[], Awaitable[None]]) -> None:
        """Makes a change after all earlier ones; stopping halfway would leave workers behind."""

        async def work() -> None:
            async with self._turn:
                self._check_ending()
                await change()

        await asyncio.shield(self.spawn(work()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that `close` awaits."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_ending(self) -> None:
        """Raises ConfigurationError if the service ends."""
        if self._ending.is_set():
            raise ConfigurationError(ENDING)

    async def _plan(self, model: Model) -> EnginePlan:
        self._check_ending()
        try:
            return await asyncio.to_thread(self._planner, model, self._ending)  # may start a process
        except RuntimeError as error:  # the system refuses a thread
            raise ConfigurationError(f"{model.description.name} cannot be read: {error}") from error

    async def _replace(self, model: Model, plan: EnginePlan) -> None:
        """Starts an engine, and lets it serve instead of the model's previous one.

        If a web process cannot serve it, it is closed and the previous one still serves. Raises
        ConfigurationError.
        """
        engine = Engine(self._next_key, await self._start_supervisor(model, plan))
        self._next_key += 1
        self.engines.append(engine)
        members = list(self.members.items())
        try:
            await all_of([member.prepare(engine.handle(index)) for index, member in members])
        except Exception:
            await all_of(member.discard(engine.key) for _, member in members)
            await self._end(engine)
            raise
        before = self.engine_of(engine.name)
        counters = (
            before.supervisor.memory.counters if before else self._counters.get(engine.name, (0, 0))
        )
        engine.supervisor.memory.continue_counters(counters)
        engine.is_serving = True
        self.reasons.pop(engine.name, None)
        if before:
            before.is_serving = False
        await all_of(self._serve(member, engine) for member in self.members.values())
        if before:
            await self._end(before)

    async def _serve(self, member: Member, engine: Engine) -> ConfigurationError | None:
        """Lets a web process serve an engine; returns why one that has just started cannot."""
        index = member.index
        calls = [] if index in engine.users else [member.prepare(engine.handle(index))]
        try:
            await all_of([*calls, member.serve(engine.key)])
        except ConfigurationError as error:
            await member.withdraw(engine.name, str(error))
            return error
        return None

    async def _start_supervisor(self, model: Model, plan: EnginePlan) -> Supervisor:
        """Starts a model's workers: `auto` means one for all but the default model.

        Raises ConfigurationError.
        """
        settings = model.settings(self.settings)
        is_default = model.description.name == next(iter(self.models))
        if settings.instances == "auto" and not is_default:
            settings = settings.model_copy(update={"instances": 1})
        supervisor = Supervisor(
            plan.backend, model, plan.signatures, settings, self.counts, self.web_processes
        )
        self._starts.add(supervisor)
        try:
            self._check_ending()
            start = time.monotonic()
            await asyncio.to_thread(supervisor.start)
        finally:
            self._starts.remove(supervisor)
        if not self._next_key:
            self.on_first(supervisor)
        supervisor.report.load_s = round(time.monotonic() - start, 3)
        supervisor.report.web_processes = self.web_processes
        supervisor.report.web_processes_reason = self.web_processes_reason
        return supervisor

    async def _withdraw(self, name: str, reason: str) -> None:
        self.reasons[name] = reason
        await all_of(member.withdraw(name, reason) for member in self.members.values())

    async def _end(self, engine: Engine) -> None:
        """Closes an engine once no web process uses it any more."""
        await engine.free.wait()
        self.engines.remove(engine)
        await asyncio.to_thread(engine.supervisor.close)


async def all_of(calls: Iterable[Awaitable[Any]]) -> None:
    """Awaits all calls, which begin in this order, then raises the first error, if any."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome

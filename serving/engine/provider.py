"""Engine providers: a web process starts its own engine, or uses that of the cluster's parent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serving.engine.memory import EngineFds, ServiceCounts
from serving.engine.report import WorkerReport
from serving.engine.supervisor import Supervisor
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.tensors import Signature


@dataclass(frozen=True)
class EngineHandle:
    """Engine whose workers are ready, as one web process uses it."""

    model: Model
    fds: EngineFds
    report: WorkerReport

    release: Callable[[], Awaitable[None]]
    """Gives the engine back; the web process does not use it any more."""


Adopt = Callable[[EngineHandle], Awaitable[None]]
Withdraw = Callable[[str, str], Awaitable[None]]
UNLOADED = "unloaded"


class EnginePlan(NamedTuple):
    """What the workers of a model run."""

    backend: str
    """`backends.base.Backend` as `module:class`."""

    signatures: tuple[Signature, ...]
    """How it is called; the first one is measured at warm-up."""


Planner = Callable[[Model], EnginePlan]


class OutOfService(NamedTuple):
    """A model that has no engine: it could not be started, or has been unloaded."""

    name: str
    reason: str


class EngineProvider(Protocol):
    """Source of one web process's engines."""

    shares_ports: bool
    """Whether other processes listen on this web process's ports, too."""

    def engines(self) -> AsyncIterator[EngineHandle | OutOfService]:
        """Yields the default model's engine, then those of the others as they become ready.

        In a cluster the engines of other versions follow. Raises ConfigurationError where the default
        model cannot be served, or any of them cannot be called.
        """

    async def load(self, model: Model, adopt: Adopt) -> None:
        """Loads a model; `adopt` is awaited with it. Raises ConfigurationError."""

    async def unload(self, name: str, withdraw: Withdraw) -> None:
        """Ends a model's engine; `withdraw` is awaited with the name and why."""

    def stop_loading(self) -> None:
        """Makes what has not returned yet raise ConfigurationError."""


class LocalEngines:
    """Provider that runs the supervisors in the web process's own process."""

    shares_ports = False

    def __init__(self, settings: Settings, plan: Planner, models: Mapping[str, Model]) -> None:
        """`models`: those to serve by name, the default first."""
        self._settings = settings
        self._plan = plan
        self._models = models
        self._counts = ServiceCounts()
        self._loading: set[Supervisor] = set()
        self._stopped = False

    async def engines(self) -> AsyncIterator[EngineHandle | OutOfService]:
        """See `EngineProvider`."""
        models = self._models
        plans = [await asyncio.to_thread(self._plan, model) for model in models.values()]
        for place, (name, plan) in enumerate(zip(models, plans, strict=True)):
            try:
                yield await self._load(models[name], plan)
            except ConfigurationError as error:
                if not place or self._stopped:
                    raise
                yield OutOfService(name, str(error))

    async def load(self, model: Model, adopt: Adopt) -> None:
        """See `EngineProvider`."""
        await adopt(await self._load(model, await asyncio.to_thread(self._plan, model)))

    async def unload(self, name: str, withdraw: Withdraw) -> None:
        """See `EngineProvider`."""
        await withdraw(name, UNLOADED)

    def stop_loading(self) -> None:
        """See `EngineProvider`."""
        self._stopped = True
        for supervisor in self._loading:
            supervisor.abort_start()

    async def _load(self, model: Model, plan: EnginePlan) -> EngineHandle:
        settings = settings_beside_others(model, self._settings, next(iter(self._models)))
        supervisor = Supervisor(plan.backend, model, plan.signatures, settings, self._counts)
        self._loading.add(supervisor)
        try:
            if self._stopped:
                supervisor.abort_start()
            await asyncio.to_thread(supervisor.start)
        finally:
            self._loading.remove(supervisor)

        async def release() -> None:
            await asyncio.to_thread(supervisor.close)

        return EngineHandle(model, supervisor.engine_fds(0), supervisor.report, release)


def settings_beside_others(model: Model, common: Settings, default: str) -> Settings:
    """Returns a model's settings: unless they say more, all but the default model get one instance.

    `default` is the default model's name. Raises ConfigurationError.
    """
    settings = model.settings(common)
    if settings.instances == "auto" and model.description.name != default:
        return settings.model_copy(update={"instances": 1})
    return settings

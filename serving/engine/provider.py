"""Engine providers: a web process starts its own engines or uses those of the cluster's parent."""

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
    """An engine with ready workers, as seen by one web process."""

    model: Model
    fds: EngineFds
    report: WorkerReport

    release: Callable[[], Awaitable[None]]
    """Releases the engine when the web process has stopped using it."""


Adopt = Callable[[EngineHandle], Awaitable[None]]
Withdraw = Callable[[str, str], Awaitable[None]]
UNLOADED = "unloaded"


class EnginePlan(NamedTuple):
    """What a model's workers run."""

    backend: str
    """Name of a `backends.base.Backend`, as `module:class`."""

    signatures: tuple[Signature, ...]
    """Ways to call the network; warm-up measures the first."""


Planner = Callable[[Model], EnginePlan]


class OutOfService(NamedTuple):
    """A model without an engine, because it could not be started or has been unloaded."""

    name: str
    reason: str


class EngineProvider(Protocol):
    """Provides one web process with its engines."""

    shares_ports: bool
    """Whether other web processes listen on the same ports."""

    def engines(self) -> AsyncIterator[EngineHandle | OutOfService]:
        """Yields the default model's engine, then those of the other models as they become ready.

        In a cluster, engines for other versions follow. Raises ConfigurationError if the default model
        cannot be served, or if any model cannot be planned.
        """

    async def load(self, model: Model, adopt: Adopt) -> None:
        """Loads a model and awaits `adopt` with its engine. Raises ConfigurationError."""

    async def unload(self, name: str, withdraw: Withdraw) -> None:
        """Unloads a model: awaits `withdraw` with its name and the reason."""

    def stop_loading(self) -> None:
        """Makes pending calls of the other methods raise ConfigurationError."""


class LocalEngines:
    """Provider that runs the supervisors inside the web process."""

    shares_ports = False

    def __init__(self, settings: Settings, plan: Planner, models: Mapping[str, Model]) -> None:
        """`models` maps names to the models to serve, the default model first."""
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
    """Returns a model's settings, in which `auto` instances means one for all but the default model.

    `default` is the default model's name. Raises ConfigurationError.
    """
    settings = model.settings(common)
    if settings.instances == "auto" and model.description.name != default:
        return settings.model_copy(update={"instances": 1})
    return settings

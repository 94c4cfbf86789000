"""Engine providers: a web process starts its own engine, or uses that of the cluster's parent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serving.engine.memory import EngineFds, ServiceCounts
from serving.engine.report import WorkerReport
from serving.engine.supervisor import Supervisor
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


class EnginePlan(NamedTuple):
    """What the workers of a model run."""

    backend: str
    """`backends.base.Backend` as `module:class`."""

    signatures: tuple[Signature, ...]
    """How it is called; the first one is measured at warm-up."""


Planner = Callable[[Model], EnginePlan]


class EngineProvider(Protocol):
    """Source of one web process's engines."""

    shares_ports: bool
    """Whether other processes listen on this web process's ports, too."""

    async def first(self) -> EngineHandle:
        """Returns the engine to start with. Raises ConfigurationError."""

    async def switch(self, version: str, adopt: Adopt) -> None:
        """Loads another version; `adopt` is awaited with it. Raises ConfigurationError."""

    def stop_loading(self) -> None:
        """Makes a `first` or `switch` that has not returned yet raise ConfigurationError."""


class LocalEngine:
    """Provider that runs the supervisor in the web process's own process."""

    shares_ports = False

    def __init__(self, settings: Settings, plan: Planner) -> None:
        self._settings = settings
        self._plan = plan
        self._counts = ServiceCounts()
        self._loading: Supervisor | None = None
        self._stopped = False

    async def first(self) -> EngineHandle:
        """See `EngineProvider`."""
        return await self._load(None)

    async def switch(self, version: str, adopt: Adopt) -> None:
        """See `EngineProvider`."""
        await adopt(await self._load(version))

    def stop_loading(self) -> None:
        """See `EngineProvider`."""
        self._stopped = True
        if self._loading:
            self._loading.abort_start()

    async def _load(self, version: str | None) -> EngineHandle:
        model = Model.read(self._settings.model_dir, version)
        backend, signatures = await asyncio.to_thread(self._plan, model)  # may start a process
        settings = model.settings(self._settings)
        self._loading = supervisor = Supervisor(backend, model, signatures, settings, self._counts)
        try:
            if self._stopped:
                supervisor.abort_start()
            await asyncio.to_thread(supervisor.start)
        finally:
            self._loading = None

        async def release() -> None:
            await asyncio.to_thread(supervisor.close)

        return EngineHandle(model, supervisor.engine_fds(0), supervisor.report, release)

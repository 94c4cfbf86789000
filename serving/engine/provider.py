"""Where a web process gets its engine from: it starts one, or its parent (`cluster/parent.py`) does."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from serving.engine.memory import EngineFds
from serving.engine.supervisor import Supervisor
from serving.model import Model
from serving.settings import Settings


@dataclass(frozen=True)
class EngineHandle:
    """An engine whose workers are ready, as one web process sees it."""

    model: Model
    fds: EngineFds
    profile: dict[str, Any]
    """What the first ready worker measured; see `worker.Worker.load`."""

    release: Callable[[], Awaitable[None]]
    """To be called when this web process needs it no more."""


Adopt = Callable[[EngineHandle], Awaitable[None]]


class EngineProvider(Protocol):
    """Of one web process."""

    async def first(self) -> EngineHandle:
        """The engine to begin with. Raises ConfigurationError."""

    async def switch(self, version: str, adopt: Adopt) -> None:
        """Loads another version; `adopt` is awaited with it. Raises ConfigurationError."""

    def abandon(self) -> None:
        """Nobody wants what is being loaded: `first` or `switch` raises ConfigurationError soon."""


class LocalEngine:
    """The web process is the supervisor's process, too."""

    def __init__(self, backend: str, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._loading: Supervisor | None = None

    async def first(self) -> EngineHandle:
        """See `EngineProvider`."""
        return await self._load(None)

    async def switch(self, version: str, adopt: Adopt) -> None:
        """See `EngineProvider`."""
        await adopt(await self._load(version))

    def abandon(self) -> None:
        """See `EngineProvider`."""
        if self._loading:
            self._loading.give_up()

    async def _load(self, version: str | None) -> EngineHandle:
        model = Model.read(self._settings.model_dir, version)
        self._loading = supervisor = Supervisor(self._backend, model, self._settings)
        try:
            await asyncio.to_thread(supervisor.start)
        finally:
            self._loading = None

        async def release() -> None:
            await asyncio.to_thread(supervisor.close)

        return EngineHandle(model, supervisor.engine_fds(0), supervisor.profile, release)

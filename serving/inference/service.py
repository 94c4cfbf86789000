"""The models in service, for all protocols of a web process: start, versions, readiness, end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from serving.engine import topology
from serving.engine.provider import EngineHandle, EngineProvider
from serving.engine.report import REPORT
from serving.errors import ConfigurationError, DrainingError, InvalidRequestError, UnavailableError
from serving.inference.served_model import ServedModel
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings


class InferenceService:
    """Holds the model in service, and switches its versions; made by `app.create_app`."""

    def __init__(self, settings: Settings, metrics: Metrics, provider: EngineProvider) -> None:
        self.settings = settings
        self.metrics = metrics
        self.provider = provider
        self._active: ServedModel | None = None
        self.threads = ThreadPool(topology.decoding_threads(settings))
        """Threads for blocking work: as many as cores."""

        self._not_ready = False
        self._draining = False
        self._switching = asyncio.Lock()
        self._switches: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves from the moment when the workers are ready until the block ends."""
        self.threads.start()
        await self.adopt(await self.provider.first())
        try:
            yield
        finally:
            self._draining = True
            active, self._active = self._active, None
            if active:
                active.client.close()
                await active.handle.release()
            self.threads.close()

    async def adopt(self, handle: EngineHandle) -> None:
        """Puts an engine into service; returns when its predecessor has answered all it had taken."""
        new = ServedModel(handle, self.settings, self.metrics, self.threads)
        new.draining = self._draining
        new.client.open()
        old, self._active = self._active, new
        self.metrics.follow(new.client.memory, new.web_processes)
        report = handle.report
        info = report.info
        if info.fallback:
            logger().warning("no CUDA, the CPU is used", reason=info.fallback)
        logger().info(
            "model ready",
            model=new.description.name,
            version=new.description.version,
            device=info.device,
            precision=info.precision,
            precision_reason=info.precision_reason,
            backend=info.backend,
            trials=[asdict(trial) for trial in info.trials],
            instances=handle.fds.layout.workers,
            **REPORT.dump_python(report, mode="json", exclude={"info", "schemas"}),
        )
        if old:
            await old.close()

    async def load_version(self, version: str | None) -> str:
        """Switches to another version, or to the one that model.json names; no request fails.

        Returns the version. A cancelled caller does not stop the switch: half of one would leave workers
        behind. Raises InvalidRequestError for a version that cannot be served, or DrainingError.
        """
        try:
            version = version or Model.read(self.settings.model_dir).description.version
            switch = asyncio.get_running_loop().create_task(self._switch(version))
            self._switches.add(switch)  # the loop itself keeps weak references only
            switch.add_done_callback(self._switches.discard)
            await asyncio.shield(switch)
        except ConfigurationError as error:
            raise InvalidRequestError(f"version {version} cannot be served: {error}") from error
        logger().warning("version switched", version=version)
        return version

    async def _switch(self, version: str) -> None:
        async with self._switching:
            self._check_not_draining()
            if self.active.description.version == version:
                return
            try:
                await self.provider.switch(version, self.adopt)
            except ConfigurationError:
                self._check_not_draining()
                raise

    def versions(self) -> list[str]:
        """Returns the versions in the model's folder, ascending, served or not."""
        folders = (folder for folder in self.settings.model_dir.glob("*/") if folder.is_dir())
        return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)

    def refuse_readiness(self) -> None:
        """Turns readiness false: the service will end; requests are still taken."""
        self._not_ready = True

    def start_draining(self) -> None:
        """Refuses new requests, and gives up loading a version; accepted requests go on."""
        self._draining = True
        if self._active:
            self._active.draining = True
        self.provider.stop_loading()

    async def drained(self) -> None:
        """Returns when every accepted request has been answered."""
        if self._active:
            await self._active.client.drained()

    @property
    def active(self) -> ServedModel:
        """The model in service. Raises UnavailableError before it is loaded."""
        if self._active is None:
            raise UnavailableError("the model is not loaded yet")
        return self._active

    def check_ready(self) -> None:
        """Raises DrainingError or UnavailableError unless a worker could answer now."""
        self._check_not_draining()
        if self._not_ready:
            raise DrainingError("the service is shutting down")
        self.active.check_ready()

    @property
    def is_ready(self) -> bool:
        """Tells whether `check_ready` passes."""
        try:
            self.check_ready()
        except (DrainingError, UnavailableError):
            return False
        return True

    def _check_not_draining(self) -> None:
        if self._draining:
            raise DrainingError("the service is shutting down")

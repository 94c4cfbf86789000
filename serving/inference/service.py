"""The models in service, for all protocols of a web process: start, versions, readiness, end."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

from serving.engine import topology
from serving.engine.provider import EngineHandle, EngineProvider, FailedModel
from serving.engine.report import REPORT
from serving.errors import (
    ConfigurationError,
    DrainingError,
    InvalidRequestError,
    NotFoundError,
    ServingError,
    UnavailableError,
)
from serving.inference.served_model import ServedModel
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings


class InferenceService:
    """Holds the models in service, and switches their versions; made by `app.create_app`."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        provider: EngineProvider,
        configured: Mapping[str, Model],
    ) -> None:
        """`configured`: the models to serve by name, the default first."""
        self.settings = settings
        self.metrics = metrics
        self.provider = provider
        self.configured = configured
        self.models: dict[str, ServedModel] = {}
        """The models in service by name, the default first; replaced as a whole by every change."""

        self.failures: dict[str, str] = {}
        """Why the others could not be started."""

        self.threads = ThreadPool(topology.decoding_threads(settings))
        """Threads for blocking work: as many as cores."""

        self._not_ready = False
        self._draining = False
        self._switching = asyncio.Lock()
        self._switches: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves from the moment when the default model is ready until the block ends."""
        self.threads.start()
        engines = self.provider.engines()
        first = await anext(engines)
        assert isinstance(first, EngineHandle)  # noqa: S101 else it raises
        await self.adopt(first)
        others = asyncio.get_running_loop().create_task(self._follow(engines))
        try:
            yield
        finally:
            self._draining = True
            self.provider.stop_loading()
            await others
            models, self.models = self.models, {}
            for model in models.values():
                model.client.close()
                await model.handle.release()
            self.threads.close()

    async def _follow(self, engines: AsyncIterator[EngineHandle | FailedModel]) -> None:
        """Takes the engines that come after the default model's, until the end."""
        with suppress(ConfigurationError):  # the service ends
            async for engine in engines:
                if isinstance(engine, FailedModel):
                    self._fail(*engine)
                    continue
                try:
                    await self.adopt(engine)
                except ConfigurationError as error:
                    await engine.release()
                    self._fail(engine.model.description.name, str(error))

    def _fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        logger().error("a model cannot be served", model=name, reason=reason)

    async def adopt(self, handle: EngineHandle) -> None:
        """Puts an engine into service; returns when its predecessor has answered all it had taken."""
        new = ServedModel(handle, self.settings, self.metrics, self.threads)
        new.draining = self._draining
        new.client.open()
        name = new.description.name
        self.failures.pop(name, None)
        old, served = self.models.get(name), {**self.models, name: new}
        self.models = {known: served[known] for known in self.configured if known in served}
        self.metrics.follow(name, new.client.memory, new.web_processes)
        report = handle.report
        info = report.info
        if info.fallback:
            logger().warning("no CUDA, the CPU is used", reason=info.fallback)
        logger().info(
            "model ready",
            model=name,
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

    async def load_version(self, version: str | None, name: str = "") -> str:
        """Switches a model to another version, or to the one of its model.json; no request fails.

        `name` is the default model's by default. Returns the version. A cancelled caller does not stop
        the switch: half of one would leave workers behind. Raises InvalidRequestError for a version that
        cannot be served, or DrainingError.
        """
        try:
            name = name or self.default
            version = version or Model.read(self.configured[name].path).description.version
            switch = asyncio.get_running_loop().create_task(self._switch(name, version))
            self._switches.add(switch)  # the loop itself keeps weak references only
            switch.add_done_callback(self._switches.discard)
            await asyncio.shield(switch)
        except ConfigurationError as error:
            raise InvalidRequestError(f"version {version} cannot be served: {error}") from error
        logger().warning("version switched", model=name, version=version)
        return version

    async def _switch(self, name: str, version: str) -> None:
        async with self._switching:
            self._check_not_draining()
            if name in self.models and self.models[name].description.version == version:
                return
            try:
                await self.provider.switch(name, version, self.adopt)
            except ConfigurationError:
                self._check_not_draining()
                raise

    def versions(self, name: str) -> list[str]:
        """Returns the versions in a model's folder, ascending, served or not."""
        folders = (folder for folder in self.configured[name].folder.glob("*/") if folder.is_dir())
        return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)

    def refuse_readiness(self) -> None:
        """Turns readiness false: the service will end; requests are still taken."""
        self._not_ready = True

    def start_draining(self) -> None:
        """Refuses new requests, and gives up loading a version; accepted requests go on."""
        self._draining = True
        for model in self.models.values():
            model.draining = True
        self.provider.stop_loading()

    async def drained(self) -> None:
        """Returns when every accepted request has been answered."""
        for model in self.models.values():
            await model.client.drained()

    @property
    def default(self) -> str:
        """Name of the model that is asked where a request names none."""
        return next(iter(self.configured))

    @property
    def active(self) -> ServedModel:
        """The default model. Raises UnavailableError before it is loaded."""
        return self.model(self.default)

    def model(self, name: str) -> ServedModel:
        """Returns a model by its own name.

        Raises NotFoundError for an unknown one, UnavailableError for one that is not in service.
        """
        if name in self.models:
            return self.models[name]
        if name in self.configured:
            raise UnavailableError(self.failures.get(name, f"the model {name} is not loaded yet"))
        raise NotFoundError(f"no model is named {name[:80]!r}; there are {', '.join(self.configured)}")

    def check_ready(self, model: ServedModel | None = None) -> None:
        """Raises DrainingError or UnavailableError unless a worker could answer now.

        `model` is the default one by default.
        """
        self._check_not_draining()
        if self._not_ready:
            raise DrainingError("the service is shutting down")
        (model or self.active).check_ready()

    def states(self) -> list[dict[str, str]]:
        """Returns name, title and state of each model, and the reason of what is not ready."""
        rows = []
        for name, model in self.configured.items():
            state, reason = "ready", ""
            try:
                self.model(name).check_ready()
            except ServingError as error:
                state, reason = "loading", error.detail
                if name in self.models or name in self.failures:
                    state = "unavailable"
            title = model.description.title
            rows.append({"name": name, "title": title, "state": state, "reason": reason})
        return rows

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

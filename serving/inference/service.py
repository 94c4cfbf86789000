"""The models in service, for all protocols of a web process: startup, versions, readiness, shutdown."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from serving.engine import topology
from serving.engine.provider import UNLOADED, EngineHandle, EngineProvider, OutOfService
from serving.engine.report import REPORT
from serving.errors import (
    ConfigurationError,
    DrainingError,
    InvalidRequestError,
    NotFoundError,
    ServingError,
    UnavailableError,
)
from serving.inference.served_model import ServedModel, Traffic
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model, stored_models
from serving.settings import Settings


class InferenceService:
    """Holds, loads, switches and unloads the models in service; created by `app.create_app`."""

    def __init__(
        self, settings: Settings, provider: EngineProvider, configured: Mapping[str, Model]
    ) -> None:
        """`configured` maps names to the models to serve, the default model first."""
        self.settings = settings
        self.metrics = Metrics(provider.shares_ports)
        self.provider = provider
        self.configured = configured
        self.models: dict[str, ServedModel] = {}
        """Name -> model in service, the default model first; every change replaces the whole dict."""

        self.reasons: dict[str, str] = {}
        """Name -> reason why a configured model is not in service; models being loaded have none."""

        self.threads = ThreadPool(topology.decoding_threads(settings))
        """Threads for blocking work."""

        self._traffic = Traffic()
        self._not_ready = False
        self._draining = False
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves until the block ends; the block begins when the default model is ready."""
        self.threads.start()
        engines = self.provider.engines()
        first = await anext(engines)
        if isinstance(first, OutOfService):  # it was unloaded before this process replaced a dead one
            await self.withdraw(*first)
        else:
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

    async def _follow(self, engines: AsyncIterator[EngineHandle | OutOfService]) -> None:
        """Adopts the engines that follow the default model's, until the service ends."""
        with suppress(ConfigurationError):  # raised when the service shuts down
            async for engine in engines:
                if isinstance(engine, OutOfService):
                    await self.withdraw(*engine)
                    continue
                try:
                    await self.adopt(engine)
                except ConfigurationError as error:
                    await engine.release()
                    await self.withdraw(engine.model.description.name, str(error))

    async def withdraw(self, name: str, reason: str) -> None:
        """Takes a model out of service; returns when all its accepted requests have been answered."""
        if name in self.configured:
            self.reasons[name] = reason
        models = dict(self.models)
        old = models.pop(name, None)
        self.models = models
        if unloaded := reason == UNLOADED:
            logger().warning("model unloaded", model=name)
        else:
            logger().error("a model cannot be served", model=name, reason=reason)
        self.metrics.engines.withdraw(name, failed=not unloaded)
        if old:
            await old.close()

    async def adopt(self, handle: EngineHandle) -> None:
        """Puts an engine into service; returns when its predecessor has answered all its requests."""
        new = ServedModel(handle, self.settings, self.metrics, self.threads, self._traffic)
        new.draining = self._draining
        new.client.open()
        name = new.description.name
        self.reasons.pop(name, None)
        old, served = self.models.get(name), {**self.models, name: new}
        self.models = {
            known: served[known] for known in {**self.configured, **served} if known in served
        }
        self.metrics.engines.follow(name, new.client.memory, new.web_processes)
        report = handle.report
        info = report.info
        if info.fallback:
            tell = logger().warning if topology.gpu_is_possible() else logger().info
            tell("no CUDA, the CPU is used", reason=info.fallback)
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

    async def load(self, name: str, version: str | None = None) -> str:
        """Puts a model, or another version of it, into service without failing requests.

        The model must be configured or in the store. `version` defaults to the one in its model.json.
        Returns the version. Raises NotFoundError, DrainingError, or InvalidRequestError if the version
        cannot be served.
        """
        try:
            model = Model.read(self._path(name), version, name)
            version = model.description.version
            self._check_names(model)
            await self._change(partial(self._load, model))
        except ConfigurationError as error:
            what = f"version {version}" if version else name
            raise InvalidRequestError(f"{what} cannot be served: {error}") from error
        logger().warning("version loaded", model=name, version=version)
        return version

    async def unload(self, name: str) -> None:
        """Takes a model out of service and stops its workers; accepted requests are still answered.

        Raises NotFoundError, DrainingError, or UnavailableError if the model is still being loaded.
        """
        if name not in self.reasons:
            self.model(name)
            await self._change(partial(self.provider.unload, name, self.withdraw))

    async def _change(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs a change after all earlier ones; it continues if the caller is cancelled.

        Stopping halfway would leave workers behind.
        """

        async def in_turn() -> None:
            async with self._changing:
                self._check_not_draining()
                try:
                    await work()
                except ConfigurationError:
                    self._check_not_draining()
                    raise

        change = asyncio.get_running_loop().create_task(in_turn())
        self._changes.add(change)  # the loop itself keeps weak references only
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)

    async def _load(self, model: Model) -> None:
        served = self.models.get(model.description.name)
        if served is None or served.description.version != model.description.version:
            await self.provider.load(model, self.adopt)

    def _path(self, name: str) -> Path:
        """Returns the path of a model, a folder or an .onnx file. Raises NotFoundError."""
        if name in self.known:
            return self.known[name].path
        stored = stored_models(self.settings)
        if name not in stored:
            raise NotFoundError(f"there is no model {name[:80]!r}, neither in service nor in the store")
        return stored[name]

    def _check_names(self, model: Model) -> None:
        """Raises ConfigurationError if another model already uses one of the model's names."""
        for other, known in self.known.items():
            both = known.names.keys() & model.names.keys()
            if other != model.description.name and both:
                raise ConfigurationError(f"{min(both)} is also a name of {other}")

    def versions(self, name: str) -> list[str]:
        """Returns the versions in a model's folder, ascending, served or not."""
        folders = (folder for folder in self.known[name].folder.glob("*/") if folder.is_dir())
        return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)

    def refuse_readiness(self) -> None:
        """Makes readiness checks fail because the service is about to end; still accepts requests."""
        self._not_ready = True

    def start_draining(self) -> None:
        """Refuses new requests and aborts loading; accepted requests are still answered."""
        self._draining = True
        for model in self.models.values():
            model.draining = True
        self.provider.stop_loading()

    async def drained(self) -> None:
        """Returns when every accepted request has been answered."""
        for model in self.models.values():
            await model.client.drained()

    @property
    def known(self) -> dict[str, Model]:
        """Name -> model, for models that are configured or in service; the default model first."""
        served = {name: model.handle.model for name, model in self.models.items()}
        return {**self.configured, **served}

    @property
    def default(self) -> str:
        """Name of the model for requests that name none."""
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
            if reason := self.reasons.get(name):
                raise UnavailableError(f"{name} is not in service: {reason}")
            raise UnavailableError(f"{name} is not loaded yet")
        raise NotFoundError(
            f"there is no model {name[:80]!r}; the models are {', '.join(self.configured)}"
        )

    def check_ready(self, model: ServedModel | None = None) -> None:
        """Raises DrainingError or UnavailableError unless a worker of `model` is ready.

        If `model` is None, checks the default model.
        """
        self._check_not_draining()
        if self._not_ready:
            raise DrainingError("the service is shutting down")
        (model or self.active).check_ready()

    def states(self) -> list[dict[str, str]]:
        """Returns the name, title and state of each model, and a reason if it is not ready."""
        rows = []
        for name, model in self.known.items():
            state, reason = "ready", ""
            try:
                self.model(name).check_ready()
            except ServingError as error:
                state, reason = "loading", error.detail
                if name in self.models or name in self.reasons:
                    state = "unavailable"
            title = model.description.title
            rows.append({"name": name, "title": title, "state": state, "reason": reason})
        return rows

    @property
    def is_ready(self) -> bool:
        """Whether `check_ready` passes for the default model."""
        try:
            self.check_ready()
        except (DrainingError, UnavailableError):
            return False
        return True

    def _check_not_draining(self) -> None:
        if self._draining:
            raise DrainingError("the service is shutting down")

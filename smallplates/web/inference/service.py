"""The models in service, for all protocols of a web process: startup, versions, readiness, shutdown."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from smallplates.engine import topology
from smallplates.engine.report import REPORT
from smallplates.errors import (
    ConfigurationError,
    DrainingError,
    InvalidRequestError,
    NotFoundError,
    ServingError,
    UnavailableError,
)
from smallplates.logging import logger
from smallplates.models.folder import Model, stored_models
from smallplates.settings import Settings
from smallplates.supervision.registry import UNLOADED, EngineHandle, Registry
from smallplates.web.inference.served_model import ServedModel, Traffic
from smallplates.web.inference.thread_pool import ThreadPool
from smallplates.web.metrics import Metrics
from smallplates.web.remote_registry import RemoteRegistry


class InferenceService:
    """Holds, loads, switches and unloads the models in service; created by `web.app.create_app`.

    It is a `Member` of the registry.
    """

    index = 0

    def __init__(
        self, settings: Settings, registry: Registry | RemoteRegistry, configured: Mapping[str, Model]
    ) -> None:
        """`configured` maps names to the models to serve, the default model first."""
        self.settings = settings
        self.metrics = Metrics(registry.shares_ports)
        self.registry = registry
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
        self._prepared: dict[int, ServedModel] = {}
        """Engine's number -> model that may go into service."""

        self._leaving: dict[ServedModel, asyncio.Task[None]] = {}
        """Models that have left service, until their requests have been answered."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serves until the block ends; the block begins when the default model is ready."""
        self.threads.start()
        try:
            await self.registry.join(self)
            yield
        finally:
            self._draining = True
            self.registry.stop()
            models, self.models = self.models, {}
            for task in self._leaving.values():
                task.cancel()
            for model in (*models.values(), *self._leaving, *self._prepared.values()):
                model.release()
            await self.registry.close()
            self.threads.close()

    # called by the registry

    async def prepare(self, handle: EngineHandle) -> None:
        """Builds all that is needed to serve an engine; `serve` puts it into service.

        Raises ConfigurationError, and releases the engine then.
        """
        try:
            new = await asyncio.to_thread(
                ServedModel, handle, self.settings, self.metrics, self.threads, self._traffic
            )
            new.client.open()
        except Exception as error:  # libraries raise types of their own, such as for a tokeniser's file
            handle.release()
            raise ConfigurationError(str(error)) from error
        self._prepared[handle.key] = new

    async def discard(self, key: int) -> None:
        """Releases a prepared engine that will not serve."""
        if new := self._prepared.pop(key, None):
            new.release()

    async def serve(self, key: int) -> None:
        """Puts a prepared engine into service; its predecessor still answers all its requests."""
        new = self._prepared.pop(key, None)
        if new is None:
            return
        name, report = new.description.name, new.report
        self.reasons.pop(name, None)
        old, served = self.models.get(name), {**self.models, name: new}
        self.models = {
            known: served[known] for known in {**self.configured, **served} if known in served
        }
        self.metrics.engines.follow(name, new.client.memory, new.web_processes)
        info = report.info
        if info.fallback:
            tell = logger().warning if topology.gpu_is_possible() else logger().debug
            tell("no CUDA, the CPU is used", reason=info.fallback)
        logger().info(
            "model ready",
            model=name,
            version=new.description.version,
            device=info.device,
            precision=info.precision,
            precision_reason=info.precision_reason,
            backend=info.backend,
            compared={f"{t.runtime} {t.precision}": t.ms for t in info.trials if t.ms},
            instances=new.workers,
            **REPORT.dump_python(report, mode="json", exclude={"info", "schemas"}),
        )
        logger().debug("trials", model=name, trials=[asdict(trial) for trial in info.trials])
        self._retire(old)

    async def withdraw(self, name: str, reason: str) -> None:
        """Takes a model out of service; it still answers all its requests."""
        if name in self.configured:
            self.reasons[name] = reason
        models = dict(self.models)
        old = models.pop(name, None)
        self.models = models
        if unloaded := reason == UNLOADED:
            logger().info("model unloaded", model=name)
        else:
            logger().error("a model cannot be served", model=name, reason=reason)
        self.metrics.engines.withdraw(name, failed=not unloaded)
        self._retire(old)

    def _retire(self, old: ServedModel | None) -> None:
        """Releases a model's engine once all its requests have been answered."""
        if old:
            self._leaving[old] = asyncio.get_running_loop().create_task(self._leave(old))

    async def _leave(self, old: ServedModel) -> None:
        await old.close()
        del self._leaving[old]  # not in a callback, before which `run` could release it once more

    # called by the protocols

    async def load(self, name: str, version: str | None = None) -> None:
        """Puts a model, or another version of it, into service without failing requests.

        The model must be configured or in the store. `version` defaults to the one in its model.json.
        Raises NotFoundError, DrainingError, or InvalidRequestError if the version cannot be served.
        """
        try:
            model = await asyncio.to_thread(Model.read, self._path(name), version, name)
            model.check_digest(self.settings.model_sha256)
            version = model.description.version
            self._check_names(model)
            self.check_accepting()
            await self.registry.load(model)
        except ConfigurationError as error:
            self.check_accepting()
            what = f"version {version}" if version else name
            raise InvalidRequestError(f"{what} cannot be served: {error}") from error
        logger().info("version loaded", model=name, version=version)

    async def unload(self, name: str) -> None:
        """Takes a model out of service and stops its workers; accepted requests are still answered.

        Raises NotFoundError, DrainingError, or UnavailableError if the model is still being loaded.
        """
        if name in self.reasons:
            return
        self.model(name)
        self.check_accepting()
        try:
            await self.registry.unload(name)
        except ConfigurationError:
            self.check_accepting()
            raise

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

    def refuse_readiness(self) -> None:
        """Makes readiness checks fail because the service is about to end; still accepts requests."""
        self._not_ready = True

    def start_draining(self) -> None:
        """Refuses new requests and aborts loading; accepted requests are still answered."""
        self._draining = True
        self.registry.stop()

    async def drain(self) -> None:
        """Returns when every accepted request has been answered."""
        for model in (*self.models.values(), *self._leaving):
            await model.client.drain()

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
        """Returns a model by its own name, or by an alias for requests.

        Raises NotFoundError for an unknown one, UnavailableError for one that is not in service.
        """
        if name not in self.models:
            name = self._own_name(name)
        if name in self.models:
            return self.models[name]
        if name in self.configured:
            if reason := self.reasons.get(name):
                raise UnavailableError(f"{name} is not in service: {reason}")
            raise UnavailableError(f"{name} is not loaded yet")
        raise NotFoundError(
            f"there is no model {name[:80]!r}; the models are {', '.join(self.configured)}"
        )

    def _own_name(self, alias: str) -> str:
        """Returns the name of the model with an alias for requests; the alias itself if none has it."""
        known, name = self.known, self.settings.aliases.get(alias, alias)
        if name in known:
            return name
        return next((own for own, model in known.items() if model.names.get(name) == "request"), alias)

    def check_ready(self, model: ServedModel | None = None) -> None:
        """Raises DrainingError or UnavailableError unless a worker of `model` is ready.

        If `model` is None, checks the default model.
        """
        self.check_accepting()
        if self._not_ready:
            raise DrainingError("the service is shutting down")
        (model or self.active).check_ready()

    def states(self) -> list[dict[str, str]]:
        """Returns the name, title and state of each model, and a reason unless it is ready."""
        rows = []
        for name, model in self.known.items():
            state, reason = "ready", ""
            try:
                served = self.model(name)
                self.check_accepting()
                served.check_ready()
                if reason := served.asleep:
                    state = "asleep"
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

    def check_accepting(self) -> None:
        """Raises DrainingError if new requests are refused because the service is shutting down."""
        if self._draining:
            raise DrainingError("the service is shutting down")

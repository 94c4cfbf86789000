"""The core call of every protocol: a task's inputs in, its answers out; or tensors in, tensors out.

`InferenceService` is all that protocols know of models and engines. A request holds its slots from here
to its answer, so that overload is decided before any work: acquire the slots, preprocess (on the event
loop or a thread), hand the items to the workers, await their outputs, postprocess.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from serving.engine import topology
from serving.engine.client import Outcome
from serving.engine.memory import Health
from serving.engine.provider import EngineHandle, EngineProvider
from serving.engine.statistics import BatchTotals, Totals
from serving.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    NotSupportedError,
    ServingError,
    UnavailableError,
)
from serving.inference.active_model import (
    ActiveModel,
    InferenceResult,
    Input,
    ModelMetadata,
    Predictions,
    Tensors,
)
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings
from serving.tasks.base import Candidate, Prepared, Task
from serving.tensors import Array

T = TypeVar("T")
Prepare = Callable[[], Awaitable[list[Prepared]]]


class InferenceService:
    """Infers with the model in service, and switches its versions; made by `app.create_app`."""

    def __init__(
        self, model: Model, settings: Settings, metrics: Metrics, provider: EngineProvider
    ) -> None:
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.provider = provider
        self._active: ActiveModel | None = None
        self._threads = ThreadPool(topology.decoding_threads(settings))
        self._not_ready = False
        self._draining = False
        self._switching = asyncio.Lock()
        self._switches: set[asyncio.Task[None]] = set()

    # start, versions, end

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves from the moment when the workers are ready until the block ends."""
        self._threads.start()
        await self.adopt(await self.provider.first())
        try:
            yield
        finally:
            self._draining = True
            active, self._active = self._active, None
            if active:
                active.client.close()
                await active.handle.release()
            self._threads.close()

    async def adopt(self, handle: EngineHandle) -> None:
        """Puts an engine into service; returns when its predecessor has answered all it had taken."""
        new = ActiveModel(handle, self.settings, self.metrics)
        new.client.open()
        old, self._active = self._active, new
        self.metrics.follow(new.client.memory, new.web_processes)
        info = handle.profile["info"]
        if info["fallback"]:
            logger().warning("no CUDA, the CPU is used", reason=info["fallback"])
        logger().info(
            "model ready",
            model=new.description.name,
            version=new.description.version,
            device=info["device"],
            precision=info["precision"],
            precision_reason=info["precision_reason"],
            instances=handle.fds.layout.workers,
            **{k: v for k, v in handle.profile.items() if k not in ("info", "schemas")},
        )
        if old:
            await old.client.drained()
            old.client.close()
            await old.handle.release()

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
        folders = (each for each in self.settings.model_dir.glob("*/") if each.is_dir())
        return sorted((each.name for each in folders if each.name.isdecimal()), key=int)

    def refuse_readiness(self) -> None:
        """Turns readiness false: the service will end; requests are still taken."""
        self._not_ready = True

    def start_draining(self) -> None:
        """Refuses new requests, and gives up loading a version; accepted requests go on."""
        self._draining = True
        self.provider.abandon()

    async def drained(self) -> None:
        """Returns when every accepted request has been answered."""
        if self._active:
            await self._active.client.drained()

    # what protocols ask

    @property
    def active(self) -> ActiveModel:
        """The model in service. Raises UnavailableError before it is loaded."""
        if self._active is None:
            raise UnavailableError("the model is not loaded yet")
        return self._active

    def metadata(self) -> ModelMetadata:
        """Describes the model in service. Raises UnavailableError before it is loaded."""
        return self.active.metadata()

    def describe(self) -> dict[str, Any]:
        """Returns the content of `GET /model`. Raises UnavailableError before the model is loaded."""
        return self.active.describe()

    def statistics(self, signature: int) -> tuple[Totals, dict[int, BatchTotals]]:
        """Returns totals over all requests, and by batch size, since the version is in service."""
        return self.active.statistics(signature)

    def check_ready(self) -> None:
        """Raises DrainingError or UnavailableError unless a worker could answer now."""
        self._check_open()
        if self._not_ready:
            raise DrainingError("the service is shutting down")
        if self.active.client.health is not Health.READY:
            raise UnavailableError("no worker is ready")

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

    def _check_open(self) -> None:
        self._check_not_draining()
        if self.active.client.health is Health.DOWN:
            raise UnavailableError("no worker is ready")

    def _open_model(self) -> ActiveModel:
        self._check_open()
        return self.active

    def check_free_slot(self, bulk: bool, signature: int = 0) -> None:
        """Refuses a request before its body is read. Raises RetryableError where it would fail later."""
        self._check_open()
        try:
            self.active.client.check_free(bulk)
        except ServingError:
            self.active.client.statistics.failed(signature, 0)
            raise

    @property
    def largest_request(self) -> int:
        """Inputs that one request may have: half of a web process's slots."""
        return max(1, self.active.handle.fds.layout.slots_per_frontend // 2)

    async def predict(
        self, inputs: Sequence[Input], top_k: int, deadline: float, bulk: bool = False
    ) -> Predictions:
        """Answers inputs of the task, admitted together or not at all: the best candidates of each.

        `deadline` is a time of time.monotonic(); `bulk` gives way to all other requests. Where one input
        fails, so does the request. Cancelling the task frees the slots, and work that has not begun is
        never computed. Raises what `Input.read` and the task raise, InvalidRequestError for more than
        `largest_request` inputs, OverloadedError, DrainingError, UnavailableError,
        DeadlineExceededError, InternalError or WorkerCrashedError.
        """

        model = self._open_model()

        async def preprocess() -> list[Prepared]:
            if len(inputs) == 1:
                return [await self._preprocess(model, inputs[0], bulk)]
            work = (self._preprocess_on_thread(model, each, bulk) for each in inputs)
            return list(all_or_error(await asyncio.gather(*work, return_exceptions=True)))

        signature = model.task.form or 0
        result = await self._infer(model, signature, len(inputs), preprocess, top_k, deadline, bulk)
        return Predictions(model.task, result.tops, result.timings())

    async def infer(self, inputs: Sequence[Array], deadline: float, bulk: bool = False) -> Tensors:
        """Computes the network's outputs of tensors, an array [N, *shape] for each of its inputs.

        The numbers are the client's own, so the outputs need not be finite. Raises InvalidTensorError
        for other types or shapes, InvalidRequestError for items whose outputs differ in size,
        NotSupportedError, and otherwise what `predict` raises.
        """
        model = self._open_model()
        if model.task.tensor_form is None:
            raise NotSupportedError(f"{model.description.name} does not take tensors")
        signature = model.signatures[model.task.tensor_form]

        async def check() -> list[Prepared]:
            return [Prepared(signature.items(inputs))]

        result = await self._infer(
            model, model.task.tensor_form, len(inputs[0]), check, None, deadline, bulk
        )
        columns = list(zip(*(outcome.outputs for outcome in result.outcomes), strict=True))
        for spec, column in zip(signature.outputs, columns, strict=True):
            if len({array.shape for array in column}) > 1:
                raise InvalidRequestError(f"{spec.name} differs in size between items: ask one by one")
        arrays = [np.stack(column) for column in columns]
        return Tensors(signature, arrays, model.task.labels, result.timings())

    async def run_on_thread(self, work: Callable[[], T], bulk: bool) -> T:
        """Runs blocking work on one of the preprocessing threads: there are as many as cores."""
        return await self._threads.run(work, bulk)

    async def _infer(
        self,
        model: ActiveModel,
        signature: int,
        count: int,
        prepare: Prepare,
        top_k: int | None,
        deadline: float,
        bulk: bool,
    ) -> InferenceResult:
        """Acquires slots, prepares the items, passes them through the engine, and postprocesses.

        Without `top_k` there is no task to postprocess.
        """
        check_count(count, self.largest_request)
        loop = asyncio.get_running_loop()
        admitted_at = time.monotonic()
        tops: list[list[Candidate]] = []
        try:
            with model.client.acquire(bulk, count) as slots:
                async with asyncio.timeout_at(loop.time() + deadline - admitted_at):
                    prepared = await prepare()
                    items = [item for each in prepared for item in each.items]
                    if len(items) > count:
                        check_count(len(items), self.largest_request)
                        slots.extend(len(items) - count, bulk)
                    submitted_at = time.monotonic()
                    outcomes = await slots.submit(signature, items, deadline, bulk)
                    if top_k is not None:
                        tops = await self._postprocess(model.task, prepared, outcomes, top_k, bulk)
        except BaseException as error:
            model.client.statistics.failed(signature, time.monotonic() - admitted_at)
            if isinstance(error, TimeoutError | DeadlineExceededError):
                self.metrics.expired.inc()
                raise DeadlineExceededError(
                    "the request was not answered before its deadline"
                ) from error
            if isinstance(error, asyncio.CancelledError):
                self.metrics.cancelled.inc()
            raise
        truncated = any(each.truncated for each in prepared)
        return InferenceResult(model, signature, tops, outcomes, admitted_at, submitted_at, truncated)

    async def _preprocess(self, model: ActiveModel, given: Input, bulk: bool) -> Prepared:
        """Makes an input's items: on the event loop where that is cheap, else on a thread.

        The event loop saves two changes of threads. It prepares small inputs that the task knows to be
        cheap, where the workers are slow or idle enough.
        """
        on_event_loop = model.prepares_on_event_loop or model.client.alone
        if given.size <= model.task.most_cheap_bytes and not bulk and on_event_loop:
            fields = given.read()
            hint = model.task.hint(fields)
            if hint is not None:
                return self._observe_decode(model.preprocess(fields, hint))
            given = Input(given.size, lambda: fields)
        return await self._preprocess_on_thread(model, given, bulk)

    async def _preprocess_on_thread(self, model: ActiveModel, given: Input, bulk: bool) -> Prepared:
        work = self._threads.run(lambda: model.preprocess(given.read()), bulk)
        return self._observe_decode(await work)

    def _observe_decode(self, result: tuple[Prepared, float]) -> Prepared:
        prepared, seconds = result
        self.metrics.decode.observe(seconds)
        return prepared

    async def _postprocess(
        self,
        task: Task,
        prepared: Sequence[Prepared],
        outcomes: Sequence[Outcome],
        top_k: int,
        bulk: bool,
    ) -> list[list[Candidate]]:
        """Makes the candidates of each input; on a thread for several items, or where that is slow."""
        tops, first = [], 0
        for each in prepared:
            end = first + len(each.items)
            outputs = [outcome.outputs for outcome in outcomes[first:end]]
            if len(outputs) == 1 and each.is_cheap:
                tops.append(task.postprocess(each, outputs, top_k))
            else:
                work = partial(task.postprocess, each, outputs, top_k)
                tops.append(await self._threads.run(work, bulk))
            first = end
        return tops


def check_count(count: int, most: int) -> None:
    """Raises InvalidRequestError for a number of inputs out of range."""
    if not 1 <= count <= most:
        raise InvalidRequestError(f"one request may have 1 to {most} inputs, not {count}")


def all_or_error(results: Sequence[Prepared | BaseException]) -> Iterator[Prepared]:
    """Yields what `gather` found. Raises the first error, naming the element that it is about."""
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            if isinstance(result, ServingError):
                result.detail = f"element {index}: {result.detail}"
            try:
                raise result
            finally:  # breaks the reference cycle between traceback and exception
                del result, results
        yield result

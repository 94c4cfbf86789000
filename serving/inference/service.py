"""The core call of every protocol: images or tensors in, classes or logits out.

`InferenceService` is all that protocols know of models and engines. A request holds its slots from here
to its answer, so that overload is decided before any work: acquire the slots, decode the images (on the
event loop or a thread), hand the inputs to the workers, await the logits, pick the best classes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.engine import topology
from serving.engine.memory import Health
from serving.engine.provider import EngineHandle, EngineProvider
from serving.engine.statistics import BatchTotals, Totals
from serving.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    ServingError,
    UnavailableError,
)
from serving.inference.active_model import (
    ActiveModel,
    EncodedImage,
    InferenceResult,
    Logits,
    ModelMetadata,
    Predictions,
)
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings
from serving.tasks.image.classification import best
from serving.tasks.image.decode import MAX_CHEAP_BYTES
from serving.tasks.image_classification import IMAGE, TENSOR
from serving.tensors import Item

T = TypeVar("T")
Prepare = Callable[[ActiveModel], Awaitable[list[Item]]]


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
            **{k: v for k, v in handle.profile.items() if k != "info"},
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
        folders = (each for each in self.settings.model_dir.iterdir() if each.is_dir())
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

    def check_free_slot(self, bulk: bool, signature: int = IMAGE) -> None:
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

    async def classify(
        self, images: Sequence[EncodedImage], top_k: int, deadline: float, bulk: bool = False
    ) -> Predictions:
        """Classifies images, admitted together or not at all: the `top_k` classes of each, in order.

        `deadline` is a time of time.monotonic(); `bulk` gives way to all other requests. Where one image
        fails, so does the request. Cancelling the task frees the slots, and work that has not begun is
        never computed. Raises InvalidImageError, ImageTooLargeError, what `EncodedImage.read` raises,
        InvalidRequestError for more than `largest_request` images, OverloadedError, DrainingError,
        UnavailableError, DeadlineExceededError or WorkerCrashedError.
        """

        async def decode(model: ActiveModel) -> list[Item]:
            if len(images) == 1:
                return [[await self._decode(model, images[0], bulk)]]
            decoding = (self._decode_on_thread(model, image, bulk) for image in images)
            pixels = all_or_error(await asyncio.gather(*decoding, return_exceptions=True))
            return [[each] for each in pixels]

        result = await self._infer(IMAGE, len(images), decode, deadline, bulk)
        labels = result.model.labels
        tops = [best(labels, outcome.outputs[0], top_k) for outcome in result.outcomes]
        return Predictions(tops, result.timings())

    async def infer(self, tensors: NDArray[np.float32], deadline: float, bulk: bool = False) -> Logits:
        """Normalised images [N, 3, height, width] -> logits, admitted together or not at all.

        A tensor's numbers are the client's own, so its logits need not be finite.
        Raises InvalidTensorError for another shape, and otherwise what `classify` raises.
        """

        async def check(model: ActiveModel) -> list[Item]:
            return model.signatures[TENSOR].items([tensors])

        result = await self._infer(TENSOR, len(tensors), check, deadline, bulk)
        rows = np.stack([outcome.outputs[0] for outcome in result.outcomes])
        return Logits(rows, result.model.labels, result.timings())

    async def run_on_thread(self, work: Callable[[], T], bulk: bool) -> T:
        """Runs blocking work on one of the preprocessing threads: there are as many as cores."""
        return await self._threads.run(work, bulk)

    async def _infer(
        self, signature: int, count: int, prepare: Prepare, deadline: float, bulk: bool
    ) -> InferenceResult:
        """Acquires slots, prepares the inputs, and passes them through the engine."""
        self._check_open()
        model = self.active
        if not 1 <= count <= self.largest_request:
            raise InvalidRequestError(
                f"one request may have 1 to {self.largest_request} inputs, not {count}"
            )
        loop = asyncio.get_running_loop()
        admitted_at = time.monotonic()
        try:
            with model.client.acquire(bulk, count) as slots:
                async with asyncio.timeout_at(loop.time() + deadline - admitted_at):
                    inputs = await prepare(model)
                    submitted_at = time.monotonic()
                    outcomes = await slots.submit(signature, inputs, deadline, bulk)
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
        return InferenceResult(model, signature, outcomes, admitted_at, submitted_at)

    async def _decode(self, model: ActiveModel, image: EncodedImage, bulk: bool) -> NDArray[np.uint8]:
        """Decodes to pixels [height, width, 3]: on the event loop where that is cheap, else on a thread.

        The event loop saves two changes of threads. It decodes small JPEGs, the one format whose cost is
        known beforehand, where the workers are slow or idle enough.
        """
        on_event_loop = model.decodes_on_event_loop or model.client.alone
        if image.size <= MAX_CHEAP_BYTES and not bulk and on_event_loop:
            data = image.read()
            header = model.decoder.cheap_header(data)
            if header is not None:
                return self._observe_decode(model.decode(data, header))
            image = EncodedImage(image.size, lambda: data)
        return await self._decode_on_thread(model, image, bulk)

    async def _decode_on_thread(
        self, model: ActiveModel, image: EncodedImage, bulk: bool
    ) -> NDArray[np.uint8]:
        work = self._threads.run(lambda: model.decode(image.read()), bulk)
        return self._observe_decode(await work)

    def _observe_decode(self, result: tuple[NDArray[np.uint8], float]) -> NDArray[np.uint8]:
        pixels, seconds = result
        self.metrics.decode.observe(seconds)
        return pixels


def all_or_error(results: Sequence[NDArray[np.uint8] | BaseException]) -> Iterator[NDArray[np.uint8]]:
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

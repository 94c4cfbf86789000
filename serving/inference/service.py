"""The one entry of every front-end: `classify` turns a picture file into a prediction.

The path: a slot of the engine, find and decode the picture (a thread), `Slots.submit`, softmax and
top-k. A request holds its slot from admission to answer, so that overload is decided at the door.
`classify_all` does that for several pictures of one request, `infer` for tensors that need no decoding.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.engine import gpu_monitor, topology
from serving.engine.client import Inputs
from serving.engine.memory import Health, Signature
from serving.engine.provider import EngineHandle, EngineProvider
from serving.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    InvalidTensorError,
    ServingError,
    UnavailableError,
)
from serving.inference.active_model import ActiveModel, InferenceResult, Logits, Prediction, Predictions
from serving.inference.thread_pool import ThreadPool
from serving.logging import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings
from serving.tasks.image import jpeg
from serving.tasks.image.classification import best

T = TypeVar("T")
ReadPicture = Callable[[], bytes]
SMALL_BODY = 96 * 1024  # bytes
SMALL_JPEG = 4_000_000  # pixels; what a JPEG of that many bytes and pixels costs is bounded


class Classifier:
    """Holds the engine in service and the decoding threads; made by `app.create_app`."""

    def __init__(
        self, model: Model, settings: Settings, metrics: Metrics, provider: EngineProvider
    ) -> None:
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.provider = provider
        self._served: ActiveModel | None = None
        self._decoders = ThreadPool(topology.decoding_threads(settings))
        self._leaving = False
        self._draining = False
        self._switching = asyncio.Lock()
        self._switches: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves from the moment when the workers are ready until the block ends."""
        self._decoders.start()
        await self.adopt(await self.provider.first())
        try:
            yield
        finally:
            self._draining = True
            served, self._served = self._served, None
            if served:
                served.client.close()
                await served.handle.release()
            self._decoders.close()

    async def adopt(self, handle: EngineHandle) -> None:
        """Puts an engine into service; returns when the one before has answered all it had taken."""
        new = ActiveModel(handle, self.settings, self.metrics)
        new.client.open()
        old, self._served = self._served, new
        self.metrics.follow(new.client.memory)
        if handle.profile["info"]["fallback"]:
            logger().warning("no CUDA, the CPU is used", reason=handle.profile["info"]["fallback"])
        logger().info(
            "model ready",
            model=handle.model.description.name,
            version=handle.model.description.version,
            device=handle.profile["info"]["device"],
            instances=handle.fds.layout.workers,
            **{k: v for k, v in handle.profile.items() if k != "info"},
        )
        if old:
            await old.client.drained()
            old.client.close()
            await old.handle.release()

    async def switch(self, version: str) -> None:
        """Serves another version from now on; no request fails.

        What has begun goes on where the caller is cancelled: half of it would leave workers behind.
        Raises ConfigurationError, or DrainingError where the service is to end.
        """
        switch = asyncio.get_running_loop().create_task(self._switch(version))
        self._switches.add(switch)  # the loop itself keeps weak references only
        switch.add_done_callback(self._switches.discard)
        await asyncio.shield(switch)

    async def _switch(self, version: str) -> None:
        async with self._switching:
            self._check_not_draining()
            if self.served.handle.model.description.version == version:
                return
            try:
                await self.provider.switch(version, self.adopt)
            except ConfigurationError:
                self._check_not_draining()
                raise

    @property
    def served(self) -> ActiveModel:
        """What is in service. Raises UnavailableError before the model is loaded."""
        if self._served is None:
            raise UnavailableError("the model is not loaded yet")
        return self._served

    def describe(self) -> dict[str, Any]:
        """What `/model` answers. Raises UnavailableError before the model is loaded."""
        handle = self.served.handle
        fields = {"name", "version", "description", "labels", "image", "thresholds", "accuracy"}
        profile, memory = handle.profile, self.served.client.memory
        return {
            **handle.model.description.model_dump(include=fields),
            **profile["info"],
            "instances": memory.ready_workers[0],
            "web_processes": handle.fds.layout.frontends,
            "max_batch_size": memory.smallest_cap or profile["batch_cap"],
            "batch_ms": profile["batch_ms"],
            "idle_threads": profile["idle_threads"],
            "gpus": [asdict(figures) for figures in gpu_monitor.figures(memory)],
        }

    def announce_end(self) -> None:
        """Readiness is refused from now on; requests are still taken."""
        self._leaving = True

    def start_draining(self) -> None:
        """New requests are refused from now on; what was accepted goes on, but for a version's load."""
        self._draining = True
        self.provider.abandon()

    async def drained(self) -> None:
        """Returns when everything that was accepted has been answered."""
        if self._served:
            await self._served.client.drained()

    def check_ready(self) -> None:
        """Raises DrainingError or UnavailableError unless a worker could answer now."""
        self._check_open()
        if self._leaving:
            raise DrainingError("the service is shutting down")
        if self.served.client.health is not Health.READY:
            raise UnavailableError("no worker is ready")

    def _check_not_draining(self) -> None:
        if self._draining:
            raise DrainingError("the service is shutting down")

    def _check_open(self) -> None:
        self._check_not_draining()
        if self.served.client.health is Health.DOWN:
            raise UnavailableError("no worker is ready")

    def check_free_slot(self, bulk: bool, kind: Signature = Signature.IMAGE) -> None:
        """Raises what `classify` or `infer` would raise before it does anything."""
        self._check_open()
        try:
            self.served.client.check_free(bulk)
        except ServingError:
            self.served.client.statistics.failed(kind, 0)
            raise

    @property
    def largest_request(self) -> int:
        """Inputs that one request may have: half of what the service admits at a time."""
        return max(1, self.served.handle.fds.layout.slots_per_frontend // 2)

    async def classify(
        self, read: ReadPicture, size: int, top_k: int, deadline: float, bulk: bool = False
    ) -> Prediction:
        """A picture file -> its `top_k` classes.

        `read` finds the file's bytes in the `size` bytes that the client sent; it may run on a decoding
        thread, and what it raises goes to the caller. `deadline` is a time of `time.monotonic()`;
        `bulk` gives way to everything else. Raises InvalidImageError, ImageTooLargeError,
        OverloadedError, DrainingError, UnavailableError, DeadlineExceededError or WorkerCrashedError.
        Cancelling the task frees the slot, and what has not begun is not computed.
        """

        async def prepare(served: ActiveModel) -> Inputs:
            return [await self._decode(served, read, size, bulk)]

        passage = await self._infer(Signature.IMAGE, 1, prepare, deadline, bulk)
        top = best(passage.served.labels, passage.outcomes[0].logits, top_k)
        return Prediction(top, passage.over())

    async def classify_all(
        self,
        pictures: Sequence[tuple[ReadPicture, int]],
        top_k: int,
        deadline: float,
        bulk: bool = False,
    ) -> Predictions:
        """Several pictures, admitted together or not at all -> the `top_k` classes of each, in order.

        Each is what `classify` takes; where one fails, so does the request. Raises what `classify`
        raises, and InvalidRequestError for more pictures than `largest_request`.
        """

        async def prepare(served: ActiveModel) -> Inputs:
            return list(
                all_or_error(
                    await asyncio.gather(
                        *(self._decode_on_thread(served, read, bulk) for read, _ in pictures),
                        return_exceptions=True,
                    )
                )
            )

        if len(pictures) == 1:
            one = await self.classify(*pictures[0], top_k, deadline, bulk)
            return Predictions([one.top], one.stages)
        passage = await self._infer(Signature.IMAGE, len(pictures), prepare, deadline, bulk)
        labels = passage.served.labels
        tops = [best(labels, outcome.logits, top_k) for outcome in passage.outcomes]
        return Predictions(tops, passage.over())

    async def infer(self, tensors: NDArray[np.float32], deadline: float, bulk: bool = False) -> Logits:
        """Normalised photos [N, 3, height, width] -> logits, admitted together or not at all.

        A tensor's numbers are the client's own, so its logits need not be finite.
        Raises InvalidTensorError for another shape, and otherwise what `classify_all` raises.
        """

        async def prepare(served: ActiveModel) -> Inputs:
            layout = served.handle.fds.layout
            wanted = (3, layout.height, layout.width)
            if tensors.shape[1:] != wanted:
                raise InvalidTensorError(f"the tensor's shape is {tensors.shape[1:]}, not {wanted}")
            return tensors

        passage = await self._infer(Signature.TENSOR, len(tensors), prepare, deadline, bulk)
        rows = np.stack([outcome.logits for outcome in passage.outcomes])
        return Logits(rows, passage.served.labels, passage.over())

    async def on_thread(self, work: Callable[[], T], bulk: bool) -> T:
        """Runs what would hold up the event loop, on a decoding thread: there are as many as cores."""
        return await self._decoders.run(work, bulk)

    async def _infer(
        self,
        kind: Signature,
        count: int,
        prepare: Callable[[ActiveModel], Awaitable[Inputs]],
        deadline: float,
        bulk: bool,
    ) -> InferenceResult:
        """Through the engine with what `prepare` makes while the slots are held already."""
        self._check_open()
        served = self.served
        if not 1 <= count <= self.largest_request:
            raise InvalidRequestError(
                f"one request may have 1 to {self.largest_request} inputs, not {count}"
            )
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        try:
            with served.client.acquire(bulk, count) as slots:
                async with asyncio.timeout_at(loop.time() + deadline - began):
                    inputs = await prepare(served)
                    submitted = time.monotonic()
                    outcomes = await slots.submit(kind, inputs, deadline, bulk)
        except BaseException as error:
            served.client.statistics.failed(kind, time.monotonic() - began)
            if isinstance(error, TimeoutError | DeadlineExceededError):
                self.metrics.expired.inc()
                raise DeadlineExceededError(
                    "the request was not answered before its deadline"
                ) from error
            if isinstance(error, asyncio.CancelledError):
                self.metrics.cancelled.inc()
            raise
        return InferenceResult(served, kind, outcomes, began, submitted)

    async def _decode(
        self, served: ActiveModel, read: ReadPicture, size: int, bulk: bool
    ) -> NDArray[np.uint8]:
        """Pixels [height, width, 3].

        On a decoding thread, unless the picture is small and the workers are slow enough, or idle
        enough, for the event loop to do it: that saves two changes of threads.
        """
        if size <= SMALL_BODY and not bulk and (served.decodes_at_once or served.client.alone):
            picture = read()
            head = jpeg.head(picture)  # of no other format is known beforehand what it costs
            if head is not None and head.width * head.height <= SMALL_JPEG:
                return self._decoded(served.decode(lambda: picture))
            return await self._decode_on_thread(served, lambda: picture, bulk)
        return await self._decode_on_thread(served, read, bulk)

    async def _decode_on_thread(
        self, served: ActiveModel, read: ReadPicture, bulk: bool
    ) -> NDArray[np.uint8]:
        return self._decoded(await self._decoders.run(lambda: served.decode(read), bulk))

    def _decoded(self, result: tuple[NDArray[np.uint8], float]) -> NDArray[np.uint8]:
        pixels, seconds = result
        self.metrics.decode.observe(seconds)
        return pixels


def all_or_error(results: Sequence[NDArray[np.uint8] | BaseException]) -> Iterator[NDArray[np.uint8]]:
    """What `gather` found; the first error is raised, and says which element it is about."""
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            if isinstance(result, ServingError):
                result.detail = f"element {index}: {result.detail}"
            try:
                raise result
            finally:  # else it would know itself, and stay for a while
                del result, results
        yield result

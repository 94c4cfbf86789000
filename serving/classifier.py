"""The one entry of every front-end: `classify` turns a picture file into a prediction.

The path: a slot of the engine, find and decode the picture (a thread), `Slot.submit`, softmax and
top-k. A request holds its slot from admission to answer, so that overload is decided at the door.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import cpus
from serving.decoders import DecoderThreads
from serving.engine.client import EngineClient
from serving.engine.memory import Health
from serving.engine.source import EngineSource, Offer
from serving.errors import DeadlineExceededError, DrainingError, UnavailableError
from serving.images import ImageDecoder
from serving.logs import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.settings import Settings

ReadPicture = Callable[[], bytes]
SLOW = 450.0  # pictures a second; an event loop decodes more than that of 400x300 pixels
SMALL_BODY = 96 * 1024  # bytes; what a JPEG of that size costs is bounded, whatever it says
JPEG = b"\xff\xd8"


@dataclass(frozen=True)
class Score:
    """One class and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The best classes, most probable first, and where the time went."""

    top: list[Score]
    decode_s: float
    queue_s: float
    infer_s: float


class Served:
    """One model version in service: its description, its image pipeline, its engine."""

    def __init__(self, offer: Offer, settings: Settings, metrics: Metrics) -> None:
        self.offer = offer
        self.labels = offer.model.labels
        self.decoder = ImageDecoder(offer.model.description.image, settings.max_image_pixels)
        self.client = EngineClient(offer.attachment, metrics.observe_item)
        self.slow = throughput(offer) <= SLOW * offer.attachment.geometry.webs
        """Whether one thread of each web process can decode all that the workers can compute."""

    def decode(self, read: ReadPicture) -> tuple[NDArray[np.uint8], float]:
        """Pixels, and the seconds that took; on a decoding thread."""
        started = time.perf_counter()
        return self.decoder.decode(read()), time.perf_counter() - started


class Classifier:
    """Holds the engine in service and the decoding threads; made by `app.create_app`."""

    def __init__(self, model: Model, settings: Settings, metrics: Metrics, source: EngineSource) -> None:
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.source = source
        self._served: Served | None = None
        self._decoders = DecoderThreads(cpus.usable())
        self._draining = False
        self._switching = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves from the moment when the workers are ready until the block ends."""
        self._decoders.start()
        await self.adopt(await self.source.first())
        try:
            yield
        finally:
            self._draining = True
            served, self._served = self._served, None
            if served:
                served.client.close()
                await served.offer.release()
            self._decoders.close()

    async def adopt(self, offer: Offer) -> None:
        """Puts an engine into service; returns when the one before has answered all it had taken."""
        new = Served(offer, self.settings, self.metrics)
        new.client.open()
        old, self._served = self._served, new
        self.metrics.follow(new.client.memory)
        if offer.profile["info"]["fallback"]:
            logger().warning("no CUDA, the CPU is used", reason=offer.profile["info"]["fallback"])
        logger().info(
            "model ready",
            model=offer.model.description.name,
            version=offer.model.description.version,
            device=offer.profile["info"]["device"],
            instances=offer.attachment.geometry.workers,
            **{k: v for k, v in offer.profile.items() if k != "info"},
        )
        if old:
            await old.client.drained()
            old.client.close()
            await old.offer.release()

    async def switch(self, version: str) -> None:
        """Serves another version from now on; no request fails. Raises ConfigurationError."""
        async with self._switching:
            if self.served.offer.model.description.version != version:
                await self.source.switch(version, self.adopt)

    @property
    def served(self) -> Served:
        """What is in service. Raises UnavailableError before the model is loaded."""
        if self._served is None:
            raise UnavailableError("the model is not loaded yet")
        return self._served

    def describe(self) -> dict[str, Any]:
        """What `/model` answers. Raises UnavailableError before the model is loaded."""
        offer = self.served.offer
        fields = {"name", "version", "description", "labels", "image", "thresholds", "accuracy"}
        profile = offer.profile
        return {
            **offer.model.description.model_dump(include=fields),
            **profile["info"],
            "instances": self.served.client.memory.ready_workers[0],
            "web_processes": offer.attachment.geometry.webs,
            "max_batch_size": profile["batch_cap"],
            "batch_ms": profile["batch_ms"],
            "idle_threads": profile["idle_threads"],
            "idle_ms": profile["idle_ms"],
        }

    def start_draining(self) -> None:
        """New requests are refused from now on; what was accepted goes on."""
        self._draining = True

    async def drained(self) -> None:
        """Returns when everything that was accepted has been answered."""
        if self._served:
            await self._served.client.drained()

    def check_ready(self) -> None:
        """Raises DrainingError or UnavailableError unless a worker could answer now."""
        self._check_open()
        if self.served.client.health is not Health.READY:
            raise UnavailableError("no worker is ready")

    def _check_open(self) -> None:
        if self._draining:
            raise DrainingError("the service is shutting down")
        if self.served.client.health is Health.DOWN:
            raise UnavailableError("no worker is ready")

    def check_free_slot(self, bulk: bool) -> None:
        """Raises what `classify` would raise before it does anything."""
        self._check_open()
        self.served.client.check_free(bulk)

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
        self._check_open()
        served = self.served
        loop = asyncio.get_running_loop()
        with served.client.acquire(bulk) as slot:
            try:
                async with asyncio.timeout_at(loop.time() + deadline - time.monotonic()):
                    pixels, decode_s = await self._decode(served, read, size, bulk)
                    outcome = await slot.submit(pixels, deadline, bulk)
            except (TimeoutError, DeadlineExceededError) as error:
                self.metrics.expired.inc()
                raise DeadlineExceededError(
                    "the request was not answered before its deadline"
                ) from error
            except asyncio.CancelledError:
                self.metrics.cancelled.inc()
                raise
        self.metrics.decode.observe(decode_s)
        return Prediction(
            top=best(served.labels, outcome.logits, top_k),
            decode_s=decode_s,
            queue_s=outcome.queue_s,
            infer_s=outcome.infer_s,
        )

    async def _decode(
        self, served: Served, read: ReadPicture, size: int, bulk: bool
    ) -> tuple[NDArray[np.uint8], float]:
        """Pixels, and the seconds that took.

        On a decoding thread, unless the picture is small and the workers are slow enough, or idle
        enough, for the event loop to do it: that saves two changes of threads.
        """
        if size <= SMALL_BODY and not bulk and (served.slow or served.client.alone):
            picture = read()
            if picture.startswith(JPEG):  # its size bounds its pixels, as no other format's does
                return served.decode(lambda: picture)
            return await self._decoders.run(lambda: served.decode(lambda: picture), bulk)
        return await self._decoders.run(lambda: served.decode(read), bulk)


def throughput(offer: Offer) -> float:
    """Pictures a second that all workers can compute, by what was measured at warm-up."""
    batch_ms: dict[str, float] = offer.profile["batch_ms"]
    fastest = max(int(size) / ms for size, ms in batch_ms.items())
    return 1000 * fastest * offer.attachment.geometry.workers


def best(labels: list[str], logits: list[float], top_k: int) -> list[Score]:
    """The `top_k` most probable classes, or all where there are fewer."""
    probabilities = softmax(logits)
    if top_k == 1:
        order = [probabilities.index(max(probabilities))]
    else:
        order = sorted(range(len(logits)), key=lambda i: -probabilities[i])[:top_k]
    return [Score(labels[i], probabilities[i]) for i in order]


def softmax(logits: list[float]) -> list[float]:
    """Probabilities that add up to 1; for the few classes there are, NumPy would be slower."""
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    total = sum(exponentials)
    return [value / total for value in exponentials]

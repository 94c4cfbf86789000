"""The one entry of every front-end: `classify` turns a picture file into a prediction.

The path: admission, find and decode the picture (a thread), `pool.submit`, softmax and top-k. Every
request holds a slot from admission to answer, so that overload is decided at the door.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import cpus
from serving.backend import Backend, BackendInfo
from serving.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DrainingError,
    OverloadedError,
    UnavailableError,
)
from serving.images import ImageDecoder
from serving.logs import logger
from serving.metrics import Metrics
from serving.model import Model
from serving.pool import InferencePool
from serving.settings import Settings

ReadPicture = Callable[[], bytes]


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


class Classifier:
    """Holds the loaded backend, the threads and the slots; made by `app.create_app`."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        metrics: Metrics,
        make_backend: Callable[[], Backend],
    ) -> None:
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.info: BackendInfo | None = None
        self.instances = 0
        self.batch_ms: dict[int, float] = {}
        self._decoder = ImageDecoder(model.description.image, settings.max_image_pixels)
        self._backend = make_backend()
        self._pool: InferencePool | None = None
        self._decoders: ThreadPoolExecutor | None = None
        self._in_flight = 0
        self._draining = False
        metrics.free_slots.set_function(lambda: settings.queue_size - self._in_flight)
        metrics.queue_depth.set_function(lambda: self._pool.waiting if self._pool else 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loads and warms up the model, serves until the block ends, then frees everything."""
        await asyncio.to_thread(self._load)
        try:
            yield
        finally:
            self._draining = True
            if self._decoders:
                self._decoders.shutdown(wait=True, cancel_futures=True)
            if self._pool:
                self._pool.close()
            self._pool = None
            self._backend.close()

    def _load(self) -> None:
        self.info = self._backend.load(self.model, self.settings)
        self.instances = self._instances(self.info)
        self.batch_ms = self._warm_up()
        self._decoders = ThreadPoolExecutor(cpus.usable(), thread_name_prefix="decode")
        self._pool = InferencePool(self._backend, self.instances, len(self.model.labels))
        logger().info(
            "model ready",
            model=self.model.description.name,
            version=self.model.description.version,
            device=self.info.device,
            instances=self.instances,
            batch_ms={str(size): ms for size, ms in self.batch_ms.items()},
        )

    def _instances(self, info: BackendInfo) -> int:
        if self.settings.instances != "auto":
            return self.settings.instances
        if info.device != "cpu":
            return 1
        return max(1, cpus.usable() // self.settings.intra_op_threads)

    def _warm_up(self) -> dict[int, float]:
        """Runs the batch size in use until it is warm; returns its time in ms."""
        height, width = self.model.description.image.output_size
        batch = np.zeros((1, height, width, 3), np.uint8)
        times = []
        for _ in range(10):
            started = time.perf_counter()
            logits = self._backend.infer(batch)
            times.append(time.perf_counter() - started)
        if logits.shape != (1, len(self.model.labels)):
            raise ConfigurationError(
                f"the model answers with shape {logits.shape} to one picture, "
                f"but model.json has {len(self.model.labels)} labels"
            )
        return {1: round(float(np.median(times[5:])) * 1000, 3)}

    def describe(self) -> dict[str, Any]:
        """What `/model` answers. Raises UnavailableError before the model is loaded."""
        if self.info is None:
            raise UnavailableError("the model is not loaded yet")
        fields = {"name", "version", "description", "labels", "image", "thresholds", "accuracy"}
        return {
            **self.model.description.model_dump(include=fields),
            **asdict(self.info),
            "instances": self.instances,
            "max_batch_size": max(self.batch_ms),
            "batch_ms": {str(size): ms for size, ms in self.batch_ms.items()},
        }

    def check_ready(self) -> None:
        """Raises DrainingError or UnavailableError unless requests can be answered."""
        if self._draining:
            raise DrainingError("the service is shutting down")
        if self._pool is None:
            raise UnavailableError("the model is not loaded yet")

    def check_free_slot(self) -> None:
        """Raises what `check_ready` raises, or OverloadedError when no slot is free."""
        self.check_ready()
        if self._in_flight >= self.settings.queue_size:
            raise OverloadedError(f"all {self.settings.queue_size} slots are taken")

    async def classify(self, read: ReadPicture, top_k: int, deadline: float) -> Prediction:
        """A picture file -> its `top_k` classes.

        `read` finds the file's bytes in what the client sent; it runs on a decoding thread, and what
        it raises goes to the caller. `deadline` is a time of `time.monotonic()`. Raises
        InvalidImageError, ImageTooLargeError, OverloadedError, DrainingError, UnavailableError or
        DeadlineExceededError. Cancelling the task frees the slot, and what has not begun is not
        computed.
        """
        self.check_free_slot()
        self._in_flight += 1
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout_at(loop.time() + deadline - time.monotonic()):
                return await self._classify(read, top_k, deadline)
        except (TimeoutError, DeadlineExceededError) as error:
            self.metrics.expired.inc()
            raise DeadlineExceededError("the request was not answered before its deadline") from error
        except asyncio.CancelledError:
            self.metrics.cancelled.inc()
            raise
        finally:
            self._in_flight -= 1

    async def _classify(self, read: ReadPicture, top_k: int, deadline: float) -> Prediction:
        assert self._pool is not None  # noqa: S101 check_ready holds this
        held = [read]
        try:
            pixels, decode_s = await asyncio.get_running_loop().run_in_executor(
                self._decoders, self._decode, held
            )
        finally:
            held.clear()  # a cancelled item stays in the executor's queue, its bytes must not
        outcome = await self._pool.submit(pixels, deadline)
        self.metrics.observe_stages(decode_s, outcome.queue_s, outcome.infer_s)
        return Prediction(
            top=self._best(outcome.logits, top_k),
            decode_s=decode_s,
            queue_s=outcome.queue_s,
            infer_s=outcome.infer_s,
        )

    def _decode(self, held: list[ReadPicture]) -> tuple[NDArray[np.uint8], float]:
        started = time.perf_counter()
        pixels = self._decoder.decode(held.pop()())
        return pixels, time.perf_counter() - started

    def _best(self, logits: NDArray[np.float32], top_k: int) -> list[Score]:
        probabilities = softmax(logits)
        order = np.argsort(-probabilities, kind="stable")[:top_k]
        return [Score(self.model.labels[i], float(probabilities[i])) for i in order]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """[classes] -> probabilities that add up to 1."""
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    probabilities: NDArray[np.float64] = shifted / shifted.sum()
    return probabilities

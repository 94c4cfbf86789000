"""The asyncio client."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import Self, Unpack

from serving_client import calls, photos, samples
from serving_client.calls import PredictOptions
from serving_client.dialects import DIALECTS
from serving_client.errors import DeadlineExceededError, ServingClientError, UnreachableError
from serving_client.exchange import Exchange
from serving_client.options import Options
from serving_client.photos import Photo
from serving_client.results import BatchItem, Model, Prediction, Readiness, Sample

POLL_S = (0.05, 1.0)  # first and longest pause of `wait_ready`


class AsyncClient(Options):
    """One service and a pool of connections to it: `async with AsyncClient(url) as client`.

    For one event loop, where any number of tasks may share it. Cancelling a call closes its
    connection, so that the service stops working on it. Which failures are tried again stands in
    `exchange.py`.
    """

    def __post_init__(self) -> None:
        """Connects nowhere yet."""
        super().__post_init__()
        self._exchange = Exchange(self)
        self._dialect = DIALECTS[self.protocol]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the pooled connections."""
        await self._exchange.aclose()

    async def predict(self, photo: Photo, **options: Unpack[PredictOptions]) -> Prediction:
        """The class of one photo: bytes, a path or a binary file. Raises ServingClientError.

        ValueError where an option cannot be sent at all.
        """
        started = time.monotonic()
        budget = options.get("timeout_s", self.timeout_s)
        content = await photos.content(photo)
        prediction, tries = await self._exchange.ask(
            self._dialect.predict(content, min(budget, self.service_timeout_s), options),
            lambda answer: self._dialect.prediction(answer, options.get("top_k")),
            deadline=started + budget,
            request_id=options.get("request_id"),
        )
        return prediction.after(time.monotonic() - started, tries)

    async def predict_many(
        self,
        photos: Iterable[Photo] | AsyncIterable[Photo],
        *,
        concurrency: int = 8,
        in_order: bool = True,
        **options: Unpack[PredictOptions],
    ) -> AsyncGenerator[BatchItem]:
        """One item for each photo; an error takes its photo's place, and the others go on.

        Never more than `concurrency` photos are taken from `photos` before the item of an earlier one
        has been taken from here, so that files are read as they are needed. With `in_order`, items
        come in the photos' order; without, as they finish, and one slow photo holds up no other.
        Leaving the loop early cancels what is under way when the iterator is closed.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        window: dict[asyncio.Task[BatchItem], None] = {}
        index = 0
        try:
            async for photo in each(photos):
                window[asyncio.create_task(self.item(index, photo, options))] = None
                index += 1
                if len(window) == concurrency:
                    yield await next_item(window, in_order)
            while window:
                yield await next_item(window, in_order)
        finally:
            for task in window:
                task.cancel()

    async def model(self, *, timeout_s: float | None = None) -> Model:
        """What is served. Raises ServingClientError."""
        model, _ = await self._exchange.ask(
            calls.get(self._dialect.model_path),
            self._dialect.model,
            deadline=self._deadline(timeout_s),
        )
        return model

    async def ready(self, *, timeout_s: float | None = None) -> Readiness:
        """Whether photos can be classified now, and why not; asked once.

        Raises ServingClientError when nothing answers, or not as documented.
        """
        readiness, _ = await self._exchange.ask(
            calls.get(self._dialect.ready_path),
            self._dialect.readiness,
            deadline=self._deadline(timeout_s),
            tries=1,
        )
        return readiness

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns as soon as the service is ready, also when it is only being started.

        Raises DeadlineExceededError with the last reason, InvalidAnswerError when it is no such service.
        """
        deadline, pause = time.monotonic() + timeout_s, POLL_S[0]
        reason = "it was not asked"
        while (remaining := deadline - time.monotonic()) > 0:
            with contextlib.suppress(UnreachableError, DeadlineExceededError):
                readiness = await self.ready(timeout_s=min(remaining, self.timeout_s))
                if readiness:
                    return
                reason = readiness.detail
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, POLL_S[1])
        raise DeadlineExceededError(f"the service was not ready within {timeout_s:g} s: {reason}")

    async def metrics(self, *, timeout_s: float | None = None) -> list[Sample]:
        """All values of `GET /metrics`; needs prometheus-client. Raises ServingClientError."""
        found, _ = await self._exchange.ask(
            calls.get("/metrics"), samples.read, deadline=self._deadline(timeout_s)
        )
        return found

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)

    async def item(self, index: int, photo: Photo, options: PredictOptions) -> BatchItem:
        """One photo of a batch; never raises ServingClientError."""
        try:
            return BatchItem(index, photo, await self.predict(photo, **options), None)
        except ServingClientError as error:
            return BatchItem(index, photo, None, error)


async def each(photos: Iterable[Photo] | AsyncIterable[Photo]) -> AsyncIterator[Photo]:
    """Either kind of iterable as an asynchronous one."""
    if isinstance(photos, AsyncIterable):
        async for photo in photos:
            yield photo
    else:
        for photo in photos:
            yield photo


async def next_item(window: dict[asyncio.Task[BatchItem], None], in_order: bool) -> BatchItem:
    """Takes the oldest task, or the first that has finished, out of the window."""
    if in_order:
        task = next(iter(window))
    else:
        done, _ = await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
        task = next(iter(done))
    item = await task
    del window[task]
    return item

"""Asyncio client: `AsyncClient`."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar, Unpack

from smallplates.client import answers, calls, photos, samples
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions, RequestOptions
from smallplates.client.dialects import DIALECTS
from smallplates.client.errors import DeadlineExceededError, ServingClientError, UnreachableError
from smallplates.client.exchange import Exchange
from smallplates.client.options import Options
from smallplates.client.photos import Photo
from smallplates.client.results import (
    BatchItem,
    Model,
    Prediction,
    QuestionAnswer,
    Readiness,
    Result,
    Sample,
)

R = TypeVar("R", bound=Result)
POLL_S = (0.05, 1.0)  # first and longest pause of `wait_ready`


class AsyncClient(Options):
    """Client of one service for asyncio: `async with AsyncClient(url) as client`.

    Belongs to one event loop; any number of its tasks may share it. Cancelling a call closes its
    connection, so that the service stops working on it. `exchange.py` says which failures are retried.
    """

    def __post_init__(self) -> None:
        """Checks the options. Connects nowhere yet."""
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
        """Classifies one photo, given as bytes, a path or a binary file.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        started = time.monotonic()
        content = await photos.content(photo)
        budget = min(options.get("timeout_s", self.timeout_s), self.service_timeout_s)
        call = self._dialect.predict(content, budget, options)
        return await self._ask(call, self._dialect.prediction, options, started)

    async def classify_text(
        self, text: str, text_pair: str | None = None, **options: Unpack[RequestOptions]
    ) -> Prediction:
        """Classifies a text, or a pair of texts.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        call = self._native({"text": text, "text_pair": text_pair}, options)
        return await self._ask(call, answers.prediction, options, time.monotonic())

    async def answer(
        self,
        question: str,
        context: str,
        *,
        allow_no_answer: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> QuestionAnswer:
        """Answers a question by a part of the context; or by none, where that is allowed.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        fields = {"question": question, "context": context, "allow_no_answer": allow_no_answer}
        call = self._native(fields, options)
        return await self._ask(call, answers.question_answer, options, time.monotonic())

    async def call(self, fields: Mapping[str, object], **options: Unpack[RequestOptions]) -> Result:
        """Calls a model of any task with the fields of its request, as JSON; the answer is `body`.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        call = self._native(fields, options)
        return await self._ask(call, answers.result, options, time.monotonic())

    def _native(self, fields: Mapping[str, object], options: RequestOptions) -> Call:
        """Builds a request of fields. Raises ValueError with another protocol."""
        if self.protocol != "native":
            raise ValueError(f"the protocol {self.protocol!r} supports only photos")
        return calls.ask(fields, options)

    async def _ask(
        self,
        call: Call,
        read: Callable[[Answer, int | None], R],
        options: RequestOptions,
        started: float,
    ) -> R:
        """Sends a request to the model; `started` is a time of `time.monotonic()`."""
        result, tries = await self._exchange.ask(
            call,
            lambda answer: read(answer, options.get("top_k")),
            deadline=started + options.get("timeout_s", self.timeout_s),
            request_id=options.get("request_id"),
            traceparent=options.get("traceparent"),
        )
        return result.after(time.monotonic() - started, tries)

    async def predict_many(
        self,
        photos: Iterable[Photo] | AsyncIterable[Photo],
        *,
        concurrency: int = 8,
        in_order: bool = True,
        **options: Unpack[PredictOptions],
    ) -> AsyncGenerator[BatchItem]:
        """Classifies photos, at most `concurrency` at the same time; yields one item per photo.

        A photo that fails yields an item with its error, and the others go on. The next photo is taken
        from `photos` only when an earlier item has been consumed, so that files are read as needed. With
        `in_order`, items come in the photos' order; without, as they finish, so that a slow photo delays
        no other. Closing the generator early cancels the calls in flight. Raises ValueError for a
        `concurrency` below 1.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        window: dict[asyncio.Task[BatchItem], None] = {}
        index = 0
        try:
            async for photo in as_async(photos):
                window[asyncio.create_task(self.item(index, photo, options))] = None
                index += 1
                if len(window) == concurrency:
                    yield await next_item(window, in_order)
            while window:
                yield await next_item(window, in_order)
        finally:
            for task in window:
                task.cancel()

    async def model(self, name: str | None = None, *, timeout_s: float | None = None) -> Model:
        """Returns the model of this name, by default the service's default model.

        `timeout_s` replaces the client's own. Raises ServingClientError.
        """
        model, _ = await self._exchange.ask(
            calls.get(self._dialect.model_path(name)),
            self._dialect.model,
            deadline=self._deadline(timeout_s),
        )
        return model

    async def ready(self, *, timeout_s: float | None = None) -> Readiness:
        """Returns whether photos can be classified now, and the reason if not; never retries.

        Raises ServingClientError when nothing answers, or the answer is not as documented.
        """
        readiness, _ = await self._exchange.ask(
            calls.get(self._dialect.ready_path),
            self._dialect.readiness,
            deadline=self._deadline(timeout_s),
            tries=1,
        )
        return readiness

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the service is ready, at most `timeout_s` seconds; it may still be starting.

        Raises DeadlineExceededError with the last reason, and InvalidAnswerError from another service.
        """
        deadline, pause = time.monotonic() + timeout_s, POLL_S[0]
        reason = "the input was not sent"
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
        """Returns all values of `GET /metrics`.

        Raises ServingClientError, and ImportError without prometheus-client.
        """
        result, _ = await self._exchange.ask(
            calls.get("/metrics"), samples.read, deadline=self._deadline(timeout_s)
        )
        return result

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)

    async def item(self, index: int, photo: Photo, options: PredictOptions) -> BatchItem:
        """Classifies one photo of a batch; returns its ServingClientError instead of raising it."""
        try:
            return BatchItem(index, photo, await self.predict(photo, **options), None)
        except ServingClientError as error:
            return BatchItem(index, photo, None, error)


async def as_async(photos: Iterable[Photo] | AsyncIterable[Photo]) -> AsyncIterator[Photo]:
    """Iterates over either kind of iterable asynchronously."""
    if isinstance(photos, AsyncIterable):
        async for photo in photos:
            yield photo
    else:
        for photo in photos:
            yield photo


async def next_item(window: dict[asyncio.Task[BatchItem], None], in_order: bool) -> BatchItem:
    """Removes the oldest task, or the first that finishes, from the window and returns its result."""
    if in_order:
        task = next(iter(window))
    else:
        done, _ = await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
        task = next(iter(done))
    item = await task
    del window[task]
    return item

"""Asyncio client: `AsyncClient`."""

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Self, TypeVar, Unpack

from smallplates.client import answers, calls, native, photos, samples
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions, RequestOptions
from smallplates.client.dialects import DIALECTS
from smallplates.client.errors import DeadlineExceededError, ServingClientError, UnreachableError
from smallplates.client.exchange import Exchange
from smallplates.client.options import Options
from smallplates.client.photos import Photo
from smallplates.client.results import (
    BatchItem,
    Embeddings,
    Model,
    Prediction,
    QuestionAnswer,
    Ranking,
    Readiness,
    Result,
    Sample,
)

T = TypeVar("T")
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

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the pooled connections."""
        await self._exchange.aclose()

    async def call(self, fields: Mapping[str, object], **options: Unpack[RequestOptions]) -> Result:
        """Calls a model of any task with the fields of its request, as JSON; the answer is `body`.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        return await self._ask(fields, answers.result, options)

    async def predict(self, photo: Photo, **options: Unpack[PredictOptions]) -> Prediction:
        """Classifies one photo, given as bytes, a path or a binary file.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        start = time.monotonic()
        content = await photos.content(photo)
        budget = min(options.get("timeout_s", self.timeout_s), self.service_timeout_s)
        call = self._dialect.predict(content, budget, options)
        top_k = options.get("top_k")
        return await self.send(
            call, lambda answer: self._dialect.prediction(answer, top_k), options, start=start
        )

    async def classify_text(
        self, text: str, text_pair: str | None = None, **options: Unpack[RequestOptions]
    ) -> Prediction:
        """Classifies a text, or a pair of texts.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        fields, top_k = {"text": text, "text_pair": text_pair}, options.get("top_k")
        return await self._ask(fields, lambda answer: native.prediction(answer, top_k), options)

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
        top_k = options.get("top_k")
        return await self._ask(fields, lambda answer: native.question_answer(answer, top_k), options)

    async def embed(
        self,
        texts: str | Sequence[str],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> Embeddings:
        """Returns the vector of each text; None: as the model's files say.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        fields: dict[str, object] = {"text": listed, "dimensions": dimensions, "normalize": normalize}
        fields |= {"prompt_name": prompt_name, "truncate": truncate}
        return await self._ask(fields, lambda answer: native.embeddings(answer, len(listed)), options)

    async def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool | None = None,
        truncate: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> Ranking:
        """Sorts texts by how well they fit the query.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        listed = list(texts)
        fields = {"query": query, "texts": listed, "raw_scores": raw_scores, "truncate": truncate}
        return await self._ask(fields, lambda answer: native.ranking(answer, listed), options)

    async def _ask(
        self, fields: Mapping[str, object], read: Callable[[Answer], T], options: RequestOptions
    ) -> T:
        if self.protocol != "native":
            raise ValueError(f"the protocol {self.protocol!r} supports only photos")
        return await self.send(native.ask(fields, options), read, options)

    async def send(
        self,
        call: Call,
        read: Callable[[Answer], T],
        options: RequestOptions | None = None,
        *,
        start: float | None = None,
        tries: int | None = None,
    ) -> T:
        """Sends any request, with retries, and returns what `read` makes of the answer 200.

        `start` is the time of `time.monotonic()` from which the budget counts, by default now. Raises
        ServingClientError, and ValueError for an option that no request can carry.
        """
        start = time.monotonic() if start is None else start
        return await self._exchange.ask(call, read, options or {}, start, tries)

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

    async def item(self, index: int, photo: Photo, options: PredictOptions) -> BatchItem:
        """Classifies one photo of a batch; returns its ServingClientError instead of raising it."""
        try:
            return BatchItem(index, photo, await self.predict(photo, **options), None)
        except ServingClientError as error:
            return BatchItem(index, photo, None, error)

    async def model(self, name: str | None = None, *, timeout_s: float | None = None) -> Model:
        """Returns the model of this name, by default the service's default model.

        `timeout_s` replaces the client's own. Raises ServingClientError.
        """
        call = calls.get(self._dialect.model_path(name))
        return await self.send(call, self._dialect.model, within(timeout_s))

    async def ready(self, *, timeout_s: float | None = None) -> Readiness:
        """Returns whether photos can be classified now, and the reason if not; never retries.

        Raises ServingClientError when nothing answers, or the answer is not as documented.
        """
        call = calls.get(self._dialect.READY_PATH)
        try:
            return await self.send(call, lambda _: Readiness(True, ""), within(timeout_s), tries=1)
        except ServingClientError as error:
            if error.status not in self._dialect.NOT_READY:
                raise
            return Readiness(False, error.detail if error.body else "the model is not ready")

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
        return await self.send(calls.get("/metrics"), samples.read, within(timeout_s))


def within(timeout_s: float | None) -> RequestOptions:
    """Returns the options with this budget; None: the client's own."""
    return {} if timeout_s is None else {"timeout_s": timeout_s}


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

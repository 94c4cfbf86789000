"""Client for threads: runs the asyncio client on an event loop in a thread of its own.

So the logic exists once, deadlines are exact, and another thread can cancel any call.
"""

import weakref
from collections.abc import Coroutine, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import fields
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from smallplates.client.aio import AsyncClient
from smallplates.client.calls import PredictOptions, RequestOptions
from smallplates.client.loop import LoopThread
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

T = TypeVar("T")


class Client(Options):
    """Client of one service for threads: `with Client(url) as client`.

    Threads may share it; it also works beside a running event loop, as in a notebook. A forked child
    needs a client of its own. `exchange.py` says which failures are retried.
    """

    def __post_init__(self) -> None:
        """Checks the options. Connects nowhere and starts no thread yet."""
        super().__post_init__()
        options: dict[str, Any] = {  # Any: of all their types
            option.name: getattr(self, option.name) for option in fields(Options)
        }
        self._client = AsyncClient(**options)
        self._thread = LoopThread()
        self._finalizer = weakref.finalize(self, close, self._thread, self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the calls in flight and closes the connections."""
        self._finalizer()

    def predict(self, photo: Photo, **options: Unpack[PredictOptions]) -> Prediction:
        """Classifies one photo, given as bytes, a path or a binary file.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        return self._wait(self._client.predict(photo, **options))

    def classify_text(
        self, text: str, text_pair: str | None = None, **options: Unpack[RequestOptions]
    ) -> Prediction:
        """Classifies a text, or a pair of texts.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        return self._wait(self._client.classify_text(text, text_pair, **options))

    def answer(
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
        work = self._client.answer(question, context, allow_no_answer=allow_no_answer, **options)
        return self._wait(work)

    def call(self, fields: Mapping[str, object], **options: Unpack[RequestOptions]) -> Result:
        """Calls a model of any task with the fields of its request, as JSON; the answer is `body`.

        Raises ServingClientError, and ValueError for an option that no request can carry.
        """
        return self._wait(self._client.call(fields, **options))

    def submit(self, photo: Photo, **options: Unpack[PredictOptions]) -> Future[Prediction]:
        """Starts `predict` and returns its future at once.

        Cancelling the future closes the connection, and the service stops working on the photo.
        """
        return self._thread.submit(self._client.predict(photo, **options))

    def predict_many(
        self,
        photos: Iterable[Photo],
        *,
        concurrency: int = 8,
        in_order: bool = True,
        **options: Unpack[PredictOptions],
    ) -> Generator[BatchItem]:
        """Classifies photos, at most `concurrency` at the same time; yields one item per photo.

        A photo that fails yields an item with its error, and the others go on. The next photo is taken
        from `photos` only when an earlier item has been consumed, so that files are read as needed. With
        `in_order`, items come in the photos' order; without, as they finish, so that a slow photo delays
        no other. Closing the generator early cancels the calls in flight. Raises ValueError for a
        `concurrency` below 1.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        window: dict[Future[BatchItem], None] = {}
        try:
            for index, photo in enumerate(photos):
                window[self._thread.submit(self._client.item(index, photo, options))] = None
                if len(window) == concurrency:
                    yield next_item(window, in_order)
            while window:
                yield next_item(window, in_order)
        finally:
            for future in window:
                future.cancel()

    def model(self, name: str | None = None, *, timeout_s: float | None = None) -> Model:
        """Returns the model of this name, by default the service's default model.

        `timeout_s` replaces the client's own. Raises ServingClientError.
        """
        return self._wait(self._client.model(name, timeout_s=timeout_s))

    def ready(self, *, timeout_s: float | None = None) -> Readiness:
        """Returns whether photos can be classified now, and the reason if not; never retries.

        Raises ServingClientError when nothing answers, or the answer is not as documented.
        """
        return self._wait(self._client.ready(timeout_s=timeout_s))

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the service is ready, at most `timeout_s` seconds; it may still be starting.

        Raises DeadlineExceededError with the last reason, and InvalidAnswerError from another service.
        """
        self._wait(self._client.wait_ready(timeout_s))

    def metrics(self, *, timeout_s: float | None = None) -> list[Sample]:
        """Returns all values of `GET /metrics`.

        Raises ServingClientError, and ImportError without prometheus-client.
        """
        return self._wait(self._client.metrics(timeout_s=timeout_s))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; cancels it when Ctrl-C interrupts the wait."""
        future = self._thread.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()


def close(thread: LoopThread, client: AsyncClient) -> None:
    """Ends thread and client; a finalizer calls it for clients that were never closed."""
    thread.close(client.aclose())


def next_item(window: dict[Future[BatchItem], None], in_order: bool) -> BatchItem:
    """Removes the oldest future, or the first that finishes, from the window and returns its result."""
    if in_order:
        future = next(iter(window))
    else:
        future = next(iter(wait(window, return_when=FIRST_COMPLETED).done))
    item = future.result()
    del window[future]
    return item

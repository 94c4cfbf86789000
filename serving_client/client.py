"""The client for threads: the asyncio client, on an event loop in a thread of its own.

Everything is written once, deadlines are exact, and any call can be cancelled from another thread.
"""

import weakref
from collections.abc import Coroutine, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import fields
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from serving_client.aio import AsyncClient
from serving_client.calls import PredictOptions
from serving_client.loop import LoopThread
from serving_client.options import Options
from serving_client.photos import Photo
from serving_client.results import BatchItem, Model, Prediction, Readiness, Sample

T = TypeVar("T")


class Client(Options):
    """One service and a pool of connections to it: `with Client(url) as client`.

    Safe to share among threads, also beside a running event loop (in a notebook); after a fork, the
    child needs one of its own. Which failures are tried again stands in `exchange.py`.
    """

    def __post_init__(self) -> None:
        """Connects nowhere, and starts no thread, yet."""
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
        """Cancels what is under way and closes the connections."""
        self._finalizer()

    def predict(self, photo: Photo, **options: Unpack[PredictOptions]) -> Prediction:
        """The class of one photo: bytes, a path or a binary file. Raises ServingClientError.

        ValueError where an option cannot be sent at all.
        """
        return self._wait(self._client.predict(photo, **options))

    def submit(self, photo: Photo, **options: Unpack[PredictOptions]) -> Future[Prediction]:
        """`predict` without waiting; cancelling the future closes the connection, and the work ends."""
        return self._thread.submit(self._client.predict(photo, **options))

    def predict_many(
        self,
        photos: Iterable[Photo],
        *,
        concurrency: int = 8,
        in_order: bool = True,
        **options: Unpack[PredictOptions],
    ) -> Generator[BatchItem]:
        """One item for each photo; an error takes its photo's place, and the others go on.

        Never more than `concurrency` photos are taken from `photos` before the item of an earlier one
        has been taken from here, so that files are read as they are needed. With `in_order`, items
        come in the photos' order; without, as they finish, and one slow photo holds up no other.
        Leaving the loop early cancels what is under way.
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

    def model(self, *, timeout_s: float | None = None) -> Model:
        """What is served. Raises ServingClientError."""
        return self._wait(self._client.model(timeout_s=timeout_s))

    def ready(self, *, timeout_s: float | None = None) -> Readiness:
        """Whether photos can be classified now, and why not; asked once.

        Raises ServingClientError when nothing answers, or not as documented.
        """
        return self._wait(self._client.ready(timeout_s=timeout_s))

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns as soon as the service is ready, also when it is only being started.

        Raises DeadlineExceededError with the last reason, InvalidAnswerError when it is no such service.
        """
        self._wait(self._client.wait_ready(timeout_s))

    def metrics(self, *, timeout_s: float | None = None) -> list[Sample]:
        """All values of `GET /metrics`; needs prometheus-client. Raises ServingClientError."""
        return self._wait(self._client.metrics(timeout_s=timeout_s))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Also Ctrl-C, which interrupts the waiting, cancels the work."""
        future = self._thread.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()


def close(thread: LoopThread, client: AsyncClient) -> None:
    """Ends both; a client that nobody closes gets here when it is collected, or at exit."""
    thread.close(client.aclose())


def next_item(window: dict[Future[BatchItem], None], in_order: bool) -> BatchItem:
    """Takes the oldest future, or the first that has finished, out of the window."""
    if in_order:
        future = next(iter(window))
    else:
        future = next(iter(wait(window, return_when=FIRST_COMPLETED).done))
    item = future.result()
    del window[future]
    return item

"""Client for threads: runs the asyncio client on an event loop in a thread of its own.

So the logic exists once, deadlines are exact, and another thread can cancel any call.
"""

import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from smallplates.client.aio import AsyncClient
from smallplates.client.calls import PredictOptions
from smallplates.client.loop import LoopThread
from smallplates.client.options import Options
from smallplates.client.photos import Photo
from smallplates.client.results import BatchItem, Prediction

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Makes a method of `Client` of one of `AsyncClient`."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(method(self.asynchronous, *args, **kwargs))

    return call


class Client(Options):
    """Client of one service for threads: `with Client(url) as client`.

    Threads may share it; it also works beside a running event loop, as in a notebook. A forked child
    needs a client of its own. `exchange.py` says which failures are retried.
    """

    call = blocking(AsyncClient.call)
    predict = blocking(AsyncClient.predict)
    classify_text = blocking(AsyncClient.classify_text)
    answer = blocking(AsyncClient.answer)
    embed = blocking(AsyncClient.embed)
    rerank = blocking(AsyncClient.rerank)
    model = blocking(AsyncClient.model)
    ready = blocking(AsyncClient.ready)
    wait_ready = blocking(AsyncClient.wait_ready)
    metrics = blocking(AsyncClient.metrics)

    def __post_init__(self) -> None:
        """Checks the options. Connects nowhere and starts no thread yet."""
        super().__post_init__()
        options: dict[str, Any] = {  # Any: of all their types
            option.name: getattr(self, option.name) for option in fields(Options)
        }
        self.asynchronous = AsyncClient(**options)
        self._thread = LoopThread()
        self._finalizer = weakref.finalize(self, close, self._thread, self.asynchronous)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the calls in flight and closes the connections."""
        self._finalizer()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a call of `asynchronous` and returns its future at once.

        Cancelling the future closes the connection, and the service stops working on the request.
        """
        return self._thread.submit(work)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a call of `asynchronous` to its end; cancels it when Ctrl-C interrupts the wait."""
        future = self.start(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def submit(self, photo: Photo, **options: Unpack[PredictOptions]) -> Future[Prediction]:
        """Starts `predict` and returns its future at once, which may be cancelled."""
        return self.start(self.asynchronous.predict(photo, **options))

    def predict_many(
        self,
        photos: Iterable[Photo],
        *,
        concurrency: int = 8,
        in_order: bool = True,
        **options: Unpack[PredictOptions],
    ) -> Generator[BatchItem]:
        """Classifies photos as `AsyncClient.predict_many` does."""
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        window: dict[Future[BatchItem], None] = {}
        try:
            for index, photo in enumerate(photos):
                window[self.start(self.asynchronous.item(index, photo, options))] = None
                if len(window) == concurrency:
                    yield next_item(window, in_order)
            while window:
                yield next_item(window, in_order)
        finally:
            for future in window:
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

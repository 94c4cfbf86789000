"""Ends a request to the API when the browser that waits for it has gone.

Waitress can only be asked whether a client is still there, so a thread asks; cancelling the future
closes the connection, and the API sees its client leave.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

LOOK_EVERY_S = 0.1
T = TypeVar("T")


class Call:
    """One exchange with the API, retries included, that another thread may end."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._cancelled = False
        self._cancel: Callable[[], object] | None = None

    def cancel(self) -> None:
        """Ends the exchange, or keeps it from starting."""
        with self._guard:
            self._cancelled = True
            cancel = self._cancel
        if cancel is not None:
            cancel()

    def wait_for(self, start: Callable[[], Future[T]]) -> T:
        """Starts the exchange and waits. Raises what it does, and concurrent.futures.CancelledError."""
        future: Future[T] = Future()
        with self._guard:
            if self._cancelled:
                future.cancel()
            else:
                future = start()
                self._cancel = future.cancel
        return future.result()

    @contextmanager
    def cancelled_when(self, gone: Callable[[], bool] | None) -> Iterator[None]:
        """Inside the block, a thread asks `gone` ten times a second and cancels when it is true."""
        if gone is None:
            yield
            return
        if gone():  # while the request waited for a thread
            self.cancel()
        done = threading.Event()

        def look() -> None:
            while not done.wait(LOOK_EVERY_S):
                if gone():
                    self.cancel()
                    return

        thread = threading.Thread(target=look, name="client watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

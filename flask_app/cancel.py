"""Ends a request to the API from another thread.

`requests` has no way to cancel. Here its connections (urllib3's) note which call uses them, so
that `Call.cancel()` can shut the right socket down: the waiting thread wakes up at once, and the
API sees its client leave. A pooled connection that meanwhile serves another call is left alone.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

LOOK_EVERY_S = 0.1


class CancelledError(Exception):
    """Raised in the thread that makes the call, before anything is sent."""


class Call:
    """One exchange with the API, retries included, that another thread may end."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._connection: _Owned | None = None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def pause(self, seconds: float) -> bool:
        """Waits; True when cancelled meanwhile."""
        return self._cancelled.wait(seconds)

    def cancel(self) -> None:
        """Ends the exchange: closes its connection, or keeps it from starting."""
        self._cancelled.set()
        if self._connection is not None:
            self._connection.shut_down(self)

    def take(self, connection: "_Owned") -> None:
        """Notes the connection in use. Raises CancelledError."""
        self._connection = connection
        if self.cancelled:
            raise CancelledError

    @contextmanager
    def made_by_this_thread(self) -> Iterator[None]:
        """Connections that this thread uses inside the block belong to this call."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._connection = None

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


_current: ContextVar[Call | None] = ContextVar("call", default=None)


class _Owned(HTTPConnection):
    """A connection that knows the call it works for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: urllib3's own signature
        super().__init__(*args, **kwargs)
        self._guard = threading.Lock()
        self._owner: Call | None = None

    def connect(self) -> None:
        super().connect()
        self._belong()

    def request(self, *args: Any, **kwargs: Any) -> None:  # Any: urllib3's own signature
        self._belong()
        super().request(*args, **kwargs)

    def shut_down(self, call: Call) -> None:
        """Shuts the socket down if it still works for this call."""
        with self._guard:
            if self._owner is call and self.sock is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def _belong(self) -> None:
        if call := _current.get():
            with self._guard:
                self._owner = call
            call.take(self)


class _OwnedTls(_Owned, HTTPSConnection):
    """The same over TLS."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Owned


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _OwnedTls


class CancellableAdapter(HTTPAdapter):
    """Mounted on a `requests.Session`, makes its requests cancellable."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # Any: requests' own signature
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

"""HTTP connections with two bounds that uvicorn's have not: the size of a request's head and its time.

`server.py` uses it; uvicorn by hand wants `--http serving.http_protocol:BoundedHttpToolsProtocol`.
Bodies have their own bounds, in `body.py`.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 20.0
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttpToolsProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers are too long or come too slowly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # uvicorn's own signature
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._moved_on = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is awaited from now on."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head that is not complete yet."""
        if self._in_head and self._head_timer is None:
            self._start_timer()
        self._moved_on = False
        super().data_received(data)
        if not self._in_head or self._moved_on:  # part of it, at least, was something else
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The body may take its own time."""
        self._in_head = False
        self._moved_on = True
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next is the head of another request."""
        self._in_head = True
        self._moved_on = True
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

"""HTTP connections with bounds that uvicorn's have not, against clients that send or read too slowly.

A request's head is bounded in size and time; so are trailers, requests that wait behind each other on
one connection (pipelining), what is left of a body after its answer, and answers that are not read.
Bodies that are read have their own bounds, in `body.py`.

A client that closes its sending side when its request is whole is answered, as one that does not.

`connections.py` extends it; uvicorn by hand wants
`--http serving.http_protocol:BoundedHttpToolsProtocol`.
"""

import asyncio
import select
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving.http_parser import RequestParser

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 8
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LOOK_S, LOOK_AT_MOST_S = 0.01, 1.0


@dataclass(frozen=True)
class Patience:
    """Seconds that a client may take; `Settings` has them in milliseconds."""

    head_s: float = 20.0
    """To send a request's line and headers, or the rest of a body that nobody reads any more."""

    answer_s: float = 30.0
    """To read what makes a full buffer of answers empty again."""


class PipelineTooLongError(Exception):
    """Stops the parser; the client is told 400, and the connection is closed."""


class BoundedHttpToolsProtocol(HttpToolsProtocol):
    """Closes a connection whose client goes beyond one of the bounds."""

    patience = Patience()

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # uvicorn's own signature
        super().__init__(*args, **kwargs)
        self.parser = RequestParser(self)  # type: ignore[assignment]  # all that uvicorn asks of it
        self._in_head = True
        self._moved_on = False
        self._head_bytes = 0
        """Of the current head, or of the current trailers."""

        self._answering: RequestResponseCycle | None = None
        """The request in progress; uvicorn's `cycle` is the newest one, which may be behind it."""

        self._sends_no_more = False
        self._leaving_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is awaited from now on."""
        super().connection_made(transport)
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more, and no request of the client's has anyone to be answered to."""
        self._stop_request_timer()
        self._stop_answer_timer()
        if self._leaving_timer is not None:
            self._leaving_timer.cancel()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head, or to trailers, that are not complete yet."""
        if self._in_head and self._request_timer is None:
            self._start_request_timer()
        self._moved_on = False
        super().data_received(data)
        if self._moved_on:  # part of it, at least, was something else
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._in_head:
                self.transport.write(TOO_LARGE)
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's closes the connection
        """The client has left, or reads on: what it is sent now is acknowledged or rejected."""
        cycle = self._answering
        if cycle is None or cycle.response_complete or not self._in_head:
            return False
        self._sends_no_more = True
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
        self._look(LOOK_S)
        return True

    def _look(self, pause_s: float) -> None:
        """Whether the client has left; neither asyncio nor uvloop tell it after the end of reading."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            self.transport.abort()
        else:
            longer_s = min(2 * pause_s, LOOK_AT_MOST_S)
            self._leaving_timer = self.loop.call_later(pause_s, self._look, longer_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps those of the head; trailers are for nobody here."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body may take its own time. Raises PipelineTooLongError."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise PipelineTooLongError
        self._in_head = False
        self._move_on()
        self._stop_request_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Trailers have not begun."""
        self._move_on()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What comes next is the head of another request."""
        self._in_head = True
        self._move_on()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Where the request's body is still coming, it is skipped, but not for ever."""
        super().on_response_complete()
        if self._sends_no_more and self.cycle.response_complete:
            self.transport.close()
        if self.cycle.response_complete and not self._in_head and self._request_timer is None:
            self._start_request_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # Any: uvicorn's own
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(self.patience.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_answer_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """A client that leaves part of an answer unread will not be waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _move_on(self) -> None:
        self._moved_on = True
        self._head_bytes = 0

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self.patience.head_s, self.transport.close)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

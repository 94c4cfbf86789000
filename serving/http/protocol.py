"""HTTP connections: uvicorn's `http` setting, with bounds against clients that send or read too slowly.

A request's head is bounded in size and time; so are trailers, requests that wait behind each other on
one connection (pipelining), what is left of a body after its answer, and answers that are not read.
Bodies that are read have their own bounds, in `body.py`.

A client that closes its sending side when its request is whole is answered, as one that does not.
Where the service is about to end (`leave`), the answer to the newest request says so.

`connections.py` extends it; uvicorn by hand wants `--http serving.http.protocol:HttpProtocol`.
"""

import asyncio
import logging
import select
import urllib.parse
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from serving.http.exchange import CONTINUE, Exchange, Line
from serving.http.parser import RequestParser

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 8
UNREADABLE = b"Invalid HTTP request received."
REFUSAL = (
    b"HTTP/1.1 %s\r\ndate: %s\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
LOOK_S, LOOK_AT_MOST_S = 0.01, 1.0


@dataclass(frozen=True)
class Patience:
    """Seconds that a client may take; `Settings` has them in milliseconds."""

    head_s: float = 20.0
    """To send a request's line and headers, or the rest of a body that nobody reads any more."""

    answer_s: float = 30.0
    """To read what makes a full buffer of answers empty again."""


class NoMoreRequestsError(Exception):
    """Stops the parser: too many wait, or the connection is closing."""


class HttpProtocol(asyncio.Protocol):
    """Reads requests, has the application answer them one after the other; closes beyond the bounds."""

    patience = Patience()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.config = config
        self.server_state = server_state
        self.loop = _loop or asyncio.get_event_loop()
        self.exchange: Exchange | None = None
        """The newest request, whose body comes next; `_answering` may be before it."""

        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._app_state = app_state
        self._parser = RequestParser(self)
        self._answering: Exchange | None = None
        self._pipeline: deque[Exchange] = deque()
        self._expects_continue = False
        self._in_head = True
        self._moved_on = False
        self._head_bytes = 0
        """Of the current head, or of the current trailers."""

        self._sends_no_more = False
        self._lingers = False
        """Whether the last answer is sent: what still comes is dropped until the client closes."""

        self._idle_timer: asyncio.TimerHandle | None = None
        self._leaving_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is awaited from now on."""
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # it shuts us down, no more
        self.transport = transport
        self.flow = FlowControl(transport)
        self._line = Line(transport, self.flow, self.loop, self.server_state)
        self._constant = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": self.config.root_path,
        }
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Nothing is awaited any more, and no request of the client's has anyone to be answered to."""
        self.server_state.connections.discard(self)
        self._stop_request_timer()
        self._stop_answer_timer()
        self._stop_idle_timer()
        if self._leaving_timer is not None:
            self._leaving_timer.cancel()
        if self._answering is not None:
            self._answering.lose_client()
        self._pipeline.clear()
        self.flow.resume_writing()
        self.exchange = self._answering = None  # which know us, too

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head, or to trailers, that are not complete yet."""
        if self._lingers:
            return
        self._stop_idle_timer()
        if self._in_head and self._request_timer is None:
            self._start_request_timer()
        self._moved_on = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(b"400 Bad Request", UNREADABLE)
            return
        if self._moved_on:  # part of it, at least, was something else
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def _refuse(self, status: bytes, text: bytes = b"") -> None:
        """Reads no further. Requests that are whole are answered; where there is none, this is."""
        if self.transport.is_closing():
            return
        if self._pipeline and not self._in_head:  # the newest one has no end
            self._pipeline.pop()
            self.exchange = self._pipeline[-1] if self._pipeline else self._answering
            self._in_head = True
        exchange = self._answering
        if exchange is not None and self._in_head and not exchange.complete:
            self.flow.pause_reading()
            self.shutdown()
            return
        logging.getLogger("uvicorn.error").warning((text or status).decode())
        if exchange is None or self._in_head or not exchange.started:
            date = formatdate(usegmt=True).encode()
            self.transport.write(REFUSAL % (status, date, len(text), text))
        self.transport.close()

    def eof_received(self) -> bool:
        """The client has left, or reads on: what it is sent now is acknowledged or rejected."""
        exchange = self._answering
        if exchange is None or exchange.complete or not self._in_head:
            return False
        self._sends_no_more = True
        if not exchange.started and exchange.scope["http_version"] == "1.1":
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

    def on_message_begin(self) -> None:
        """A request."""
        self.url = b""
        self.headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps those of the head; trailers are for nobody here."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its answer may begin; the body may take its own time. Raises NoMoreRequestsError."""
        if len(self._pipeline) >= MAX_PIPELINED or self.transport.is_closing():
            raise NoMoreRequestsError
        self._move_on()
        self._stop_request_timer()
        if self._idle_timer is not None:  # since the end of the request before, in the same packet
            self._stop_idle_timer()
        parser = self._parser
        version = parser.get_http_version()
        exchange = self.exchange = Exchange(
            self._line,
            self._scope(parser.get_method().decode("ascii"), version),
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=self._expects_continue and version != "1.0",
            on_complete=self.on_response_complete,
        )
        self._in_head = False
        if self._answering is None or self._answering.complete:
            self._answer(exchange)
        else:
            self.flow.pause_reading()
            (self._pipeline[-1] if self._pipeline else self._answering).followed = True
            self._pipeline.append(exchange)

    def _scope(self, method: str, version: str) -> dict[str, Any]:
        """As ASGI has it."""
        target = httptools.parse_url(self.url)
        raw_path = target.path or b"/"  # http://host?query has none
        path = raw_path.decode("ascii")
        root = self.config.root_path
        return self._constant | {
            "http_version": version,
            "method": method,
            "path": root + (urllib.parse.unquote(path) if "%" in path else path),
            "raw_path": root.encode("ascii") + raw_path,
            "query_string": target.query or b"",
            "headers": self.headers,
            "state": self._app_state.copy(),
        }

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        task = self.loop.create_task(exchange.run(self.config.loaded_app))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """Trailers have not begun."""
        self._move_on()
        if self.exchange is not None:
            self.exchange.add_body(body)

    def on_message_complete(self) -> None:
        """What comes next is the head of another request."""
        self._in_head = True
        self._move_on()
        if self.exchange is None:
            return
        self.exchange.end_body()
        if self.exchange.complete:  # answered before its end
            self._stop_request_timer()
            if self.exchange.keep_alive:
                self._start_idle_timer()
            else:
                self.transport.close()

    def on_response_complete(self) -> None:
        """The next one's turn. What is left of this one's body is skipped, but not for ever.

        The answer would be lost where a connection is closed while its client sends.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._line.leaving and self._answering is not None and not self._answering.keep_alive:
            self._linger(self._answering)
            return
        if self._pipeline:
            self._answer(self._pipeline.popleft())
            return
        if self._sends_no_more:
            self.transport.close()
        elif self._in_head:
            self._start_idle_timer()
        else:
            self._start_request_timer()
            if self.exchange and not self.exchange.keep_alive and self.transport.can_write_eof():
                self.transport.write_eof()

    def leave(self) -> None:
        """The service is about to end: an answer says that it is the connection's last.

        Of several requests that have come, that is the newest one's.
        """
        self._line.leaving = True

    def _linger(self, last: Exchange) -> None:
        """A client that sends already what comes next would lose the answer, were this end closed."""
        self._lingers = True
        self.exchange = last
        self._stop_request_timer()
        self._start_request_timer()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _on_idle(self) -> None:
        """A client that leaves part of an answer unread will not be waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """The server ends, or has waited enough; what is being answered is answered first."""
        if self.exchange is None or self.exchange.complete:
            self.transport.close()
        else:
            self.exchange.keep_alive = False
            self._line.leaving = False  # nor is the client's end of the connection waited for

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        self.flow.pause_writing()
        self._answer_timer = self.loop.call_later(self.patience.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_answer_timer()
        self.flow.resume_writing()

    def _move_on(self) -> None:
        self._moved_on = True
        self._head_bytes = 0

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self.patience.head_s, self.shutdown)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _start_idle_timer(self) -> None:
        self._idle_timer = self.loop.call_later(self.config.timeout_keep_alive, self._on_idle)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

"""The HTTP/1.1 protocol of a connection: uvicorn's, with limits on the resources a client can use.

`server.py` creates one for every accepted connection; with uvicorn's command line, use
`--http smallplates.web.http.protocol:HttpProtocol`. Each docstring says what a method adds to uvicorn's
method of the same name. The limits for request bodies are in `body.py`.
"""

import asyncio
import functools
import math
import select
import time
import urllib.parse
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 128  # of a head, and of trailers; other servers take about 100
MAX_CHUNKS = 4096  # of a body, and one more for each SMALL_CHUNK bytes
SMALL_CHUNK = 256
MAX_DROPPED = 1024 * 1024  # bytes after a refusal, so that no reset destroys it
MAX_PIPELINED = 8
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BAD_REQUEST = b"400 Bad Request", b"Invalid HTTP request received."
TOO_LARGE = b"431 Request Header Fields Too Large", b""
TOO_MANY_CHUNKS = b"413 Content Too Large", b"The body has too many small chunks."
REFUSAL = (
    b"HTTP/1.1 %s\r\n%s: %s\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s"
)
STATUS_LINES = {  # the phrases of RFC 9110; before 3.13 Python has older ones
    **STATUS_LINE,
    413: b"HTTP/1.1 413 Content Too Large\r\n",
    422: b"HTTP/1.1 422 Unprocessable Content\r\n",
}
PHRASES = {STATUS_LINE[status]: line for status, line in STATUS_LINES.items()}
Headers = list[tuple[bytes, bytes]]

Refusal = tuple[int, Headers, bytes]
"""Status, headers and body of a response to a request that is refused by its head."""

CheckHead = Callable[[Any], Refusal | None]  # Any: uvicorn's scope
"""Returns the response to a request that is refused by its head; None for all others."""


class Connections:
    """Connections of one web process, limited to `most`; `server.py` opens them.

    A connection that waits for its client to send a request, or the rest of one, can be closed without
    harm; the one that has waited longest is closed first. So a flood of idle or slow connections only
    pushes itself out, while a client that sends a whole request at once is served.
    """

    def __init__(self, most: int = 4096, head_s: float = 20.0, write_s: float = 30.0) -> None:
        self.most = most
        self.head_s = head_s  # for a request's head, and for the rest of a body after its response
        self.write_s = write_s  # for a client to read a full buffer of responses
        self.open = 0
        self.draining = False  # shutting down: each connection's newest request is its last
        self.check_head: CheckHead = lambda _: None
        self._waiting: dict[asyncio.WriteTransport, None] = {}

    def add(self) -> bool:
        """Counts a new connection; returns False if there is no room and none can be made."""
        has_room = self.open < self.most or self.make_room()
        self.open += has_room
        return has_room

    def remove(self) -> None:
        """Removes a connection from the count."""
        self.open -= 1

    def mark_idle(self, connection: asyncio.WriteTransport) -> None:
        """Notes that the connection waits for its client; if it was waiting, it keeps its place."""
        self._waiting.setdefault(connection)

    def mark_busy(self, connection: asyncio.WriteTransport) -> None:
        """Notes that the connection has received a whole request, or is gone."""
        self._waiting.pop(connection, None)

    def make_room(self) -> bool:
        """Closes the connection that has waited longest; returns False if none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self.mark_busy(oldest)
        oldest.abort()
        return True


class ResponseTransport(asyncio.Transport):
    """Holds back a response's head until its body starts, to send one packet instead of two."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self.close = close  # type: ignore[method-assign]  # see `HttpProtocol._close`
        self.expects_head = False  # whether the next write is a response's head
        self.is_half_closed = False  # the last response is sent, but a request body is still arriving
        self._transport = transport
        self._head = b""

    def write(self, data: Any) -> None:  # Any: as asyncio's
        """Holds back a head; writes other data after the head that was held back."""
        if self.expects_head and data != CONTINUE:
            self.expects_head = False
            line, end, rest = data.partition(b"\r\n")
            self._head = PHRASES.get(line + end, line + end) + rest
        elif data or self._head:
            self._transport.write(self._head + data)
            self._head = b""

    def is_closing(self) -> bool:
        """Returns whether no more responses can be sent."""
        return self.is_half_closed or self._transport.is_closing()


class Cycle(RequestResponseCycle):
    """A request and its response; adds what takes fewer steps than ASGI's messages."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole response, once the client has read earlier ones."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self.write_response(status, headers, body)

    def write_response(self, status: int, headers: Headers, body: bytes) -> None:
        """Writes a whole response. Raises RuntimeError for a header of several lines."""
        headers = [*self.default_headers, *headers]
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = [STATUS_LINES[status], *[b"%s: %s\r\n" % each for each in headers]]
        head = b"".join([*lines, b"\r\n"])
        if head.count(b"\n") != len(lines) + 1:
            raise RuntimeError("a response's header has several lines")
        self.response_started = self.response_complete = True
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def take_body(self) -> bytes | None:
        """Returns the body if it has arrived as a whole, else None."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()  # as `receive`: a client that leaves must be noticed
        return body


def cycle_of(asgi: Callable[..., Any]) -> Cycle | None:
    """Returns the request to which ASGI's `receive` or `send` belongs; None with another server."""
    owner = getattr(asgi, "__self__", None)
    return owner if isinstance(owner, Cycle) else None


class HttpProtocol(HttpToolsProtocol):
    """Answers a connection's requests in order, and closes the connection if it exceeds a limit."""

    def __init__(self, *args: Any, connections: Connections | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # Any: uvicorn's
        self._registry = connections or Connections()
        self._answering: RequestResponseCycle | None = None  # uvicorn's `cycle` is the newest request
        self._request_complete = True  # whether the newest request is, so that a head comes next
        self._refusal = BAD_REQUEST  # status and text for what the parser does not accept
        self._refused = 0  # requests refused by their heads, of those that arrived together
        self._is_deaf = False  # whether all that still arrives is dropped
        self._chunks = self._body_bytes = 0  # of the newest request's body
        self._head_bytes = 0  # bytes received of an incomplete head or of incomplete trailers
        self._closes_at = math.inf  # in the loop's time, unless something happens before
        self._close_timer: asyncio.TimerHandle | None = None  # due then, or earlier
        self._write_timer: asyncio.TimerHandle | None = None
        self._hangup: select.epoll | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limits the time until the first head, and wraps the transport in `ResponseTransport`."""
        super().connection_made(transport)
        self._connection = transport
        self.transport = self._response = ResponseTransport(transport, self._close)
        self._registry.mark_idle(transport)
        self._close_after(self._registry.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notifies the request that is being answered; uvicorn notifies only the newest one.

        Drops references to requests, so that their bodies need no garbage collection.
        """
        self._registry.mark_busy(self._connection)
        self._registry.remove()
        self.resume_writing()
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._hangup is not None:
            self.loop.remove_reader(self._hangup)
            self._hangup.close()
        super().connection_lost(exc)
        self._stop_answering()
        self.pipeline.clear()
        self.cycle = self._answering = None  # type: ignore[assignment]  # as in the beginning

    def _stop_answering(self) -> None:
        """Tells the application that nobody waits for its response any more."""
        cycle = self._answering
        if cycle is not None and not (cycle.response_complete or cycle.scope["disconnect"].done()):  # type: ignore[typeddict-item]
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.scope["disconnect"].set_result(None)  # type: ignore[typeddict-item]

    def data_received(self, data: bytes) -> None:
        """Limits heads and trailers in size and time; refuses only after earlier responses."""
        if self._is_deaf:
            self._head_bytes += len(data)
            if not self._response.is_half_closed:  # earlier requests are still being answered
                self.flow.pause_reading()
            elif self._head_bytes > MAX_DROPPED:
                self._connection.abort()
            return
        self._refused = 0
        if self._request_complete and not self._head_bytes:
            self._close_after(self._registry.head_s)
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(*self._refusal)
        else:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(*TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """Parses data; a request that offers an upgrade is parsed again without the offer.

        RFC 9110 lets a server ignore the offer, which Java's HttpClient makes to every server. httptools
        and uvicorn would take the request's body for data of the new protocol. Raises HttpParserError.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if (method := self.parser.get_method()) == b"CONNECT":
                raise httptools.HttpParserError("there are no tunnels") from upgrade
            lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self._parse(b"\r\n".join([*lines, b"", data[upgrade.args[0] :]]))

    def _refuse(self, status: bytes, text: bytes) -> None:
        """Parses no more; answers complete requests first, then closes, with a refusal if possible."""
        self._is_deaf = True
        if self._connection.is_closing():
            return
        if self.pipeline and not self._request_complete:  # the newest request will never be complete
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answering  # type: ignore[assignment]
            self._request_complete = True
        current = self._answering
        if current is None or current.response_complete or not self._request_complete:
            self.logger.warning((text or status).decode())
            if current is None or self._request_complete or not current.response_started:
                date = date_header(int(time.time()))
                self._connection.write(REFUSAL % (status, *date, len(text), text))
            self._stop_answering()
            self._close()
            self.flow.resume_reading()  # to drop the rest: a reset could destroy the response
        else:
            self.flow.pause_reading()
            self.shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]  # as in asyncio
        """Still answers a client that has closed only its sending side.

        A client that is gone rejects `100 Continue`. `_hangup` detects that, because event loops stop
        watching a connection whose receiving side is closed.
        """
        cycle = self._answering
        if cycle is None or cycle.response_complete or not self._request_complete:
            return False
        self.shutdown()
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self._connection.write(CONTINUE)
        self._hangup = select.epoll()
        self._hangup.register(self._connection.get_extra_info("socket").fileno(), 0)
        self.loop.add_reader(self._hangup, self._connection.abort)
        return True

    def on_headers_complete(self) -> None:
        """Limits pipelining, checks the head, and starts or queues the request.

        Creates `scope["disconnect"]`, a future that is done if the client disconnects before its
        response; waiting for ASGI's message would take a task per request. Raises HttpParserError.
        """
        if self.parser.should_upgrade():  # will be parsed again, see `_parse`
            return
        if len(self.pipeline) >= MAX_PIPELINED or self.transport.is_closing():
            raise httptools.HttpParserError("no more requests")
        self._closes_at = math.inf
        version = self.parser.get_http_version()
        self._check_head(version)
        url = httptools.parse_url(self.url)  # possibly absolute, then perhaps without a path
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        scope: Any = self.scope  # with more keys than ASGI's
        scope |= {
            "method": self.parser.get_method().decode("ascii"),
            "http_version": version,
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "disconnect": self.loop.create_future(),
        }
        previous, self.cycle = (
            self.cycle,
            Cycle(
                scope=scope,
                transport=self.transport,
                flow=self.flow,
                logger=self.logger,
                access_logger=self.access_logger,
                access_log=False,
                default_headers=[date_header(int(time.time())), *self.config.encoded_headers],
                message_event=asyncio.Event(),
                expect_100_continue=self.expect_100_continue and version != "1.0",
                keep_alive=version != "1.0" and self.parser.should_keep_alive(),
                on_response=self.on_response_complete,
            ),
        )
        self._request_complete, self._head_bytes = False, 0
        self._chunks = self._body_bytes = 0
        self.headers = []  # trailers must not become headers of the request
        if self._registry.draining:
            if previous is not None and not previous.response_started:
                previous.keep_alive = previous.scope["http_version"] != "1.0"
            self.cycle.keep_alive = False
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Limits the number of fields, each of which costs time. Raises HttpParserError."""
        super().on_header(name, value)
        if len(self.headers) > MAX_FIELDS:
            self._refusal = TOO_LARGE
            raise httptools.HttpParserError("too many fields")

    def _check_head(self, version: str) -> None:
        """Checks size, version, Host and Transfer-Encoding, see RFC 9112 (2.3, 3.2, 6.1).

        HTTP/1.0 needs no Host; HAProxy's checks have none. A head that arrives in one piece is complete
        before `data_received` counts it. Raises HttpParserError.
        """
        hosts = [name for name, _ in self.headers].count(b"host")
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if self._head_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            self._refusal = TOO_LARGE
        elif version not in ("1.0", "1.1"):
            self._refusal = b"505 HTTP Version Not Supported", b""
        elif version == "1.1" and any(coding != b"chunked" for coding in codings):
            self._refusal = b"501 Not Implemented", b""
        elif (codings and version == "1.0") or hosts > 1 or (version == "1.1" and not hosts):
            self._refusal = BAD_REQUEST
        else:
            return
        raise httptools.HttpParserError("the head is not accepted")

    def _head_size(self) -> int:
        """Computes the bytes of the newest head, since others and a body may have come with it."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Answers at once a request that is refused by its head, unless earlier answers are unread.

        The loop has other work to do: of requests that arrive together, only the first ones.
        """
        assert isinstance(cycle, Cycle)  # noqa: S101 made by `on_headers_complete`
        self._answering = cycle
        is_quick = self._refused < MAX_PIPELINED and not self.flow.write_paused
        refusal = self._registry.check_head(cycle.scope) if is_quick else None
        if refusal is None:
            self._response.expects_head = True
            super()._start_asgi_task(cycle, app)
            return
        self._refused += 1
        cycle.keep_alive = cycle.keep_alive and not self._registry.draining
        cycle.write_response(*refusal)

    def on_chunk_header(self) -> None:
        """Limits the number of chunks, each of which costs time. Raises HttpParserError."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS + self._body_bytes // SMALL_CHUNK:
            self._refusal = TOO_MANY_CHUNKS
            raise httptools.HttpParserError("too many chunks")

    def on_body(self, body: bytes) -> None:
        """Resets the count of head bytes, since trailers have not begun; counts what is wanted."""
        self._head_bytes = 0
        if not self.cycle.response_complete:
            self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Keeps reading while the request is being answered, to notice a disconnect."""
        if self.parser.should_upgrade():  # will be parsed again, see `_parse`
            return
        self._request_complete, self._head_bytes = True, 0
        super().on_message_complete()
        if self.transport.is_closing():
            self._connection.close()
        elif self.cycle.response_complete:
            self._close_after(self.timeout_keep_alive)
        else:
            self._registry.mark_busy(self._connection)
            if not self.pipeline:
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Starts the next request. Without one, limits the time until it comes, or the body's rest."""
        self._response.write(b"")  # sends a head without a body
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._registry.mark_idle(self._connection)
        arrives = self._head_bytes or not self._request_complete
        self._close_after(self._registry.head_s if arrives else self.timeout_keep_alive)

    def _close(self) -> None:
        """Closes only the sending side while a body is arriving: a reset could destroy the response."""
        if self.transport.is_closing():
            return
        self._response.write(b"")  # sends a head without a body
        if self._request_complete:
            self._connection.close()
        else:
            self._response.is_half_closed = True
            self._connection.write_eof()
            self._close_after(self._registry.head_s)

    def drain(self) -> None:
        """Makes the newest request the last one: its response says `Connection: close`."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Also closes a connection whose client still sends a body that is not needed."""
        if self.cycle is None or self.cycle.response_complete or self.transport.is_closing():
            self._connection.close()
        else:
            self.cycle.keep_alive = False

    def _close_after(self, seconds: float) -> None:
        """Sets the only time limit of the connection; a timer that is due earlier stays."""
        self._closes_at = self.loop.time() + seconds
        if self._close_timer is None or self._close_timer.when() > self._closes_at:
            self._set_close_timer()

    def _set_close_timer(self) -> None:
        """Closes the connection if it is time. Otherwise sets a timer, which is rarer than a request."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        is_due = self._closes_at <= self.loop.time()
        self._close_timer = None if is_due else self.loop.call_at(self._closes_at, self._set_close_timer)
        if is_due:
            self.shutdown()

    def pause_writing(self) -> None:
        """Limits the time for which a client may leave responses unread."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._registry.write_s, self._connection.abort)

    def resume_writing(self) -> None:
        """Lifts the limit set by `pause_writing`."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()


@functools.lru_cache(1)
def date_header(second: int) -> tuple[bytes, bytes]:
    """Returns the Date header; uvicorn's server would set it every second, even without requests."""
    return b"date", formatdate(second, usegmt=True).encode()

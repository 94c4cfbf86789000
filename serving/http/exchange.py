"""One request and its answer, as ASGI has them; `http_protocol.py` makes one for each request.

The head of an answer is sent together with the first part of its body: one packet, for which the client
wakes up once. A body that is known whole, as all of ours, is one call of the system.
"""

import asyncio
import http
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FAILED = b"Internal Server Error"
BODILESS = (204, 304)
CONTROLS = bytes({*range(32), 127} - {9})
PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}  # RFC 9110; Python's from 3.13 on
STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, PHRASES.get(status, status.phrase).encode())
    for status in http.HTTPStatus
}
Headers = list[tuple[bytes, bytes]]
Message = dict[str, Any]  # of ASGI


@dataclass(slots=True)
class Line:
    """What an exchange needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    server_state: ServerState
    leaving: bool = False
    """Whether the service is about to end, so that the newest request's answer is the last one."""


class Departure:
    """Whether the client went away before its answer; `scope["departure"]` of every request."""

    __slots__ = ("happened", "then")

    def __init__(self) -> None:
        self.happened = False
        self.then: Callable[[], None] | None = None
        """Is called when it happens."""


class Exchange:
    """`receive` and `send` of one request; `run` answers it with an application."""

    def __init__(
        self,
        line: Line,
        scope: dict[str, Any],
        *,
        keep_alive: bool,
        expects_continue: bool,
        on_complete: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.departure = scope["departure"] = Departure()
        self.started = False
        """Whether the application has begun to answer."""

        self.complete = False
        """Whether the answer is sent."""

        self.followed = False
        """Whether another request has come behind this one."""

        self._line = line
        self._on_complete = on_complete
        self._expects_continue = expects_continue
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._more_body = True
        self._news = False
        self._readers: list[asyncio.Future[None]] = []
        self._head = b""
        """Waits for the first part of the body."""

        self._chunked = False
        self._left: int | None = None
        """Bytes of the answer's body that are to come, where its header says how many."""

    def add_body(self, part: bytes) -> None:
        """The client has sent it."""
        if self.complete:
            return
        self._parts.append(part)
        self._waiting_bytes += len(part)
        if self._waiting_bytes > HIGH_WATER_LIMIT:
            self._line.flow.pause_reading()
        self._wake()

    def end_body(self) -> None:
        """There is no more of it."""
        self._more_body = False
        self._wake()

    def lose_client(self) -> None:
        """Nobody waits for the answer any more."""
        if self.complete:
            return
        self.departure.happened = True
        self._wake()
        if self.departure.then is not None:
            self.departure.then()

    def _wake(self) -> None:
        self._news = True
        while self._readers:
            reader = self._readers.pop()
            if not reader.done():
                reader.set_result(None)

    async def run(self, app: Callable[..., Any]) -> None:
        """Answers with an ASGI application, whatever it raises."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
            await self._fail()
        else:
            if not self.complete and not self.departure.happened:
                logging.getLogger("uvicorn.error").error("ASGI application has not answered")
                await self._fail()

    async def _fail(self) -> None:
        if self.complete:
            return
        if self.started and not self._head:
            self._line.transport.close()
            return
        self.started = False
        size = str(len(FAILED)).encode()
        headers = [
            (b"content-type", b"text/plain"),
            (b"content-length", size),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": FAILED})

    async def receive(self) -> Message:
        """As ASGI has it: the body as it comes, then that the client is gone or answered."""
        if self._expects_continue and not self._line.transport.is_closing():
            self._line.transport.write(CONTINUE)
        self._expects_continue = False
        while not (self._news or self.departure.happened or self.complete):
            reader = self._line.loop.create_future()
            self._readers.append(reader)
            await reader
        if self.departure.happened or self.complete:
            return {"type": "http.disconnect"}
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._waiting_bytes, self._news = [], 0, False
        if self._line.flow.read_paused:  # after the end, too: only who reads sees a client leave
            self._line.flow.resume_reading()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        """As ASGI has it. Raises RuntimeError for what cannot be sent."""
        if self._line.flow.write_paused and not self.departure.happened:
            await self._line.flow.drain()
        if self.departure.happened:
            return
        if message["type"] != ("http.response.body" if self.started else "http.response.start"):
            raise RuntimeError(f"{message['type']} out of place")
        if not self.started:
            self._head = self._make_head(message["status"], message.get("headers", ()))
            self.started = True
            return
        if self.complete:
            raise RuntimeError("a body after its end")
        more = message.get("more_body", False)
        data = b"".join((self._head, self._framed(message.get("body", b""), more)))
        self._head = b""
        if data:
            self._line.transport.write(data)
        if not more:
            self._end()

    def _make_head(self, status: int, headers: Headers) -> bytes:
        """Status line and headers; also finds out how the body is framed."""
        self._expects_continue = self._chunked = False
        if self._line.leaving and not self.followed:
            self.keep_alive = False
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        framed = closes = False
        for name, value in (*self._line.server_state.default_headers, *headers):
            lines.append(b"%s: %s\r\n" % (name, value))
            lower = name.lower()
            if lower == b"content-length":
                self._left, framed = int(value), True
            elif lower == b"transfer-encoding":
                self._chunked = framed = True
            elif lower == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in BODILESS:
            self._chunked, self._left = False, 0
        elif not framed and self.scope["http_version"] != "1.0":  # which ends with the connection
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        if len(head) - len(head.translate(None, CONTROLS)) != 2 * len(lines):  # but each line's own end
            raise RuntimeError("a header with a line break, or another control character")
        return head + b"\r\n"

    def _framed(self, body: bytes, more: bool) -> bytes:
        """A part of the body as it is sent."""
        if self.scope["method"] == "HEAD":
            return b""
        if self._chunked:
            chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer's body is not as long as its header says")
        return body

    def _end(self) -> None:
        self.complete = True
        self._parts = []
        self._wake()
        if not (self.keep_alive or self._more_body or self._line.leaving):
            self._line.transport.close()
        self._on_complete()

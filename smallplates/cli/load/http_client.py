"""Minimal HTTP/1.1 client, so that a load generator in Python takes little of the machine.

A request is bytes, built once; a `Connection` carries one at a time; `Connections` keeps the idle ones.
`load.py` and `overload.py` use it.
"""

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 64 * 1024
IDLE_S = 2.0  # servers keep an idle connection for some seconds more


@dataclass(frozen=True)
class Answer:
    """Parts of an answer that a load generator needs."""

    status: str
    """Three digits; `failed` when the connection was refused or lost, `unreadable` when the answer has
    no Content-Length, which all servers measured here send.
    """

    head: bytes
    """Status line and header fields, in lower case."""

    def field(self, name: bytes) -> bytes | None:
        """Returns a header field's value; `name` is in lower case."""
        start = self.head.find(b"\r\n" + name + b":")
        if start < 0:
            return None
        start += len(name) + 3
        end = self.head.find(b"\r\n", start)
        return self.head[start : end if end >= 0 else None].strip()


LOST = Answer("failed", b"")
UNREADABLE = Answer("unreadable", b"")


def address(url: str) -> tuple[str, int]:
    """Returns host and port of an `http://` URL. Raises ValueError for another scheme."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url} is not an http:// address")
    return parts.hostname, parts.port or 80


def post(url: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Returns the bytes of a POST request; `path` follows that of the URL, which does not end in `/`."""
    host, port = address(url)
    fields = {"Host": f"{host}:{port}", **headers, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {urlsplit(url).path}{path} HTTP/1.1\r\n{head}\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._end = 0  # of the answer; 0 while its head is incomplete
        self._head = b""
        self._answer: asyncio.Future[Answer] | None = None
        self.idle_since = 0.0
        self.usable = False
        """Whether another request may be sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport; called by the event loop."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 create_connection makes these
        self._transport = transport
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """Collects an answer and completes the request with it; called by the event loop."""
        self._buffer += data
        if not self._end and not self._read_head():
            return
        if len(self._buffer) < self._end or self._answer is None:
            return
        answer = Answer(self._head[9:12].decode("latin-1"), self._head)
        if answer.field(b"connection") == b"close":
            self.close()
        self._buffer.clear()
        self._end = 0
        self._settle(answer)

    def _read_head(self) -> bool:
        length = self._buffer.find(b"\r\n\r\n")
        if length < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self.close()
            return False
        self._head = bytes(self._buffer[:length]).lower()
        body_length = Answer("", self._head).field(b"content-length")
        if body_length is None or not body_length.isdigit():
            self.close()
            self._settle(UNREADABLE)
            return False
        self._end = length + 4 + int(body_length)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        """Completes the request with `LOST`; called by the event loop."""
        self.usable = False
        self._settle(LOST)

    def _settle(self, answer: Answer) -> None:
        future, self._answer = self._answer, None
        if future is not None and not future.done():
            future.set_result(answer)

    async def ask(self, request: bytes) -> Answer:
        """Sends the bytes of a request and returns the answer; network errors become `LOST`."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()  # its answer would be taken for the next one's
            raise

    def close(self) -> None:
        """Closes the connection; a request in flight is lost."""
        self.usable = False
        self._transport.close()


class Connections:
    """Pool of kept connections to one server; opens a new one when all are busy."""

    def __init__(self, url: str) -> None:
        self.host, self.port = address(url)
        self._idle: list[Connection] = []

    async def ask(self, request: bytes) -> Answer:
        """Sends a request on any connection; returns `LOST` when none can be made."""
        if (connection := self._pop()) is None:
            try:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, self.host, self.port)
            except OSError:
                return LOST
        answer = await connection.ask(request)
        if connection.usable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        return answer

    def _pop(self) -> Connection | None:
        """Returns a connection that the server keeps; closes those that it may close any moment."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and time.monotonic() - connection.idle_since <= IDLE_S:
                return connection
            connection.close()
        return None

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

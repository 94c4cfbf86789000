"""HTTP/2 by hand (RFC 9113), for gRPC clients that break off in the middle: frames, windows, no more."""

import contextlib
import select
import socket
import struct
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
MAX_FRAME = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def fields(**named: str) -> bytes:
    """A header block (RFC 7541) that needs no table; `_` in a name is `-`, and first stands for `:`."""
    block = b""
    for name, value in named.items():
        key = name.encode().replace(b"_", b":", 1) if name.startswith("_") else name.encode()
        key = key.replace(b"_", b"-")
        text = value.encode(errors="surrogateescape")
        block += b"\0" + bytes((len(key),)) + key + bytes((len(text),)) + text
    return block


class Http2:
    """One connection, which reads only when it is asked to: `with Http2(port) as peer`."""

    def __init__(self, port: int, window: int = 65_535) -> None:
        """`window` is how much of an answer the server may send."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.ended: set[int] = set()
        """Streams that the server has ended."""

        self.is_open = True
        self._received = b""
        self._windows: dict[int, int] = {0: 65_535}
        self._initial = 65_535
        limit = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, limit))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def call(self, stream: int, path: str, **more: str) -> None:
        """Begins a call on a new stream, an odd number above all before it."""
        block = fields(
            _method="POST",
            _scheme="http",
            _path=path,
            _authority="x",
            te="trailers",
            content_type="application/grpc",
            **more,
        )
        self._windows[stream] = self._initial
        self._send(frame(HEADERS, END_HEADERS, stream, block))

    def send(self, stream: int, data: bytes) -> int:
        """As much of it as the server allows at the moment; returns how many bytes that was."""
        sent = 0
        while sent < len(data) and stream not in self.ended and self.is_open:
            allowed = min(self._windows[0], self._windows[stream], MAX_FRAME, len(data) - sent)
            if allowed <= 0:
                if not self.look(0.05):
                    break
                continue
            self._windows[0] -= allowed
            self._windows[stream] -= allowed
            self._send(frame(DATA, 0, stream, data[sent : sent + allowed]))
            sent += allowed
        return sent

    def look(self, seconds: float) -> bool:
        """Reads what has come, or comes within this time; False when nothing did."""
        if not self.is_open or not select.select([self.socket], [], [], seconds)[0]:
            return False
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        self.is_open = bool(data)
        self._received += data
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + length:
                break
            head, payload = self._received[3:9], self._received[9 : 9 + length]
            self._received = self._received[9 + length :]
            self._on_frame(head[0], head[1], int.from_bytes(head[2:]), payload)
        return True

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == INITIAL_WINDOW_SIZE:
                    for stream_id in self._windows.keys() - {0}:
                        self._windows[stream_id] += value - self._initial
                    self._initial = value
            self._send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload)
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)
        elif kind == GOAWAY:
            self.is_open = False

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)
            return
        self.is_open = False

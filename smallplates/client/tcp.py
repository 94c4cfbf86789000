"""Client of the service's TCP port: frames of bytes, many requests at a time on one connection.

The service describes the frames in `smallplates/web/dialects/tcp.py`. There are no retries here: an
OSError means that the connection is of no more use.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

REQUEST = struct.Struct(">IIH")  # length of what follows, id, length of the options
RESPONSE = struct.Struct(">IIH")  # length of what follows, id, HTTP status
AFTER_LENGTH = REQUEST.size - 4
MAX_ID = 2**32 - 1
MAX_ANSWER_BYTES = 1024 * 1024 * 1024  # SERVING_MAX_ANSWER_BYTES, as JSON up to four times as long
NOT_THE_SERVICE = "the server at this address is not this service"


def request_frame(number: int, body: bytes, options: Mapping[str, Any]) -> bytes:
    """Returns a request frame; `number` is its id."""
    text = json.dumps(options, separators=(",", ":")).encode()
    length = AFTER_LENGTH + len(text) + len(body)
    return b"".join((REQUEST.pack(length, number, len(text)), text, body))


@dataclass(frozen=True)
class TcpAnswer:
    """One response frame: the answer of `/predict` with `request_id` and `ms`, or an error."""

    id: int
    status: int
    content: dict[str, Any]  # Any: JSON


class TcpClient:
    """One connection, used by one thread at a time; a context manager.

    `send` may be called any number of times before `receive`: answers come as they are ready.
    """

    def __init__(self, host: str, port: int, key: str | None = None, timeout_s: float = 30.0) -> None:
        """Connects. Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._key = key
        self._last_id = 0

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection; the service cancels the requests without an answer."""
        self._file.close()
        self._socket.close()

    def send(
        self,
        body: bytes,
        *,
        model: str | None = None,
        top_k: int | None = None,
        timeout_ms: int | None = None,
        bulk: bool = False,
        content_type: str | None = None,
    ) -> int:
        """Sends a request, whose body is one of `/predict`; returns its id. Raises OSError.

        `model` is the name of the model to ask, by default the service's default model. `content_type`
        says what the body is, as in HTTP; None: an image file, a text, or JSON if the model needs it.
        """
        options = {"model": model, "top_k": top_k, "timeout_ms": timeout_ms, "key": self._key}
        options |= {"priority": "bulk" if bulk else None, "content_type": content_type}
        self._last_id = self._last_id % MAX_ID + 1
        present = {name: value for name, value in options.items() if value is not None}
        self._socket.sendall(request_frame(self._last_id, body, present))
        self._key = None  # once is enough
        return self._last_id

    def receive(self) -> TcpAnswer:
        """Returns the next answer, of any request. Raises OSError, also when none will come."""
        length, number, status = RESPONSE.unpack(self._exactly(RESPONSE.size))
        size = length - AFTER_LENGTH
        if not 0 <= size <= MAX_ANSWER_BYTES:
            raise ConnectionError(NOT_THE_SERVICE)
        try:
            content = json.loads(self._exactly(size))
        except ValueError as error:
            raise ConnectionError(NOT_THE_SERVICE) from error
        if not isinstance(content, dict):
            raise ConnectionError(NOT_THE_SERVICE)
        return TcpAnswer(number, status, content)

    def predict(
        self,
        body: bytes,
        *,
        model: str | None = None,
        top_k: int | None = None,
        content_type: str | None = None,
    ) -> TcpAnswer:
        """Sends a request and returns its answer; no other request may be unanswered. Raises OSError."""
        self.send(body, model=model, top_k=top_k, content_type=content_type)
        return self.receive()

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the service has closed the connection")
        return data

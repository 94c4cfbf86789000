"""Client for `tcp.py`: `python -m serving.protocols.tcp_client photo.jpg` prints its class."""

import argparse
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from serving.protocols import tcp_frames as frames

DEFAULT_PORT = 9000
MAX_ANSWER_BYTES = 4 * 1024 * 1024
NOT_THE_SERVICE = "what answers there is no food classifier"


@dataclass(frozen=True)
class Answer:
    """One response frame; `tcp_frames.py` describes the content."""

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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; the service cancels the requests without an answer."""
        self._file.close()
        self._socket.close()

    def send(
        self,
        image: bytes,
        *,
        top_k: int | None = None,
        timeout_ms: int | None = None,
        bulk: bool = False,
    ) -> int:
        """Sends a request; returns its id. Raises OSError."""
        options = frames.Options(top_k, timeout_ms, "bulk" if bulk else "interactive", key=self._key)
        self._last_id = self._last_id % frames.MAX_ID + 1
        self._socket.sendall(frames.request(self._last_id, image, options))
        self._key = None  # once is enough
        return self._last_id

    def receive(self) -> Answer:
        """Returns the next answer, of any request. Raises OSError, also when none will come."""
        length, number, status = frames.RESPONSE.unpack(self._exactly(frames.RESPONSE.size))
        size = length - frames.AFTER_LENGTH
        if not 0 <= size <= MAX_ANSWER_BYTES:
            raise ConnectionError(NOT_THE_SERVICE)
        try:
            content = orjson.loads(self._exactly(size))
        except orjson.JSONDecodeError as error:
            raise ConnectionError(NOT_THE_SERVICE) from error
        if not isinstance(content, dict):
            raise ConnectionError(NOT_THE_SERVICE)
        return Answer(number, status, content)

    def predict(self, image: bytes, *, top_k: int | None = None) -> Answer:
        """Sends a request and returns its answer; no other request may be unanswered. Raises OSError."""
        self.send(image, top_k=top_k)
        return self.receive()

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError("the service has closed the connection")
        return data


def main() -> int:
    """Classifies the files on the command line; returns the exit status, 1 if one has no answer."""
    parser = argparse.ArgumentParser(prog="python -m serving.protocols.tcp_client", description=__doc__)
    parser.add_argument("photos", nargs="+", type=Path, metavar="photo")
    parser.add_argument("--host", default="127.0.0.1")
    port = int(os.environ.get("SERVING_TCP_PORT", DEFAULT_PORT))
    parser.add_argument("--port", type=int, default=port, help="SERVING_TCP_PORT, else %(default)s")
    parser.add_argument("--key", default=os.environ.get("SERVING_API_KEY"), help="SERVING_API_KEY")
    arguments = parser.parse_args()
    failed = False
    try:
        with TcpClient(arguments.host, arguments.port, arguments.key) as client:
            for path in arguments.photos:
                failed |= not show(client, path)
    except OSError as error:
        print(f"{arguments.host}:{arguments.port}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return int(failed)


def show(client: TcpClient, path: Path) -> bool:
    """Prints one line for an image; returns whether it was classified. Raises OSError."""
    try:
        image = path.read_bytes()
    except OSError as error:
        print(f"{path}: {error}", file=sys.stderr)  # noqa: T201
        return False
    started = time.perf_counter()
    answer = client.predict(image)
    ms = 1000 * (time.perf_counter() - started)
    if answer.status != 200:
        print(f"{path}: {answer.content.get('detail')} ({answer.status})", file=sys.stderr)  # noqa: T201
        return False
    percent = 100 * answer.content["probability"]
    print(f"{path}: {answer.content['prediction']} {percent:.1f} % ({ms:.1f} ms)")  # noqa: T201
    return True


if __name__ == "__main__":
    sys.exit(main())

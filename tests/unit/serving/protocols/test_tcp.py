"""A TCP connection: its requests' time limits, and a client that has just reset it."""

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest

from serving.protocols import tcp as frames
from serving.protocols.pipeline import Pipeline
from serving.protocols.tcp import Connection, TcpServer
from serving.settings import Settings
from serving_client.tcp import request_frame
from tests import pictures


class Gone:
    """A writer whose transport was reset; uvloop's raises RuntimeError then."""

    def is_closing(self) -> bool:
        """Returns True."""
        return True

    def get_extra_info(self, _: str) -> None:
        """Returns None: the address is unknown after the reset."""

    def write(self, _: bytes) -> None:
        """Fails."""
        raise RuntimeError("the handler is closed")

    write_eof = write

    def close(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [(b"", 5000), (b'{"timeout_ms": 4999}', 4999), (b'{"timeout_ms": %d}' % 10**100, 5000)],
)
def test_longer_time_limits_are_cut(options: bytes, expected: int) -> None:
    service, task = Mock(settings=Settings(request_timeout_ms=5000)), Mock()
    connection = Connection(TcpServer(Pipeline(service)), Mock(), MagicMock())
    assert connection._admitted(frames.parse_options(options), task).timeout_ms == expected


@pytest.mark.parametrize(
    "data",
    [
        request_frame(1, pictures.jpeg(8, 8), {"top_k": 99}),
        request_frame(1, b"", {}),
        b"\0" * frames.REQUEST.size,
    ],
    ids=["refused", "empty", "broken"],
)
def test_an_answer_that_is_late_is_no_error(data: bytes) -> None:
    classifier: Any = MagicMock()
    classifier.settings = Settings()
    classifier.model.labels = ["a", "b"]

    async def serve() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        server = TcpServer(Pipeline(classifier))
        await Connection(server, reader, cast(asyncio.StreamWriter, Gone())).run()

    asyncio.run(serve())
    assert classifier.metrics.requests.labels.call_count == 1

"""TCP connections: time limits, one that the client has just reset, a body that arrives at shutdown."""

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from smallplates.client.tcp import request_frame
from smallplates.errors import InvalidImageError
from smallplates.settings import Settings
from smallplates.web.api import tcp as frames
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.api.tcp import Connection, TcpServer
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
    assert connection._limits(frames.parse_options(options), task).timeout_ms == expected


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
    classifier.model().admitted().__aenter__.return_value = MagicMock()
    classifier.model().predict = AsyncMock(side_effect=InvalidImageError("the body is empty"))

    async def serve() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        server = TcpServer(Pipeline(classifier))
        await Connection(server, reader, cast(asyncio.StreamWriter, Gone())).run()

    asyncio.run(serve())
    assert classifier.metrics.requests.labels.call_count == 1


@pytest.mark.parametrize("admitted", [True, False])
def test_a_body_that_arrives_at_shutdown(admitted: bool) -> None:
    service: Any = MagicMock(settings=Settings())
    model = service.model()
    model.admitted().__aenter__.return_value = MagicMock()
    model.predict = AsyncMock(side_effect=InvalidImageError("so it was read"))
    writer: Any = MagicMock(drain=AsyncMock())
    writer.is_closing = lambda: bool(writer.close.called)
    data = request_frame(1, pictures.jpeg(8, 8), {})
    head = len(data) - (1 if admitted else len(data) - 3)

    async def serve() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data[:head])
        connection = Connection(TcpServer(Pipeline(service)), reader, writer)
        task = asyncio.ensure_future(connection.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert model.refuse_if_full.called is admitted
        connection.finish()
        reader.feed_data(data[head:] + data)
        reader.feed_eof()
        await task

    asyncio.run(serve())
    assert model.predict.call_count == admitted
    assert len(writer.write.call_args_list) == admitted

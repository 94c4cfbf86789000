"""A TCP connection whose client has just gone."""

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from serving.protocols import tcp_frames as frames
from serving.protocols.tcp_connection import Connection
from serving.settings import Settings
from tests import pictures


class Gone:
    """A writer of a transport that was reset; uvloop's raises RuntimeError."""

    def is_closing(self) -> bool:
        """It is."""
        return True

    def get_extra_info(self, _: str) -> None:
        """There is none any more."""

    def write(self, _: bytes) -> None:
        """Fails."""
        raise RuntimeError("the handler is closed")

    write_eof = write


@pytest.mark.parametrize(
    "data",
    [
        frames.request(1, pictures.jpeg(8, 8), frames.Options(top_k=99)),
        frames.request(1, b"", frames.Options()),
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
        await Connection(classifier, MagicMock(), reader, cast(asyncio.StreamWriter, Gone())).start()

    asyncio.run(serve())
    assert classifier.metrics.requests.labels.call_count == 1

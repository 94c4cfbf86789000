"""How a web process shares the listening socket with the others."""

import asyncio
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from smallplates.settings import Settings
from smallplates.web import process
from smallplates.web.app import create_app
from smallplates.web.remote_registry import RemoteRegistry

pytestmark = pytest.mark.anyio
OTHER = 1


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


class Accepting(process.InheritedServer):
    """The first of two web processes; it only notes what it accepts."""

    def __init__(self, listener: socket.socket, counts: list[int]) -> None:
        settings = Settings()
        registry = RemoteRegistry(Mock())
        app = create_app(settings, "no:Backend", registry)
        super().__init__(app, settings, registry, listener)
        self.connections.most = 16
        self.accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.own = counts[0]
        active = Mock(web_processes=2)
        active.handle.fds.web_process, active.client.memory.counts.connections = 0, counts
        self._service.models = {self._service.default: active}

    def connect(self, connection: socket.socket) -> None:
        self.accepted.put_nowait(connection)

    def _open_connections(self) -> int:
        return self.own


async def took_one(server: Accepting, listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()):
        async with asyncio.timeout(60):
            (await server.accepted.get()).close()


async def test_one_that_has_more_connections_leaves_the_next_one_to_the_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "YIELD_S", 3600)
    loop, left = asyncio.get_running_loop(), asyncio.Event()
    stop_watching = loop.remove_reader

    def remove_reader(fd: socket.socket) -> bool:
        left.set()
        return stop_watching(fd)

    monkeypatch.setattr(loop, "remove_reader", remove_reader)
    counts = [5, 4]
    server = Accepting(listener, counts)
    server.accept()
    await took_one(server, listener)
    counts[OTHER] = 3
    with socket.create_connection(listener.getsockname()):
        async with asyncio.timeout(60):
            await left.wait()
        assert server.accepted.empty()


async def test_it_takes_what_the_others_leave(listener: socket.socket) -> None:
    counts = [7, 0]
    server = Accepting(listener, counts)
    server.accept()
    for server.own in (8, 9):
        await took_one(server, listener)
        assert counts == [server.own, 0]  # for the others to read
    asyncio.get_running_loop().remove_reader(listener)

"""`serving.cluster.remote_engine`: what a web process makes of its parent's messages."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.cluster import messages
from serving.cluster.remote_engine import RemoteEngine
from serving.engine.memory import EngineFds, SlotLayout
from serving.engine.provider import EngineHandle
from serving.errors import ConfigurationError
from serving.settings import Settings
from serving.tasks.image_classification import image_signatures
from tests.e2e.conftest import write_model
from tests.reports import reported

pytestmark = pytest.mark.anyio
LAYOUT = SlotLayout(
    slots=2, frontends=1, workers=1, max_batch=1, signatures=image_signatures((8, 8), 4096)
)


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of a web process, without uvloop."""
    return "asyncio"


@contextmanager
def ends(model_dir: Path) -> Iterator[tuple[socket.socket, RemoteEngine]]:
    """The parent's end, and what a web process has of its own."""
    parent, ours = messages.pair()
    with parent, ours:
        parent.setblocking(False)
        yield parent, RemoteEngine(ours, Settings(model_dir=model_dir))
        asyncio.get_running_loop().remove_reader(ours)


async def said(parent: socket.socket) -> dict[str, Any]:
    """The next message of the web process."""
    async with asyncio.timeout(20):
        data = await asyncio.get_running_loop().sock_recv(parent, messages.MAX_MESSAGE)
    message: dict[str, Any] = json.loads(data)
    return message


async def adopt(_: EngineHandle) -> None:
    """None comes in these tests."""
    raise AssertionError


async def test_an_engine_that_comes_while_the_web_process_starts_is_adopted(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    fd = os.open(os.devnull, os.O_RDWR)
    fds = EngineFds(0, LAYOUT, fd, fd, (fd, fd), fd, fd)
    adopted: list[str] = []

    async def note(handle: EngineHandle) -> None:
        adopted.append(handle.model.description.version)
        await handle.release()

    with ends(tmp_path) as (parent, provider):
        for key, version in enumerate(("1", "2", "3")):
            messages.send_engine(parent, key, version, fds, reported())
        first = await provider.first()
        assert (first.model.description.version, first.fds.layout) == ("1", LAYOUT)
        provider.start(note, lambda: None, lambda: 0)
        assert [(await said(parent)).get("key") for _ in range(3)] == [None, 1, 2]
    os.close(fd)
    assert adopted == ["2", "3"]


async def test_a_ping_is_answered_also_while_the_engine_is_awaited(tmp_path: Path) -> None:
    with ends(tmp_path) as (parent, provider):
        waiting = asyncio.create_task(provider.first())
        messages.send(parent, "ping")
        assert await said(parent) == {"type": "connections", "count": 0}
        provider.stop_loading()
        with pytest.raises(ConfigurationError, match="shutting down"):
            await waiting


async def test_the_parent_hears_of_the_first_connection_and_then_of_what_it_asks(tmp_path: Path) -> None:
    opened: list[int] = []
    with ends(tmp_path) as (parent, provider):
        waiting = asyncio.create_task(provider.first())
        provider.start(adopt, lambda: None, lambda: len(opened))
        assert await said(parent) == {"type": "ready"}
        for number in (1, 2, 3):
            opened.append(number)
            provider.on_connection()
        assert await said(parent) == {"type": "connections", "count": 1}
        for _ in range(2):
            messages.send(parent, "ping")
            assert await said(parent) == {"type": "connections", "count": len(opened)}
            opened.clear()
        opened.append(4)  # the parent believes that there are none
        provider.on_connection()
        assert await said(parent) == {"type": "connections", "count": 1}
        waiting.cancel()


async def test_connections_are_accepted_when_the_parent_says_so(tmp_path: Path) -> None:
    accepting = asyncio.Event()
    with ends(tmp_path) as (parent, provider):
        waiting = asyncio.create_task(provider.first())
        provider.start(adopt, accepting.set, lambda: 0)
        assert await said(parent) == {"type": "ready"}
        assert not accepting.is_set()
        messages.send(parent, "accept")
        async with asyncio.timeout(20):
            await accepting.wait()
        waiting.cancel()


async def test_a_switch_ends_with_the_parents_answer_or_with_the_service(tmp_path: Path) -> None:
    with ends(tmp_path) as (parent, provider):
        waiting = asyncio.create_task(provider.first())
        for answer in ({"error": None}, {"error": "no such version"}, None):
            switching = asyncio.create_task(provider.switch("2", adopt))
            assert await said(parent) == {"type": "switch", "version": "2"}
            if answer is None:
                provider.stop_loading()
            else:
                messages.send(parent, "switched", **answer)
            if answer == {"error": None}:
                await switching
            else:
                with pytest.raises(ConfigurationError, match=r"no such version|shutting down"):
                    await switching
        waiting.cancel()

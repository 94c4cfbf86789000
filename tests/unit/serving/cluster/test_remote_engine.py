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
from serving.cluster.remote_engine import RemoteEngines
from serving.engine.memory import EngineFds, SlotLayout
from serving.engine.provider import EngineHandle, OutOfService
from serving.errors import ConfigurationError
from serving.model import Model
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
def ends() -> Iterator[tuple[socket.socket, RemoteEngines]]:
    """The parent's end, and what a web process has of its own."""
    parent, ours = messages.pair()
    with parent, ours:
        parent.setblocking(False)
        yield parent, RemoteEngines(ours)
        asyncio.get_running_loop().remove_reader(ours)


async def said(parent: socket.socket) -> dict[str, Any]:
    """The next message of the web process."""
    async with asyncio.timeout(20):
        data = await asyncio.get_running_loop().sock_recv(parent, messages.MAX_MESSAGE)
    message: dict[str, Any] = json.loads(data)
    return message


async def unused(*_: object) -> None:
    """What a web process is to adopt or to withdraw comes with the other messages."""
    raise AssertionError


async def test_an_engine_that_comes_while_the_web_process_starts_is_adopted(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    fd = os.open(os.devnull, os.O_RDWR)
    fds = EngineFds(0, LAYOUT, fd, fd, (fd, fd), fd, fd)
    with ends() as (parent, provider):
        for key, version in enumerate(("1", "2", "3")):
            messages.send_engine(parent, key, Model.read(tmp_path, version, "fake"), fds, reported())
        messages.send(parent, "out_of_service", model="other", reason="it is damaged")
        engines = provider.engines()
        for key, version in enumerate(("1", "2", "3")):
            handle = await anext(engines)
            assert isinstance(handle, EngineHandle)
            assert (handle.model.description.version, handle.fds.layout) == (version, LAYOUT)
            await handle.release()
            assert await said(parent) == {"type": "released", "key": key}
        assert await anext(engines) == OutOfService("other", "it is damaged")
    os.close(fd)


async def test_a_ping_is_answered_also_while_the_engine_is_awaited() -> None:
    with ends() as (parent, provider):
        waiting = asyncio.ensure_future(anext(provider.engines()))
        messages.send(parent, "ping")
        assert await said(parent) == {"type": "connections", "count": 0}
        provider.stop_loading()
        with pytest.raises(ConfigurationError, match="shutting down"):
            await waiting


async def test_the_parent_hears_of_the_first_connection_and_then_of_what_it_asks() -> None:
    opened: list[int] = []
    with ends() as (parent, provider):
        waiting = asyncio.ensure_future(anext(provider.engines()))
        provider.start(lambda: None, lambda: len(opened))
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


async def test_connections_are_accepted_when_the_parent_says_so() -> None:
    accepting = asyncio.Event()
    with ends() as (parent, provider):
        waiting = asyncio.ensure_future(anext(provider.engines()))
        provider.start(accepting.set, lambda: 0)
        assert await said(parent) == {"type": "ready"}
        assert not accepting.is_set()
        messages.send(parent, "accept")
        async with asyncio.timeout(20):
            await accepting.wait()
        waiting.cancel()


@pytest.mark.parametrize("kind", ["load", "unload"])
async def test_a_change_ends_with_the_parents_answer_or_with_the_service(
    tmp_path: Path, kind: str
) -> None:
    write_model(tmp_path, "2")
    model = Model.read(tmp_path, "2", "fake")
    asked = {"type": "unload", "model": "fake"}
    if kind == "load":
        asked |= {"type": "load", "version": "2", "path": str(tmp_path)}
    with ends() as (parent, provider):
        waiting = asyncio.ensure_future(anext(provider.engines()))
        for answer in ({"error": None}, {"error": "no such version"}, None):
            work = provider.load(model, unused) if kind == "load" else provider.unload("fake", unused)
            changing = asyncio.create_task(work)
            assert await said(parent) == asked
            if answer is None:
                provider.stop_loading()
            else:
                messages.send(parent, "changed", **answer)
            if answer == {"error": None}:
                await changing
            else:
                with pytest.raises(ConfigurationError, match=r"no such version|shutting down"):
                    await changing
        waiting.cancel()

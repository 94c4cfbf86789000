"""`smallplates.web.remote_registry`: what a web process makes of its parent's messages."""

import asyncio
import errno
import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from smallplates.engine.memory import EngineFds, SlotLayout
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.supervision import messages
from smallplates.supervision.registry import EngineHandle
from smallplates.tasks.image_classification import image_signatures
from smallplates.web.remote_registry import RemoteRegistry
from tests.fake.model import write_model
from tests.reports import reported

pytestmark = pytest.mark.anyio
LAYOUT = SlotLayout(
    slots=2, web_processes=1, workers=1, max_batch=1, signatures=image_signatures((8, 8), 4096)
)


class Web:
    """What answers requests; it refuses version 3."""

    index = 0

    def __init__(self) -> None:
        self.handles: dict[int, EngineHandle] = {}

    async def prepare(self, handle: EngineHandle) -> None:
        if handle.model.description.version == "3":
            handle.release()
            raise ConfigurationError("its tokenizer.json is broken")
        self.handles[handle.key] = handle

    async def serve(self, _: int) -> None:
        raise AssertionError

    async def discard(self, key: int) -> None:
        self.handles.pop(key).release()

    async def withdraw(self, _: str, reason: str) -> None:
        raise AssertionError(reason)


@contextmanager
def ends() -> Iterator[tuple[socket.socket, RemoteRegistry, Web]]:
    """The parent's end, and what a web process has of its own."""
    parent, ours = messages.pair()
    with parent, ours:
        parent.setblocking(False)
        yield parent, RemoteRegistry(ours), Web()
        asyncio.get_running_loop().remove_reader(ours)


async def said(parent: socket.socket) -> dict[str, Any]:
    async with asyncio.timeout(60):
        data = await asyncio.get_running_loop().sock_recv(parent, messages.MAX_MESSAGE)
    message: dict[str, Any] = json.loads(data)
    return message


@contextmanager
def engine(folder: Path, version: str) -> Iterator[dict[str, Any]]:
    """The fields of the message that brings an engine."""
    fd = os.open(os.devnull, os.O_RDWR)
    fds = EngineFds(0, LAYOUT, fd, fd, (fd, fd), fd, fd)
    model = Model.read(folder, version, "fake")
    handle = EngineHandle(int(version), model, fds, reported(), lambda: None)
    yield messages.engine_fields(handle)
    os.close(fd)


async def test_what_cannot_serve_or_need_not_is_given_back(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    with ends() as (parent, registry, web), engine(tmp_path, "3") as bad, engine(tmp_path, "1") as one:
        joining = asyncio.ensure_future(registry.join(web))
        messages.send(parent, "prepare", id=0, **bad)
        assert await said(parent) == {"type": "released", "key": 3}
        answer = await said(parent)
        assert (answer["id"], "tokenizer" in answer["error"]) == (0, True)
        messages.send(parent, "prepare", id=1, **one)
        assert (await said(parent))["error"] is None
        messages.send(parent, "discard", id=2, key=1)
        assert await said(parent) == {"type": "released", "key": 1}
        assert (await said(parent))["id"] == 2
        (tmp_path / "model.json").unlink()
        messages.send(parent, "prepare", id=3, **one)
        assert await said(parent) == {"type": "released", "key": 1}
        assert "no model in" in (await said(parent))["error"]
        joining.cancel()
        await registry.close()


async def test_a_thread_that_the_system_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "1")

    async def refuse(*_: object) -> None:
        raise RuntimeError("no new thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    with ends() as (parent, registry, web), engine(tmp_path, "1") as one:
        joining = asyncio.ensure_future(registry.join(web))
        messages.send(parent, "prepare", id=0, **one)
        assert await said(parent) == {"type": "released", "key": 1}
        assert "no new thread" in (await said(parent))["error"]
        joining.cancel()
        await registry.close()


async def test_a_defect_fails_its_change_and_no_other(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    with ends() as (parent, registry, web), engine(tmp_path, "1") as one, capture_logs() as lines:
        joining = asyncio.ensure_future(registry.join(web))
        messages.send(parent, "serve", id=0, key=1)  # raises AssertionError
        assert "unexpected" in (await said(parent))["error"]
        messages.send(parent, "prepare", id=1, **one | {"report": {}})
        assert await said(parent) == {"type": "released", "key": 1}
        assert "unexpected" in (await said(parent))["error"]
        messages.send(parent, "begin", id=2)
        assert await said(parent) == {"type": "done", "id": 2, "error": None}
        await joining
        await registry.close()
    assert [line["event"] for line in lines] == ["a change failed"] * 2


async def test_a_long_reason_arrives_shortened_in_one_message() -> None:
    async def fail() -> None:
        raise ConfigurationError("\U0001f363" * 100_000)

    with ends() as (parent, registry, _):
        await messages.answer(registry._outbox.send, 0, fail())
        assert (await said(parent))["error"].startswith("\U0001f363")


async def test_messages_wait_for_a_parent_that_reads_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "RETRY_S", 0.001)
    with ends() as (parent, registry, _):
        sent = 0
        registry._sock.setblocking(False)
        while not registry._outbox._waiting:
            registry._outbox.send("connections", count=sent)
            sent += 1
        registry._outbox.send("ready")
        for count in range(sent):
            assert await said(parent) == {"type": "connections", "count": count}
        assert await said(parent) == {"type": "ready"}
        send, failures = messages.send, [OSError(errno.ENOBUFS, "no room")]

        def fail_once(*arguments: Any, **fields: Any) -> None:
            if failures:
                raise failures.pop()
            send(*arguments, **fields)

        monkeypatch.setattr(messages, "send", fail_once)
        registry._outbox.send("ready")
        assert await said(parent) == {"type": "ready"}
        parent.close()
        registry._outbox.send("ready")  # nobody needs it
        assert not registry._outbox._waiting


@pytest.mark.parametrize("most", [messages.MAX_MESSAGE, 0])
async def test_an_engine_for_which_there_is_no_descriptor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    write_model(tmp_path, "1")
    monkeypatch.setattr(messages, "MAX_MESSAGE", most)
    with ends() as (parent, registry, web), engine(tmp_path, "1") as one:
        joining = asyncio.ensure_future(registry.join(web))
        messages.send(parent, "prepare", id=7, **one)
        monkeypatch.setattr(messages, "MAX_MESSAGE", 65536)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(parent.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
        try:
            registry._on_message()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await said(parent) == {"type": "released", "key": 1}
        answer = await said(parent)
        assert answer["id"] == 7
        assert "descriptor" in answer["error"]
        joining.cancel()
        await registry.close()


async def test_a_ping_is_answered_also_while_the_engine_is_awaited() -> None:
    with ends() as (parent, registry, web):
        waiting = asyncio.ensure_future(registry.join(web))
        messages.send(parent, "ping")
        assert await said(parent) == {"type": "connections", "count": 0}
        registry.stop()
        with pytest.raises(ConfigurationError, match="shutting down"):
            await waiting


async def test_the_parent_hears_of_the_first_connection_and_then_of_what_it_asks() -> None:
    opened: list[int] = []
    with ends() as (parent, registry, web):
        waiting = asyncio.ensure_future(registry.join(web))
        registry.start(lambda: None, lambda: len(opened))
        assert await said(parent) == {"type": "ready"}
        for number in (1, 2, 3):
            opened.append(number)
            registry.on_connection()
        assert await said(parent) == {"type": "connections", "count": 1}
        for _ in range(2):
            messages.send(parent, "ping")
            assert await said(parent) == {"type": "connections", "count": len(opened)}
            opened.clear()
        opened.append(4)  # the parent believes that there are none
        registry.on_connection()
        assert await said(parent) == {"type": "connections", "count": 1}
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
    with ends() as (parent, registry, web):
        waiting = asyncio.ensure_future(registry.join(web))
        gone = asyncio.create_task(registry.unload("fake"))
        assert (await said(parent))["id"] == 0
        gone.cancel()  # its answer is not that of the next change
        for number, answer in enumerate(({"error": None}, {"error": "no such version"}, None), 1):
            work = registry.load(model) if kind == "load" else registry.unload("fake")
            changing = asyncio.create_task(work)
            assert await said(parent) == asked | {"id": number}
            if answer is None:
                registry.stop()
            else:
                messages.send(parent, "done", id=0, error="an earlier one")
                messages.send(parent, "done", id=number, **answer)
            if answer == {"error": None}:
                await changing
            else:
                with pytest.raises(ConfigurationError, match=r"no such version|shutting down"):
                    await changing
        waiting.cancel()

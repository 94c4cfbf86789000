"""`serving.cluster.messages.RemoteEngine`: what a web process makes of the cluster's messages."""

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from unittest.mock import Mock

from serving.cluster import messages
from serving.engine.memory import EngineFds, SlotLayout
from serving.engine.provider import EngineHandle
from serving.settings import Settings
from tests.e2e.conftest import write_model

LAYOUT = SlotLayout(slots=2, frontends=1, workers=1, max_batch=1, height=8, width=8, classes=4096)


def test_an_engine_that_comes_while_the_web_process_starts_is_adopted(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    fd = os.open(os.devnull, os.O_RDWR)
    fds = EngineFds(0, LAYOUT, fd, (fd, fd), fd, fd)
    cluster, web = messages.pair()
    adopted: list[str] = []

    async def adopt(handle: EngineHandle) -> None:
        adopted.append(handle.model.description.version)
        await handle.release()

    async def main() -> None:
        provider = messages.RemoteEngine(web, Settings(model_dir=tmp_path))
        for key, version in enumerate(("1", "2", "3")):
            messages.send_engine(cluster, key, version, fds, {})
        first = await provider.first()
        assert first.model.description.version == "1"
        with contextlib.suppress(BlockingIOError):
            while web.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):  # noqa: ASYNC110 the loop reads
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # what came last has been looked at
        provider.start(adopt, Mock(), Mock())
        said = [await asyncio.to_thread(cluster.recv, messages.MAX_MESSAGE) for _ in range(3)]
        assert [json.loads(message).get("key") for message in said] == [None, 1, 2]

    cluster.settimeout(20)
    with cluster, web:
        asyncio.run(main())
    os.close(fd)
    assert adopted == ["2", "3"]


def test_a_question_is_answered_also_while_the_engine_is_awaited(tmp_path: Path) -> None:
    cluster, web = messages.pair()

    async def main() -> bytes:
        waiting = asyncio.create_task(messages.RemoteEngine(web, Settings(model_dir=tmp_path)).first())
        cluster.send(messages.QUESTION)
        said = await asyncio.to_thread(cluster.recv, messages.MAX_MESSAGE)
        waiting.cancel()
        asyncio.get_running_loop().remove_reader(web)
        return said

    cluster.settimeout(20)
    with cluster, web:
        assert json.loads(asyncio.run(main())) == {"type": "here"}

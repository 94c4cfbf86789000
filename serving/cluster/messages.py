"""What `cluster.py` and its web processes say to each other: small messages, descriptors attached.

To a web process: CONNECTION with a client's socket; `engine` with an engine's descriptors; `switched`,
the answer to its `switch`; QUESTION, which its event loop answers with `here`. From a web process:
`ready`, `switch`, `released` and `here`.
"""

import array
import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from serving.engine.memory import EngineFds, SlotLayout
from serving.engine.provider import Adopt, EngineHandle
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings

CONNECTION = b"c"
QUESTION = b"?"
MAX_MESSAGE = 65536
MAX_FDS = 8


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_engine(
    sock: socket.socket, key: int, version: str, fds: EngineFds, profile: dict[str, Any]
) -> None:
    """An engine for one web process."""
    message = {
        "type": "engine",
        "key": key,
        "version": version,
        "frontend": fds.frontend,
        "layout": asdict(fds.layout),
        "profile": profile,
    }
    numbers = [fds.memory_fd, *fds.work_fds, fds.done_fd, fds.wakeup_fd]
    socket.send_fds(sock, [json.dumps(message).encode()], numbers)


def send_connection(sock: socket.socket, connection: socket.socket) -> None:
    """A client's. Raises OSError, BlockingIOError where many messages have not been read yet."""
    fds = array.array("i", [connection.fileno()])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
    sock.sendmsg([CONNECTION], rights, socket.MSG_DONTWAIT)  # send_fds knows no flags before 3.13


def send(sock: socket.socket, **message: Any) -> None:
    """A message without descriptors."""
    sock.send(json.dumps(message).encode())


class RemoteEngine:
    """A web process's end: an `EngineProvider`, and where its connections come from."""

    def __init__(self, sock: socket.socket, settings: Settings) -> None:
        self._sock = sock
        self._settings = settings
        self._adopt: Adopt | None = None
        self._first: asyncio.Future[EngineHandle] | None = None
        self._early: list[EngineHandle] = []
        self._answer: asyncio.Future[str | None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connect: Callable[[socket.socket], None] | None = None
        self._lose: Callable[[], None] | None = None

    async def first(self) -> EngineHandle:
        """See `EngineProvider`."""
        loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        handle: asyncio.Future[EngineHandle] = loop.create_future()
        self._first = handle

        async def take(engine: EngineHandle) -> None:
            if handle.done():  # the version has been switched while this process was starting
                self._early.append(engine)
            else:
                handle.set_result(engine)

        self._adopt = take
        loop.add_reader(self._sock.fileno(), self._on_message)
        return await handle

    def start(
        self, adopt: Adopt, connect: Callable[[socket.socket], None], lose: Callable[[], None]
    ) -> None:
        """From now on connections, and now and then another engine, may come.

        `lose` is called for a connection that came when this process had no descriptor left for it.
        """
        self._adopt = adopt
        self._connect, self._lose = connect, lose
        for handle in self._early:
            self._spawn(adopt(handle))
        send(self._sock, type="ready")

    async def switch(self, version: str, adopt: Adopt) -> None:  # noqa: ARG002 it comes by message
        """See `EngineProvider`; every web process of the cluster adopts the new version."""
        self._answer = asyncio.get_running_loop().create_future()
        send(self._sock, type="switch", version=version)
        if (error := await self._answer) is not None:
            raise ConfigurationError(error)

    def abandon(self) -> None:
        """See `EngineProvider`; what the cluster loads, it gives up itself."""
        reason = "the service is shutting down"
        if self._first is not None and not self._first.done():
            self._first.set_exception(ConfigurationError(reason))
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reason)

    def _on_message(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, MAX_MESSAGE, MAX_FDS)
        except BlockingIOError:
            return
        if not data:  # the cluster has ended; this process ends with it
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
        elif data == CONNECTION:
            assert self._connect is not None  # noqa: S101 none comes before `start`
            assert self._lose is not None  # noqa: S101
            if fds:
                self._connect(socket.socket(fileno=fds[0]))
            else:
                self._lose()
        elif data == QUESTION:
            send(self._sock, type="here")
        else:
            self._on_json(json.loads(data), fds)

    def _on_json(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["type"] == "engine":
            assert self._adopt is not None  # noqa: S101 set before messages are read
            self._spawn(self._adopt(self._handle(message, fds)))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message.get("error"))

    def _handle(self, message: dict[str, Any], numbers: list[int]) -> EngineHandle:
        memory_fd, interactive_fd, bulk_fd, done_fd, wakeup_fd = numbers
        fds = EngineFds(
            frontend=message["frontend"],
            layout=SlotLayout(**message["layout"]),
            memory_fd=memory_fd,
            work_fds=(interactive_fd, bulk_fd),
            done_fd=done_fd,
            wakeup_fd=wakeup_fd,
        )

        async def release() -> None:
            for fd in numbers:
                os.close(fd)
            send(self._sock, type="released", key=message["key"])

        model = Model.read(self._settings.model_dir, message["version"])
        return EngineHandle(model, fds, message["profile"], release)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._tasks.discard)

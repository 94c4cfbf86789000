"""A web process's end of the socket to the parent, in which the registry runs."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smallplates.engine.report import REPORT
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.supervision import messages
from smallplates.supervision.registry import ENDING, EngineHandle, Member

Message = tuple[dict[str, Any], list[int]]


class RemoteRegistry:
    """What `Registry` is to the only web process, for one of several."""

    shares_ports = True

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox = messages.Outbox(sock)
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        """Changes to make, one after the other."""

        self._joined: asyncio.Future[None] | None = None
        """Done when this process knows all that is in service."""

        self._calls = messages.Calls()
        self._accept: Callable[[], None] = lambda: None
        self._open_connections: Callable[[], int] = lambda: 0
        self._is_watched = False
        """Whether the parent knows about open connections and therefore pings this process."""

    async def join(self, member: Member) -> None:
        """See `Registry`."""
        loop = asyncio.get_running_loop()
        self._joined = loop.create_future()
        self._sock.setblocking(False)
        loop.add_reader(self._sock, self._on_message)
        self._following = loop.create_task(self._follow(member))
        await self._joined

    def start(self, accept: Callable[[], None], open_connections: Callable[[], int]) -> None:
        """Tells the parent that this process is ready; calls `accept` once it may accept connections."""
        self._accept, self._open_connections = accept, open_connections
        self._outbox.send("ready")

    def on_connection(self) -> None:
        """Tells the parent that there are connections, unless it knows already."""
        if not self._is_watched:
            self._send_connections()

    async def load(self, model: Model) -> None:
        """See `Registry`."""
        await self._calls.make(self._outbox.send, "load", **messages.identity(model))

    async def unload(self, name: str) -> None:
        """See `Registry`."""
        await self._calls.make(self._outbox.send, "unload", model=name)

    def stop(self) -> None:
        """See `Registry`; the parent itself aborts its loading."""
        if self._joined is not None and not self._joined.done():
            self._joined.set_exception(ConfigurationError(ENDING))
        self._calls.end(ENDING)

    async def close(self) -> None:
        """See `Registry`; the engines belong to the parent."""
        self._following.cancel()

    def _on_message(self) -> None:
        try:
            received = messages.receive(self._sock)
        except BlockingIOError:
            return
        if received is None:  # the parent has died, and this process dies with it
            asyncio.get_running_loop().remove_reader(self._sock)
            return
        message, _ = received
        match message["type"]:
            case "accept":
                self._accept()
            case "ping":
                self._send_connections()
            case "done":
                self._calls.on_done(message["id"], message["error"])
            case _:
                self._messages.put_nowait(received)

    def _send_connections(self) -> None:
        count = self._open_connections()
        self._is_watched = count > 0
        self._outbox.send("connections", count=count)

    async def _follow(self, member: Member) -> None:
        """Makes the registry's changes in this process, and says so."""
        while True:
            message, fds = await self._messages.get()
            await messages.answer(self._outbox.send, message["id"], self._make(member, message, fds))

    async def _make(self, member: Member, message: dict[str, Any], fds: list[int]) -> None:
        """Makes one change. Raises ConfigurationError."""
        match message["type"]:
            case "prepare":
                await member.prepare(await self._handle(message, fds))
            case "discard":
                await member.discard(message["key"])
            case "serve":
                await member.serve(message["key"])
            case "withdraw":
                await member.withdraw(message["model"], message["reason"])
            case "begin":
                assert self._joined is not None  # noqa: S101 `join` has begun
                if not self._joined.done():
                    self._joined.set_result(None)

    async def _handle(self, message: dict[str, Any], fds: list[int]) -> EngineHandle:
        """Returns the engine that a message brings, or releases it and raises an error."""

        def release() -> None:
            for fd in fds:
                os.close(fd)
            self._outbox.send("released", key=message["key"])

        if "is_cut" in message:
            release()
            raise ConfigurationError(
                "a web process has no descriptor left: raise the limit of open files"
            )
        try:
            model = await asyncio.to_thread(
                Model.read, Path(message["path"]), message["version"], message["model"]
            )
            engine, report = messages.engine_fds(message, fds), REPORT.validate_python(message["report"])
        except Exception as error:
            release()
            if isinstance(error, RuntimeError):  # the system refuses a thread
                raise ConfigurationError(f"{message['model']} cannot be read: {error}") from error
            raise
        return EngineHandle(message["key"], model, engine, report, release)

"""A web process's end of the socket to the parent, which provides the engines."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from serving.cluster import messages
from serving.engine.provider import Adopt, EngineHandle, OutOfService, Withdraw
from serving.engine.report import REPORT
from serving.errors import ConfigurationError
from serving.model import Model

ENDING = "the service is shutting down"


class RemoteEngines:
    """`EngineProvider` for a web process whose engines come from the parent."""

    shares_ports = True

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._handles: asyncio.Queue[EngineHandle | OutOfService | None] = asyncio.Queue()
        """Engines to adopt; None marks the end."""

        self._changed: asyncio.Future[str | None] | None = None
        """Outcome of the requested change: an error message, or None for success."""

        self._accept: Callable[[], None] = lambda: None
        self._open_connections: Callable[[], int] = lambda: 0
        self._is_watched = False
        """Whether the parent knows about open connections and therefore pings this process."""

    async def engines(self) -> AsyncIterator[EngineHandle | OutOfService]:
        """See `EngineProvider`; engines of other versions follow, in every web process."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._on_message)
        while engine := await self._handles.get():
            yield engine
        raise ConfigurationError(ENDING)

    def start(self, accept: Callable[[], None], open_connections: Callable[[], int]) -> None:
        """Tells the parent that this process is ready; calls `accept` once it may accept connections."""
        self._accept, self._open_connections = accept, open_connections
        messages.send(self._sock, "ready")

    def on_connection(self) -> None:
        """Tells the parent that there are connections, unless it knows already."""
        if not self._is_watched:
            self._send_connections()

    async def load(self, model: Model, adopt: Adopt) -> None:  # noqa: ARG002 see `engines`
        """See `EngineProvider`; every web process of the service adopts the model."""
        await self._change("load", **messages.identity(model))

    async def unload(self, name: str, withdraw: Withdraw) -> None:  # noqa: ARG002 see `engines`
        """See `EngineProvider`; every web process of the service withdraws the model."""
        await self._change("unload", model=name)

    async def _change(self, kind: str, **fields: Any) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        messages.send(self._sock, kind, **fields)
        if (error := await self._changed) is not None:
            raise ConfigurationError(error)

    def stop_loading(self) -> None:
        """See `EngineProvider`; the parent itself aborts its loading."""
        self._handles.put_nowait(None)
        self._on_changed(ENDING)

    def _on_message(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, messages.MAX_MESSAGE, messages.MAX_FDS)
        except BlockingIOError:
            return
        if not data:  # the parent has died, and this process dies with it
            asyncio.get_running_loop().remove_reader(self._sock)
            return
        message: dict[str, Any] = json.loads(data)
        match message["type"]:
            case "engine":
                self._handles.put_nowait(self._handle(message, fds))
            case "out_of_service":
                self._handles.put_nowait(OutOfService(message["model"], message["reason"]))
            case "accept":
                self._accept()
            case "ping":
                self._send_connections()
            case "changed":
                self._on_changed(message["error"])

    def _send_connections(self) -> None:
        count = self._open_connections()
        self._is_watched = count > 0
        messages.send(self._sock, "connections", count=count)

    def _on_changed(self, error: str | None) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(error)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> EngineHandle:
        async def release() -> None:
            for fd in fds:
                os.close(fd)
            messages.send(self._sock, "released", key=message["key"])

        model = Model.read(Path(message["path"]), message["version"], message["model"])
        report = REPORT.validate_python(message["report"])
        return EngineHandle(model, messages.engine_fds(message, fds), report, release)

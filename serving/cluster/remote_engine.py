"""The web process's end of the socket to the parent, from which its engines come."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from serving.cluster import messages
from serving.engine.provider import Adopt, EngineHandle, FailedModel
from serving.engine.report import REPORT
from serving.errors import ConfigurationError
from serving.model import Model

ENDING = "the service is shutting down"


class RemoteEngines:
    """`EngineProvider` of a web process whose engines come from the parent."""

    shares_ports = True

    def __init__(self, sock: socket.socket, models: Mapping[str, Model]) -> None:
        """`models`: those to serve by name."""
        self._sock = sock
        self._models = models
        self._handles: asyncio.Queue[EngineHandle | FailedModel | None] = asyncio.Queue()
        """Engines to adopt; None marks the end."""

        self._switched: asyncio.Future[str | None] | None = None
        """Outcome of the requested version: its error, or None."""

        self._accept: Callable[[], None] = lambda: None
        self._open_connections: Callable[[], int] = lambda: 0
        self._is_watched = False
        """Whether the parent knows of open connections, and so pings this process."""

    async def engines(self) -> AsyncIterator[EngineHandle | FailedModel]:
        """See `EngineProvider`; engines of other versions follow, for every web process."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._on_message)
        while engine := await self._handles.get():
            yield engine
        raise ConfigurationError(ENDING)

    def start(self, accept: Callable[[], None], open_connections: Callable[[], int]) -> None:
        """Tells the parent that this process is ready; calls `accept` when it may take connections."""
        self._accept, self._open_connections = accept, open_connections
        messages.send(self._sock, "ready")

    def on_connection(self) -> None:
        """Tells the parent that there are connections, unless it knows."""
        if not self._is_watched:
            self._send_connections()

    async def switch(self, name: str, version: str, adopt: Adopt) -> None:  # noqa: ARG002 see `engines`
        """See `EngineProvider`; every web process of the service adopts the new version."""
        self._switched = asyncio.get_running_loop().create_future()
        messages.send(self._sock, "switch", model=name, version=version)
        if (error := await self._switched) is not None:
            raise ConfigurationError(error)

    def stop_loading(self) -> None:
        """See `EngineProvider`; the parent gives up itself what it loads."""
        self._handles.put_nowait(None)
        self._on_switched(ENDING)

    def _on_message(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, messages.MAX_MESSAGE, messages.MAX_FDS)
        except BlockingIOError:
            return
        if not data:  # the parent has ended; this process ends with it
            asyncio.get_running_loop().remove_reader(self._sock)
            return
        message: dict[str, Any] = json.loads(data)
        match message["type"]:
            case "engine":
                self._handles.put_nowait(self._handle(message, fds))
            case "failed":
                self._handles.put_nowait(FailedModel(message["model"], message["reason"]))
            case "accept":
                self._accept()
            case "ping":
                self._send_connections()
            case "switched":
                self._on_switched(message["error"])

    def _send_connections(self) -> None:
        count = self._open_connections()
        self._is_watched = count > 0
        messages.send(self._sock, "connections", count=count)

    def _on_switched(self, error: str | None) -> None:
        if self._switched is not None and not self._switched.done():
            self._switched.set_result(error)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> EngineHandle:
        async def release() -> None:
            for fd in fds:
                os.close(fd)
            messages.send(self._sock, "released", key=message["key"])

        name = message["model"]
        model = Model.read(self._models[name].path, message["version"], name)
        report = REPORT.validate_python(message["report"])
        return EngineHandle(model, messages.engine_fds(message, fds), report, release)

"""One of several web processes; `parent.py` starts it with the listening socket, and sends an engine."""

if __name__ == "__main__":
    from serving.system.signals import end_on_signals

    end_on_signals()

import asyncio
import importlib
import os
import socket
import sys

from fastapi import FastAPI

from serving.app import create_app
from serving.cluster.remote_engine import RemoteEngines
from serving.errors import ConfigurationError
from serving.model import configured_models
from serving.server import Server
from serving.settings import Settings
from serving.system.pdeathsig import die_with_parent

FEW = 1  # connections that a web process may have more than another
YIELD_S = 0.005  # a few turns of a busy event loop


class InheritedServer(Server):
    """Accepts from the listening socket that all web processes have inherited.

    All of them are woken by a connection. One that has more than another leaves it to the others for a
    moment: they may be waiting for a core.
    """

    accept_at_once = 1  # in a turn of the event loop, so that the others get some, too

    def __init__(
        self, app: FastAPI, settings: Settings, provider: RemoteEngines, listener: socket.socket
    ) -> None:
        super().__init__(app, settings)
        self._provider = provider
        self._inherited = listener

    def bind_listener(self) -> None:
        """Takes the parent's socket, which is bound and listens."""
        self._listener = self._inherited

    def start_accepting(self) -> None:
        """Tells the parent that this process is ready; `accept` follows when all of them have been."""
        self._provider.start(self.accept, self._open_connections)

    def _on_connections(self) -> None:
        """Accepts a connection, at once or after the others had time to."""
        assert self._listener is not None  # noqa: S101 it is what has become readable
        connections = fewest = self._open_connections()
        for model in self._service.models.values():  # each has the counts of the whole service
            counts = model.client.memory.counts.connections
            counts[model.handle.fds.frontend] = connections
            fewest = min(counts[: model.web_processes])
        if connections <= fewest + FEW:
            super()._on_connections()
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(YIELD_S, self._accept_what_is_left)

    def _accept_what_is_left(self) -> None:
        if self._listener is not None:
            super()._on_connections()
            self.accept()

    def connect(self, connection: socket.socket) -> None:
        """Serves an accepted connection; the parent watches processes that have some."""
        super().connect(connection)
        self._provider.on_connection()

    def _open_connections(self) -> int:
        return len(self._connecting) + len(self.server_state.connections)


def main() -> None:
    """Arguments: package, parent's process id, descriptors of the control socket and of the listener."""
    package, (parent, control, listener) = sys.argv[1], map(int, sys.argv[2:5])
    die_with_parent(parent)
    settings = Settings()
    try:
        models = configured_models(settings)
        provider = RemoteEngines(socket.socket(fileno=control))
        app = create_app(settings, importlib.import_module(package).BACKEND, models, provider)
        InheritedServer(app, settings, provider, socket.socket(fileno=listener)).run()
    except ConfigurationError as error:
        print(f"a web process cannot start: {error}", file=sys.stderr)  # noqa: T201
        os._exit(1)
    os._exit(0)  # nothing is left to do, and the decoding threads may hold an image


if __name__ == "__main__":
    main()

"""One of several web processes; `supervision/cluster.py` starts it with the listening socket and
sends it engines.
"""

if __name__ == "__main__":
    from smallplates.system.signals import end_on_signals

    end_on_signals()

import asyncio
import importlib
import os
import socket
import sys

from fastapi import FastAPI

from smallplates.errors import ConfigurationError
from smallplates.settings import Settings
from smallplates.system.pdeathsig import die_with_parent
from smallplates.web.app import create_app
from smallplates.web.remote_registry import RemoteRegistry
from smallplates.web.server import Server

FEW = 1  # extra connections that a web process may have before it yields to the others
YIELD_S = 0.005  # a few iterations of a busy event loop


class InheritedServer(Server):
    """Accepts connections from the listening socket that all web processes have inherited.

    A connection wakes all of them. A web process with more connections than another one leaves the new
    connection to the others for a moment, in case they are waiting for a core.
    """

    accept_at_once = 1  # per iteration of the event loop, so that the others get some, too

    def __init__(
        self, app: FastAPI, settings: Settings, registry: RemoteRegistry, listener: socket.socket
    ) -> None:
        super().__init__(app, settings, listener)
        self._registry = registry

    def start_accepting(self) -> None:
        """Tells the parent that this process is ready; it accepts once the parent allows it."""
        self._registry.start(self.accept, self._open_connections)

    def accept(self) -> None:
        """Accepts connections as they arrive, and lets the other web processes know."""
        self._fewest_connections()
        super().accept()

    def _on_connections(self) -> None:
        """Accepts a connection, either at once or after giving the other web processes time to."""
        assert self._listener is not None  # noqa: S101 it has become readable
        if self._open_connections() <= self._fewest_connections() + FEW:
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
        """Serves an accepted connection, and lets the parent know that there are connections."""
        super().connect(connection)
        self._registry.on_connection()

    def _fewest_connections(self) -> int:
        """Publishes how many connections are open here; returns the fewest of any web process."""
        connections = self._open_connections()
        for model in self._service.models.values():  # each gives access to the service's counts
            counts = model.client.memory.counts.connections
            counts[model.handle.fds.web_process] = connections
            return min(counts[: model.web_processes])
        return connections

    def _open_connections(self) -> int:
        return len(self._connecting) + len(self.server_state.connections)


def main() -> None:
    """Arguments: package, parent's process id, descriptors of the control socket and the listener."""
    package, (parent, control, listener) = sys.argv[1], map(int, sys.argv[2:5])
    die_with_parent(parent)
    settings = Settings()
    try:
        registry = RemoteRegistry(socket.socket(fileno=control))
        app = create_app(settings, importlib.import_module(package).BACKEND, registry)
        InheritedServer(app, settings, registry, socket.socket(fileno=listener)).run()
    except ConfigurationError as error:
        print(f"a web process cannot start: {error}", file=sys.stderr)  # noqa: T201
        os._exit(1)
    os._exit(0)  # does not wait for decoding threads, which may be busy with an image


if __name__ == "__main__":
    main()

"""One of several web processes; `cluster.py` starts it and hands it connections and an engine."""

import asyncio
import contextlib
import importlib
import os
import socket
import sys

from serving.app import create_app
from serving.control import GivenEngine
from serving.engine.memory import Tally
from serving.engine.worker import die_with_parent
from serving.server import DatedProtocol, Server
from serving.settings import Settings


class FedServer(Server):
    """Listens nowhere: its connections are accepted elsewhere."""

    source: GivenEngine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Ready when the engine is; connections may come from then on."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self.started = True
        self.source.start(self._classifier.adopt, self._connect)

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it has gone already
            await asyncio.get_running_loop().connect_accepted_socket(self.make_protocol, connection)


def main() -> None:
    """Arguments: package, parent's process id, control descriptor, tally descriptor, own index."""
    package, (parent, control, tally_fd, index) = sys.argv[1], map(int, sys.argv[2:6])
    die_with_parent(parent)
    settings = Settings()
    tally = Tally(tally_fd, settings.web_processes)
    source = GivenEngine(socket.socket(fileno=control), settings)
    app = create_app(settings, importlib.import_module(package).BACKEND, source)

    def on_ended(count: int) -> None:
        tally.ended[index] = count

    DatedProtocol.on_ended = staticmethod(on_ended)
    server = FedServer(app, settings)
    server.source = source
    server.run()
    os._exit(0)  # nothing is left to do, and the decoding threads may hold a picture


if __name__ == "__main__":
    main()

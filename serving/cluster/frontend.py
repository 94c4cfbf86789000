"""One of several web processes; `cluster.py` starts it and hands it connections and an engine."""

if __name__ == "__main__":
    from serving.system.signals import end_on_signals

    end_on_signals()

import importlib
import os
import socket
import sys

from serving.app import create_app
from serving.cluster.messages import RemoteEngine
from serving.engine import topology
from serving.engine.memory import Tally
from serving.engine.worker_args import die_with_parent
from serving.errors import ConfigurationError
from serving.server import Server
from serving.settings import Settings


class FedServer(Server):
    """Listens nowhere: its connections are accepted elsewhere."""

    source: RemoteEngine

    def bind(self) -> None:
        """Does nothing: the parent has the port."""

    def listen(self) -> None:
        """Ready for what is handed over."""
        self.source.start(self._classifier.adopt, self.connect, self.on_accept_failed)


def main() -> None:
    """Arguments: package, parent's process id, control descriptor, tally descriptor, own index."""
    package, (parent, control, tally_fd, index) = sys.argv[1], map(int, sys.argv[2:6])
    die_with_parent(parent)
    settings = Settings()
    tally = Tally(tally_fd, topology.web_processes(settings))
    source = RemoteEngine(socket.socket(fileno=control), settings)
    app = create_app(settings, importlib.import_module(package).BACKEND, source)

    def on_ended(count: int) -> None:
        tally.ended[index] = count

    server = FedServer(app, settings)
    server.connections.on_ended = on_ended
    server.source = source
    try:
        server.run()
    except ConfigurationError as error:
        print(f"a web process cannot start: {error}", file=sys.stderr)  # noqa: T201
        os._exit(1)
    os._exit(0)  # nothing is left to do, and the decoding threads may hold a picture


if __name__ == "__main__":
    main()

"""The connections of one web process: how many there may be, and which one makes room for another.

A connection whose client has yet to send something, a request or the rest of one, can be closed at any
time without harm to the service; the one that has waited longest goes first. So a flood of idle or slow
connections pushes out itself, and whoever sends a whole request at once is answered.
"""

import resource
import time
from email.utils import formatdate
from typing import Any

from serving.http.protocol import HttpProtocol, Patience
from serving.settings import Settings

OTHER_DESCRIPTORS = 128  # of the engine, the logs, the libraries
FEWEST = 16


class Connections:
    """At most `most` are open; `server.py` begins them, and they end themselves here."""

    def __init__(self, settings: Settings) -> None:
        self.most = settings.max_connections
        self.patience = Patience(settings.head_timeout_ms / 1000, settings.body_timeout_ms / 1000)
        self.open = 0
        self.leaving = False
        """Whether the service is about to end; see `HttpProtocol.leave`."""

        self._waiting: dict[Connection, None] = {}

    def begin(self) -> bool:
        """One more; False where all are busy with requests, and it must `end` again at once."""
        self.open += 1
        return self.open <= self.most or self.make_room()

    def end(self) -> None:
        """One fewer."""
        self.open -= 1

    def wait(self, connection: "Connection") -> None:
        """Its client is to send something; it keeps its place in the row."""
        self._waiting.setdefault(connection)

    def work(self, connection: "Connection") -> None:
        """It has a whole request, or is gone."""
        self._waiting.pop(connection, None)

    def make_room(self) -> bool:
        """Closes the one that has waited longest; False where none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self.work(oldest)
        oldest.transport.abort()
        return True


class Connection(HttpProtocol):
    """One connection; sets the Date header when a request comes, not ten times a second without one."""

    _second = 0

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:  # Any: uvicorn's
        super().__init__(*args, **kwargs)
        self._all = connections
        self.patience = connections.patience

    def connection_made(self, transport: Any) -> None:  # Any: uvicorn's is not that of asyncio's base
        """Nothing has been sent yet."""
        super().connection_made(transport)
        self._all.wait(self)
        if self._all.leaving:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its place is free."""
        self._all.work(self)
        self._all.end()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """The head of a request is complete; its answer carries the time."""
        if (now := int(time.time())) != Connection._second:
            Connection._second = now
            date = formatdate(now, usegmt=True).encode()
            self.server_state.default_headers[:] = [(b"date", date), *self.config.encoded_headers]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A whole request is here, unless it has been answered before its end."""
        super().on_message_complete()
        if self.exchange is not None and not self.exchange.complete:
            self._all.work(self)

    def on_response_complete(self) -> None:
        """It waits again, unless another request is here already."""
        super().on_response_complete()
        if self.exchange is not None and self.exchange.complete and not self.transport.is_closing():
            self._all.wait(self)


def most_connections(settings: Settings) -> int:
    """How many HTTP connections there may be, with as many descriptors as the system gives."""
    others = OTHER_DESCRIPTORS
    others += settings.tcp_max_connections if settings.tcp_port is not None else 0
    others += settings.grpc_max_connections if settings.grpc_port is not None else 0
    wanted = settings.max_connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings.max_connections
    if soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    return max(FEWEST, possible - others)

"""The connections of one web process: how many there may be, and which one makes room for another.

A connection that waits for its client, for a request or for the rest of one, can be closed without harm
to the service; the one that has waited longest goes first. A flood of idle or slow connections so pushes
out itself, and a client that sends a whole request at once is answered.
"""

import asyncio
import resource

from serving.settings import Settings

OTHER_DESCRIPTORS = 128  # of the engine, the logs, the libraries
FEWEST = 16


class Connections:
    """Counts connections up to `most`; `server.py` opens them, `protocol.py` closes them."""

    def __init__(self, most: int = 4096, head_s: float = 20.0, write_s: float = 30.0) -> None:
        self.most = most
        self.head_s = head_s  # for a request's head, and for the rest of a body after its answer
        self.write_s = write_s  # for a client to read a full buffer of answers
        self.open = 0
        self.draining = False  # the service is about to end: newest requests are the last ones
        self._waiting: dict[asyncio.Transport, None] = {}

    def opened(self) -> bool:
        """Counts one more; False where all are being answered, and it must be `closed` again at once."""
        self.open += 1
        return self.open <= self.most or self.make_room()

    def closed(self) -> None:
        """Counts one fewer."""
        self.open -= 1

    def mark_idle(self, connection: asyncio.Transport) -> None:
        """Notes that its client is to send something; one that waits already keeps its place."""
        self._waiting.setdefault(connection)

    def mark_busy(self, connection: asyncio.Transport) -> None:
        """Notes that it has a whole request, or is gone."""
        self._waiting.pop(connection, None)

    def make_room(self) -> bool:
        """Closes the connection that has waited longest; False where none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self.mark_busy(oldest)
        oldest.abort()
        return True


def most_connections(settings: Settings) -> int:
    """Returns how many HTTP connections there may be, and raises the limit of descriptors for them."""
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

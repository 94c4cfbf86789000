"""Photos over plain TCP, for programs that want neither HTTP nor base64; on where `tcp_port` is set.

All numbers are big-endian and unsigned. A request frame:

    4 bytes   length of what follows
    4 bytes   id, any number; the answer carries it
    2 bytes   length of the options, 0 to 1024
    ...       options: a JSON object, all of it optional:
              {"top_k": 5, "timeout_ms": 1000, "priority": "bulk", "request_id": "r-1", "key": "KEY"}
    ...       the photo: a picture file, to the end of the frame

A response frame:

    4 bytes   length of what follows
    4 bytes   id of the request; 0 where its frame could not be read
    2 bytes   status, as HTTP has it: 200, 400, 503 ...
    ...       a JSON object. 200: {"prediction", "probability", "request_id", "ms": {"decode", "queue",
              "infer", "total"}}, with "top" where `top_k` was asked; otherwise {"detail", "code",
              "request_id"} with the codes of `/predict`, and "retry_after" in seconds for a 503

A connection may carry any number of requests; answers come as they are ready, in any order. Where the
service has an API key, the first frame brings it as `key`; later ones need not. Where 32 requests of
a connection are unanswered, nothing more is read from it until one is. The service answers what it has
accepted and closes the connection after a mistake that hides where the next frame begins (a length
that makes no sense, or is too large), after a wrong key, after a frame that does not arrive in time,
and where nothing happens for `tcp_idle_timeout_s`. A client that closes its sending side has left:
what it still waits for is cancelled.

With several web processes each listens on the same port (SO_REUSEPORT), and the system spreads the
connections; `cluster.py` holds the port, so that another program on it is noticed at start.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.errors import ConfigurationError, OverloadedError
from serving.http.access_log import choose_id
from serving.http.body import BodyReader
from serving.inference.service import InferenceService
from serving.logging import logger
from serving.protocols import tcp_frames as frames
from serving.protocols.tcp_connection import Connection
from serving.settings import Settings

BACKLOG = 512
READ_AHEAD_BYTES = 64 * 1024  # per connection, twice that before the system is asked to wait
STOP_S = 5.0


class TcpServer:
    """Serves one classifier over TCP while `running`; does nothing where no port is set.

    `reader` is that of the HTTP front-end, so that the bound on buffered bytes is one for both.
    """

    def __init__(self, classifier: InferenceService, reader: BodyReader) -> None:
        self.classifier = classifier
        self.reader = reader
        self._connections: set[Connection] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listens until the block ends, then answers what was accepted. Raises ConfigurationError."""
        settings = self.classifier.settings
        if settings.tcp_port is None:
            yield
            return
        listener = bind(settings)
        host, port = listener.getsockname()[:2]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ConnectionProtocol(self), sock=listener, backlog=BACKLOG
        )
        logger().info("listening", host=host, port=port, protocol="tcp")
        try:
            yield
        finally:
            server.close()
            await self._stop()

    def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection | None:
        """Serves a new connection, or refuses it."""
        if len(self._connections) >= self.classifier.settings.tcp_max_connections:
            self._refuse(writer)
            return None
        connection = Connection(self.classifier, self.reader, reader, writer)
        self._connections.add(connection)

        def on_end(_: asyncio.Task[None]) -> None:
            self._connections.discard(connection)
            writer.close()

        connection.start().add_done_callback(on_end)
        return connection

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        error = OverloadedError("too many connections")
        writer.write(frames.response(0, error.status, frames.complaint(error, choose_id(None))))
        writer.close()
        self.classifier.metrics.requests.labels("tcp", str(error.status), error.code).inc()

    async def _stop(self) -> None:
        tasks = [connection.finish() for connection in self._connections]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class ConnectionProtocol(asyncio.StreamReaderProtocol):
    """A connection's protocol; tells at once that the client has left, also while nobody reads."""

    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._connection: Connection | None = None
        super().__init__(asyncio.StreamReader(READ_AHEAD_BYTES), self._on_connection)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = self._server.welcome(reader, writer)

    def eof_received(self) -> bool:
        """The client sends nothing more."""
        if self._connection:
            self._connection.leave()
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._connection:
            self._connection.leave()
        super().connection_lost(exc)


def bind(settings: Settings) -> socket.socket:
    """A socket on `tcp_port` that does not listen yet. Raises ConfigurationError."""
    shared = settings.shares_ports
    if shared and settings.tcp_port == 0:
        raise ConfigurationError("SERVING_TCP_PORT=0 needs SERVING_WEB_PROCESSES=1: all share the port")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host, settings.tcp_port))
    except OSError as error:
        listener.close()
        text = f"SERVING_TCP_PORT={settings.tcp_port} cannot be listened on: {error}"
        raise ConfigurationError(text) from error
    return listener

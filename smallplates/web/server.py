"""One web process: uvicorn's server, without lost requests at shutdown or wake-ups while idle.

On SIGTERM, readiness checks begin to fail and every connection closes after its next response. After
`shutdown_delay_s`, new requests are refused and accepted ones are answered; then connections close and
the engine stops. A SIGINT during this ends the process at once; a second SIGTERM does not, because a
launcher and systemd may both send one.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import time
from collections.abc import Generator
from functools import partial
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.settings import Settings
from smallplates.system.open_files import allow_open_files
from smallplates.system.signals import ending_signals
from smallplates.web.http.protocol import Connections, HttpProtocol
from smallplates.web.inference.service import InferenceService
from smallplates.web.sockets import allow_reuse, bind, cannot_listen, reserve

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than proxies and client pools keep connections, so that they close first
ROOM_AT_ONCE = 32
ACCEPT_PAUSE_S = 0.1  # when no descriptor is left for a connection
COMPLAIN_S = 1.0
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
OTHER_DESCRIPTORS = 128  # for the engine, the logs, the libraries
FEWEST_CONNECTIONS = 16
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


class Server(uvicorn.Server):
    """Serves one application until a signal; `run` returns after a graceful shutdown."""

    accept_at_once = 256  # uvloop would accept one per iteration; a flood must find all slots taken soon

    def __init__(self, app: FastAPI, settings: Settings, listener: socket.socket | None = None) -> None:
        """`listener` is a socket that is bound already; None: one is bound at startup."""
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=HttpProtocol,
                ws="none",
                lifespan="off",  # handled by `startup`
                access_log=False,
                proxy_headers=False,  # uvicorn would trust X-Forwarded-For from this machine
                log_level="warning",
                log_config=None,  # see `logging.configure_logging`
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._app = app
        self._running = contextlib.AsyncExitStack()
        self._service: InferenceService = app.state.service
        self._settings = settings
        self.connections = Connections(
            settings.max_connections, settings.head_timeout_ms / 1000, settings.body_timeout_ms / 1000
        )
        self._ended = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._listener = listener
        self._complains_again = 0.0
        self._connecting: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Makes signals call `on_signal` instead of ending the process, so the exit code is 0."""
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self.on_signal, number)
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Runs the server from start to shutdown; the engine stops last."""
        async with self._running:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listens once the engine is ready. Raises ConfigurationError unless a signal has arrived."""
        if self._listener is None:
            self._listener = bind(self._settings)
            with reserve(self._settings):  # to find out before the models are loaded
                pass
        address = ip_address(self._listener.getsockname()[0])
        self.connections.check_head = partial(self._app.state.check_head, is_local=address.is_loopback)
        try:
            await self._running.enter_async_context(self._app.router.lifespan_context(self._app))
        except ConfigurationError:
            if self._draining is None:
                raise
        if self._draining is not None:
            self.should_exit = True
            return
        self.servers = []
        self.connections.most = most_connections(self._settings)
        self.started = True
        self.start_accepting()

    def start_accepting(self) -> None:
        """Listens and starts accepting connections. Raises ConfigurationError."""
        assert self._listener is not None  # noqa: S101 `startup` has bound it
        listen(self._listener, self._settings)
        self.accept()
        host, port = self._listener.getsockname()[:2]
        logger().info("listening", host=host, port=port)

    def _on_connections(self) -> None:
        """Accepts up to `accept_at_once` connections, leaving time to make room for more."""
        assert self._listener is not None  # noqa: S101 it has become readable
        for _ in range(min(self.accept_at_once, self.connections.most // 2)):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:  # the client has already gone
                    continue
                self._pause_accepting(self._listener, str(error))
                return
            self.connect(connection)

    def _pause_accepting(self, listener: socket.socket, reason: str) -> None:
        """Stops accepting for a moment, since a listener that stays readable would keep a core busy."""
        if (now := time.monotonic()) >= self._complains_again:
            self._complains_again = now + COMPLAIN_S
            logger().error("a connection cannot be accepted", reason=reason)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(ACCEPT_PAUSE_S, self.accept)
        for _ in range(ROOM_AT_ONCE):
            self.connections.make_room()

    def accept(self) -> None:
        """Accepts connections as they arrive, until shutdown or a pause."""
        if not self.should_exit and self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._on_connections)

    def connect(self, connection: socket.socket) -> None:
        """Serves an accepted connection, or refuses it if there is no room and none can be made."""
        if not self.connections.add():
            with contextlib.suppress(OSError), connection:
                connection.setblocking(False)
                connection.send(BUSY)
            return
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        known = self.config, self.server_state, self.lifespan.state
        protocol = partial(HttpProtocol, *known, connections=self.connections)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        except OSError:  # the client has already gone
            connection.close()
            self.connections.remove()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening, then lets connections finish."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await super().shutdown(sockets)

    def on_signal(self, number: int) -> None:
        """Drains on the first signal; ends the process if a later one is SIGINT."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        elif number == signal.SIGINT:
            os._exit(128 + number)

    async def _drain(self) -> None:
        self._service.refuse_readiness()
        self._drain_connections()
        if not self.started:
            self._service.registry.stop()
            return
        await asyncio.sleep(self._settings.shutdown_delay_s)
        end = time.monotonic() + self._settings.shutdown_timeout_s
        self._service.start_draining()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._service.drain(), self._settings.shutdown_timeout_s)
        self.config.timeout_graceful_shutdown = max(1, round(end - time.monotonic()))
        self.should_exit = True
        self._ended.set()

    def _drain_connections(self) -> None:
        """Makes clients and proxies with persistent connections move to another replica, if any."""
        self.connections.draining = True
        for connection in self.server_state.connections:
            connection.drain()  # type: ignore[union-attr]  # all are ours

    async def main_loop(self) -> None:
        """Waits for shutdown; uvicorn's own loop would wake up ten times a second."""
        gc.collect()
        gc.freeze()  # objects created at startup stay, so the collector need not scan them again
        await self._ended.wait()


def most_connections(settings: Settings) -> int:
    """Returns the maximum number of HTTP connections, and raises the descriptor limit for them."""
    others = OTHER_DESCRIPTORS
    others += settings.tcp_max_connections if settings.tcp_port is not None else 0
    others += settings.grpc_max_connections if settings.grpc_port is not None else 0
    possible = allow_open_files(settings.max_connections + others)
    return max(FEWEST_CONNECTIONS, possible - others)


def listen(listener: socket.socket, settings: Settings) -> None:
    """Makes the socket listen. Warns if other machines need no key. Raises ConfigurationError."""
    allow_reuse(listener)
    with cannot_listen(settings):
        listener.listen(BACKLOG)
    listener.setblocking(False)  # in all processes that share it
    if settings.api_key is None and not ip_address(listener.getsockname()[0]).is_loopback:
        logger().warning("everyone who reaches this port can use the models: set SERVING_API_KEY")

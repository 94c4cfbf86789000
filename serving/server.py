"""One web process: uvicorn's server, with a shutdown that loses nothing and an idle that costs nothing.

On SIGTERM readiness turns false; after `shutdown_delay_s` new requests are refused, while what was
accepted is answered; then connections close and the engine ends. A second signal ends the process
at once.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from email.utils import formatdate

import uvicorn
from fastapi import FastAPI

from serving.classifier import Classifier
from serving.http_protocol import BoundedHttpToolsProtocol
from serving.logs import logger
from serving.settings import Settings

BACKLOG = 2048
ACCEPT_AT_ONCE = 64


class DatedProtocol(BoundedHttpToolsProtocol):
    """Sets the Date header when a request comes, not ten times a second without one."""

    _second = 0
    ended = 0  # connections of this process
    on_ended: Callable[[int], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """One connection fewer; `cluster.py` wants to know."""
        DatedProtocol.ended += 1
        if DatedProtocol.on_ended is not None:
            DatedProtocol.on_ended(DatedProtocol.ended)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """The head of a request is complete; its answer carries the time."""
        if (now := int(time.time())) != DatedProtocol._second:
            DatedProtocol._second = now
            date = formatdate(now, usegmt=True).encode()
            self.server_state.default_headers[:] = [(b"date", date), *self.config.encoded_headers]
        super().on_headers_complete()


class Server(uvicorn.Server):
    """Serves one application until a signal; `run` returns after an orderly end."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=DatedProtocol,
                access_log=False,
                log_level="warning",
                backlog=BACKLOG,
            )
        )
        self._classifier: Classifier = app.state.classifier
        self._settings = settings
        self._ended = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of one connection, as uvicorn makes it."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are requests to stop, not to die: the exit code stays 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.on_signal, number)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listens when the engine is ready."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self.started = True
        self.open_door()

    def open_door(self) -> None:
        """Connections come from now on."""
        self._listener = listen(self._settings)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._on_connections)
        host, port = self._listener.getsockname()[:2]
        logger().info("listening", host=host, port=port)

    def _on_connections(self) -> None:
        """Accepts many at a time: uvloop takes one in each turn of the loop, and turns are long here."""
        assert self._listener is not None  # noqa: S101 it is what has become readable
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors, or the client has gone already
                logger().error("a connection cannot be accepted", reason=str(error))
                return
            self.connect(connection)

    def connect(self, connection: socket.socket) -> None:
        """Serves an accepted connection."""
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it has gone already
            await asyncio.get_running_loop().connect_accepted_socket(self.make_protocol, connection)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the door, lets connections finish, ends the engine."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        await super().shutdown(sockets)

    def on_signal(self, number: int) -> None:
        """The first one drains, the second one ends at once."""
        if self._draining is not None:
            os._exit(128 + number)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        self._classifier.announce_end()
        await asyncio.sleep(self._settings.shutdown_delay_s)
        end = time.monotonic() + self._settings.shutdown_timeout_s
        self._classifier.start_draining()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._classifier.drained(), self._settings.shutdown_timeout_s)
        self.config.timeout_graceful_shutdown = max(1, round(end - time.monotonic()))
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Nothing to do until the end."""
        gc.collect()
        gc.freeze()  # what start has made stays, and need not be looked at again and again
        await self._ended.wait()


def listen(settings: Settings) -> socket.socket:
    """The listening socket."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it accepts inherits that
    listener.bind((settings.host, settings.port))
    listener.listen(BACKLOG)
    return listener

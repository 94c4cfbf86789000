"""Serves the Flask application with waitress; `__main__.py` calls it.

Waitress keeps slow clients away from the threads. It does not bound what they hold: at its limit of
connections it accepts no others, and a client that sends a byte now and then keeps its place and the
memory of its body. `connections.py` closes such connections, so the loop is run here.
"""

import logging
import signal
import time
from ipaddress import ip_address
from types import FrameType
from typing import Any

from flask import Flask
from waitress import create_server, wasyncore  # type: ignore[import-untyped]
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.parser import HTTPRequestParser, ParsingError  # type: ignore[import-untyped]

from flask_app.app import FORM_SLACK
from flask_app.connections import ConnectionLimiter
from flask_app.settings import MEGABYTE, Settings

STOP_WITHIN_S = 8.0
HELD_BYTES = 128 * MEGABYTE

logger = logging.getLogger("flask_app")


class Server:
    """Waitress around the application; its shutdown waits for accepted requests."""

    def __init__(self, app: Flask, settings: Settings) -> None:
        """Starts to listen. Raises OSError, and ValueError when the host is unknown."""
        self._sockets: dict[int, Any] = {}  # Any: waitress has no types
        largest = 2 * settings.max_upload_bytes + FORM_SLACK  # the app refuses less, in its own words
        connections = max(200, 4 * settings.threads)
        self._limiter = ConnectionLimiter(connections, max(HELD_BYTES, 2 * largest))
        self._server = create_server(
            app,
            map=self._sockets,
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            connection_limit=connections,
            channel_request_lookahead=1,  # waitress then notices that a waiting client has left
            max_request_body_size=largest,
            inbuf_overflow=largest + MEGABYTE,  # bodies stay in memory
            outbuf_overflow=64 * MEGABYTE,
            ident=None,
            **_proxy(settings),
        )
        for listener in self._listeners():
            listener.channel_class = Channel
            listener.adj.max_announced_bytes = app.config["MAX_CONTENT_LENGTH"]
        self._host = f"[{settings.host}]" if ":" in settings.host else settings.host
        app.config["IS_LOCAL"] = not self._is_public()
        self._is_guarded = bool(settings.password_file or settings.trusted_proxy)
        self._stopping = False

    def serve(self) -> None:
        """Serves until a signal, then answers what was accepted, for STOP_WITHIN_S at most."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._stop)
        logger.info("page on http://%s:%d", self._host, self._port)
        if not self._is_guarded and self._is_public():
            action = "set UI_PASSWORD_FILE, or UI_TRUSTED_PROXY to a proxy that checks visitors"
            logger.warning("everyone who reaches the page can use the models: %s", action)
        while not self._stopping:
            wasyncore.loop(timeout=0.5, map=self._sockets, count=1, use_poll=True)
            queue = self._server.task_dispatcher.queue
            self._limiter.close_excess(self._channels(), queue.copy(), time.time())
        for listener in self._listeners():
            wasyncore.dispatcher.close(listener)
        deadline = time.monotonic() + STOP_WITHIN_S
        while self._busy() and time.monotonic() < deadline:
            wasyncore.loop(timeout=0.1, map=self._sockets, count=1, use_poll=True)
        self._server.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._sockets)

    @property
    def _port(self) -> int:
        return int(self._listeners()[0].socket.getsockname()[1])

    def _is_public(self) -> bool:
        """Returns whether other machines may reach the page."""
        addresses = [listener.socket.getsockname()[0] for listener in self._listeners()]
        return not all(ip_address(address).is_loopback for address in addresses)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _listeners(self) -> list[Any]:
        return [entry for entry in self._sockets.values() if getattr(entry, "accepting", False)]

    def _channels(self) -> list[Any]:
        return [entry for entry in self._sockets.values() if hasattr(entry, "requests")]

    def _busy(self) -> bool:
        return any(channel.requests or channel.total_outbufs_len for channel in self._channels())


class RequestParser(HTTPRequestParser):  # type: ignore[misc]
    """Parses requests that waitress 3.0 handles wrongly.

    It closes the connection without an answer at a target like `http://[/`, and lets a client continue
    that asks whether to send a body over the limit.
    """

    def parse_header(self, header_plus: bytes) -> None:
        """Parses request line and headers. Raises ParsingError, which waitress answers with 400.

        If the client waits for permission to send too large a body, the request is complete without the
        body. The application then refuses it by its Content-Length, and the connection is closed.
        """
        try:
            super().parse_header(header_plus)
        except ValueError as error:
            raise ParsingError(f"Bad URI: {error}") from error
        if self.expect_continue and self.content_length > self.adj.max_announced_bytes:
            self.expect_continue: bool = False
            self.body_rcv = None
            self.content_length: int = 0
            self.headers["CONNECTION"] = "close"


class Channel(HTTPChannel):  # type: ignore[misc]
    """Connection whose requests `RequestParser` reads."""

    parser_class = RequestParser


def _proxy(settings: Settings) -> dict[str, str]:
    if settings.trusted_proxy is None:
        return {}
    return {
        "trusted_proxy": settings.trusted_proxy,
        "trusted_proxy_headers": "x-forwarded-for x-forwarded-proto",
    }

"""Serves the page: `python -m flask_app`. The composition root of settings, app and server."""

import os
import signal

if __name__ == "__main__":  # before all imports: process 1 of a container never hears of signals without
    for early in (signal.SIGTERM, signal.SIGINT):
        signal.signal(early, lambda *_: os._exit(0))

import logging
import sys
import time
from types import FrameType
from typing import Any

from flask import Flask
from pydantic import ValidationError
from pydantic_settings import SettingsError
from waitress import create_server, wasyncore  # type: ignore[import-untyped]

from flask_app.app import FORM_SLACK, create_app
from flask_app.connections import Waiting
from flask_app.settings import MEGABYTE, Settings

STOP_WITHIN_S = 8.0
HELD_BYTES = 128 * MEGABYTE

logger = logging.getLogger("flask_app")


class Server:
    """Waitress around the application, with an end that waits for what was accepted."""

    def __init__(self, app: Flask, settings: Settings) -> None:
        self._sockets: dict[int, Any] = {}  # Any: waitress has no types
        largest = 2 * settings.max_upload_bytes + FORM_SLACK  # over the app's own limit: its words
        connections = max(200, 4 * settings.threads)
        self._waiting = Waiting(connections, max(HELD_BYTES, 2 * largest))
        self._server = create_server(
            app,
            map=self._sockets,
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            connection_limit=connections,
            channel_request_lookahead=1,  # makes waitress notice that a waiting client has left
            max_request_body_size=largest,
            inbuf_overflow=largest + MEGABYTE,  # bodies stay in memory
            outbuf_overflow=64 * MEGABYTE,
            ident=None,
            **_proxy(settings),
        )
        self._host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._stopping = False

    def serve(self) -> None:
        """Until SIGTERM or SIGINT; then until what was accepted is answered, with a deadline."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        logger.info("page on http://%s:%d", self._host, self._port)
        while not self._stopping:
            wasyncore.loop(timeout=0.5, map=self._sockets, count=1, use_poll=True)
            queue = self._server.task_dispatcher.queue
            self._waiting.close_some(self._channels(), queue.copy(), time.time())
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

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _listeners(self) -> list[Any]:
        return [entry for entry in self._sockets.values() if getattr(entry, "accepting", False)]

    def _channels(self) -> list[Any]:
        return [entry for entry in self._sockets.values() if hasattr(entry, "requests")]

    def _busy(self) -> bool:
        return any(channel.requests or channel.total_outbufs_len for channel in self._channels())


def _proxy(settings: Settings) -> dict[str, str]:
    if settings.trusted_proxy is None:
        return {}
    return {
        "trusted_proxy": settings.trusted_proxy,
        "trusted_proxy_headers": "x-forwarded-for x-forwarded-proto",
    }


def main() -> int:
    """Returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    for name in ("waitress", "httpx"):  # a line a request would hold up the page where nobody reads it
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = Settings()
        app = create_app(settings)
    except (ValidationError, SettingsError, OSError) as error:
        logger.error("the page cannot start: %s", in_words(error))
        return 2
    try:
        server = Server(app, settings)
    except (OSError, ValueError) as error:  # ValueError: waitress has not found the host
        place = f"UI_HOST={settings.host} UI_PORT={settings.port}"
        reason = getattr(error, "strerror", None) or error
        logger.error("the page cannot start: %s cannot be listened on: %s", place, reason)
        return 2
    try:
        server.serve()
    finally:
        app.extensions["api"].close()
    return 0


def in_words(error: ValidationError | SettingsError | OSError) -> str:
    """On one line; settings by the names of their variables, without their values."""
    if isinstance(error, SettingsError):
        return f"UI_SECRETS_DIR cannot be read: {error}"
    if isinstance(error, OSError):
        return str(error)
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"UI_{str(problem['loc'][0]).upper()}: {problem['msg']}" for problem in problems)


if __name__ == "__main__":
    sys.exit(main())

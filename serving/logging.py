"""Structured logs on standard error: one line a request, each with its id; libraries speak like us.

Where standard error is a full disk, or a pipe that nobody reads, lines are lost and the service goes on.
"""

import contextlib
import logging
import os
import select
from functools import cache
from typing import Any

import orjson
import structlog

from serving.settings import Settings

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
STDERR = 2
PATIENCE_MS = 20  # for a reader that has fallen behind, once
PIPE_BUF = 4096  # bytes for which a pipe that can be written has room
LOST = b'{"lines":%d,"event":"log lines were lost: nobody read them","level":"warning"}\n'


class Sink:
    """A descriptor to which is written what it takes at once; the rest is counted."""

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._lost = 0

    def write(self, line: bytes) -> None:
        """A line with its end; never blocks for long, never raises."""
        if self._lost and self._put(LOST % self._lost):
            self._lost = 0
        if not self._put(line):
            self._lost += 1

    def flush(self) -> None:
        """Nothing is held back."""

    def _put(self, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            for first in range(0, len(data), PIPE_BUF):
                if not self._poll.poll(0 if self._lost else PATIENCE_MS):
                    return False
                os.write(self._fd, data[first : first + PIPE_BUF])
            return True
        return False


class Forwarded(logging.Handler):
    """What libraries say through `logging`, in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        logger().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


@cache
def logger() -> structlog.typing.FilteringBoundLogger:
    """The project's logger, as `configure_logging` set it up."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
    return log


def configure_logging(settings: Settings) -> None:
    """Sets format and level for this process; called once, by the composition root."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ]
    else:
        plain = structlog.dev.plain_traceback  # no variables: one of them may be a key
        processors += [
            visible,
            structlog.dev.ConsoleRenderer(colors=os.isatty(STDERR), exception_formatter=plain),
            encoded,
        ]
    sink: Any = Sink()  # which is a file as far as the logger needs one
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=structlog.BytesLoggerFactory(sink),
    )
    logger.cache_clear()
    logging.getLogger("uvicorn.access").disabled = True
    if not any(isinstance(handler, Forwarded) for handler in logging.getLogger().handlers):
        logging.getLogger().addHandler(Forwarded())


def visible(_logger: object, _method: str, event: Any) -> Any:  # Any: as structlog has it
    """Control characters, with which a client's path could paint on a terminal, as `\\x1b`."""
    return {key: escaped(value) if isinstance(value, str) else value for key, value in event.items()}


def escaped(text: str) -> str:
    """On one line, and as it is where all of it can be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encoded(_logger: object, _method: str, line: Any) -> bytes:  # Any: as structlog has it
    """The last step of those that make text."""
    return str(line).encode("utf-8", "backslashreplace")

"""Structured logs on standard error: one line for each request; libraries' logs take the same form.

If standard error is a full disk or a pipe that nobody reads, lines are lost and the service goes on.
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
PATIENCE_MS = 20  # for a reader that is late; none after a line was lost
PIPE_BUF = 4096  # bytes that a writable pipe has room for
LOST = b'{"lines":%d,"event":"log lines were lost: nobody read them","level":"warning"}\n'


class Sink:
    """File-like writer that never blocks for long; counts the lines that are lost."""

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._lost = 0

    def write(self, line: bytes) -> None:
        """Writes a line with its line end; never raises."""
        if self._lost and self._put(LOST % self._lost):
            self._lost = 0
        if not self._put(line):
            self._lost += 1

    def flush(self) -> None:
        """Does nothing: nothing is buffered."""

    def _put(self, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            for first in range(0, len(data), PIPE_BUF):
                if not self._poll.poll(0 if self._lost else PATIENCE_MS):
                    return False
                os.write(self._fd, data[first : first + PIPE_BUF])
            return True
        return False


class StructlogHandler(logging.Handler):
    """Handler that passes libraries' log records on to the project's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Logs one record."""
        logger().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


@cache
def logger() -> structlog.typing.FilteringBoundLogger:
    """Returns the project's logger, as `configure_logging` has set it up."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
    return log


def configure_logging(settings: Settings, **fields: str) -> None:
    """Sets the format and level of this process's logs; the composition root calls it once.

    `fields` are added to every line.
    """
    processors: list[structlog.typing.Processor] = [
        *([lambda _logger, _method, event: {**fields, **event}] if fields else []),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ]
    else:
        plain = structlog.dev.plain_traceback  # without local variables: one may be a key
        processors += [
            escape_values,
            structlog.dev.ConsoleRenderer(colors=os.isatty(STDERR), exception_formatter=plain),
            encode,
        ]
    sink: Any = Sink()  # has all of a file that the logger needs
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=structlog.BytesLoggerFactory(sink),
    )
    logger.cache_clear()
    logging.getLogger("uvicorn.access").disabled = True
    if not any(isinstance(handler, StructlogHandler) for handler in logging.getLogger().handlers):
        logging.getLogger().addHandler(StructlogHandler())


def escape_values(_logger: object, _method: str, event: Any) -> Any:  # Any: as structlog has it
    """Escapes control characters in all values: a client's path could contain terminal commands."""
    return {key: escape(value) if isinstance(value, str) else value for key, value in event.items()}


def escape(text: str) -> str:
    """Returns the text with control characters as escape sequences such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encode(_logger: object, _method: str, line: Any) -> bytes:  # Any: as structlog has it
    """Encodes the line as UTF-8; the last processor of the console format."""
    return str(line).encode("utf-8", "backslashreplace")

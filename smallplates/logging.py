"""Structured logs on standard error: one line per request; logs of libraries get the same format.

If the disk is full or nobody reads the pipe, log lines are lost, but the service continues.
"""

import contextlib
import json
import logging
import os
import select
from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson
import structlog

from smallplates import log_text
from smallplates.settings import Settings, unknown_variables

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
STDERR = 2
PATIENCE_MS = 20  # to wait for a slow reader; 0 after a line was lost
PIPE_BUF = 4096  # bytes that a writable pipe always has room for
LOST = b'{"lines":%d,"event":"log lines were lost: nobody read them","level":"warning"}\n'


class Sink:
    """File-like writer that never blocks for long; counts lost lines."""

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._lost = 0

    def write(self, line: bytes) -> None:
        """Writes a line, given with its line end; never raises."""
        if self._lost and self._put(LOST % self._lost):
            self._lost = 0
        if not self._put(line):
            self._lost += 1

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def _put(self, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            for first in range(0, len(data), PIPE_BUF):
                if not self._poll.poll(0 if self._lost else PATIENCE_MS):
                    return False
                os.write(self._fd, data[first : first + PIPE_BUF])
            return True
        return False


class StructlogHandler(logging.Handler):
    """Passes log records of libraries on to the project's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Logs one record."""
        logger().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def to_json(event: Any, **options: Any) -> bytes:  # Any: as orjson's
    """Encodes an event as JSON. Paths on disk may not be UTF-8; what isn't becomes a question mark."""
    try:
        return orjson.dumps(event, **options)
    except TypeError:
        return json.dumps(event, ensure_ascii=False, **options).encode(errors="replace")


@cache
def logger() -> structlog.typing.FilteringBoundLogger:
    """Returns the project's logger, as set up by `configure_logging`."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind()
    return log


def warn_of_unknown_variables(models: Iterable[str]) -> None:
    """Logs a line for each SERVING_ variable that has no effect; `models` has the models' names."""
    for variable, nearest in unknown_variables(models).items():
        logger().warning("no setting has this name", variable=variable, nearest=nearest)


def configure_logging(settings: Settings, **fields: str) -> None:
    """Sets the format and level of this process's logs; call it once per process.

    `fields` are added to every line.
    """
    processors: list[structlog.typing.Processor] = [
        *([lambda _logger, _method, event: {**fields, **event}] if fields else []),
        structlog.processors.add_log_level,
    ]
    if settings.log_format == "json":
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=to_json),
        ]
    else:
        processors += log_text.processors(STDERR)
    sink: Any = Sink()  # has all the methods of a file that the logger needs
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=structlog.BytesLoggerFactory(sink),
    )
    logger.cache_clear()
    logging.getLogger("uvicorn.access").disabled = True
    if not any(isinstance(handler, StructlogHandler) for handler in logging.getLogger().handlers):
        logging.getLogger().addHandler(StructlogHandler())

"""Structured logs on standard error: one line a request, each with its id."""

import logging
import sys
from typing import Any

import orjson
import structlog

from serving.settings import Settings

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def logger() -> structlog.typing.FilteringBoundLogger:
    """The project's logger, as `configure` set it up."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log


def configure(settings: Settings) -> None:
    """Sets format and level for this process; called once, by the composition root."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    factory: Any  # two factories without a common type
    if settings.log_format == "json":
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ]
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
        factory = structlog.PrintLoggerFactory(sys.stderr)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )
    logging.getLogger("uvicorn.access").disabled = True

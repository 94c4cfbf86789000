"""The context of one request, and how its outcome is counted and logged for HTTP, TCP and gRPC.

`middleware.RequestMiddleware` creates a RequestContext for every HTTP request and calls `record` at
its end; TCP and gRPC do the same. `to_client_error` keeps internal details out of responses.
"""

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.exceptions import HTTPException

from smallplates.engine.statistics import Timings
from smallplates.errors import InternalError, RequestError, ServingError, by_status
from smallplates.logging import LEVELS, logger
from smallplates.web.metrics import Metrics

CLIENT_GONE = 499  # nginx's number for a client that disconnected; only the log and the metrics show it
HIDDEN = "internal error; search the server's log for this request_id"
HEALTH_PATH = "/grpc.health.v1.Health/Check"
PROBES = {
    "/health",
    "/ping",
    HEALTH_PATH,
    "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping",
}
PROBE_ENDS = ("/live", "/ready", "/ServerLive", "/ServerReady", "/ModelReady")
"""Ends of further paths of probes."""

NO_PATH = "Not Found"
"""All that the web framework says about a path that no route has."""

KEY_HEADERS = (b"authorization", b"api-key")
MAX_PATH = 500  # characters in the log and in traces
LINES_A_SECOND = 20
VALID_ID = re.compile(r"[!-~]{1,128}")
IDS = random.Random()


@dataclass
class RequestContext:
    """Id, clock and outcome of one request; `scope["context"]` in HTTP."""

    request_id: str
    method: str = ""
    path: str = ""
    client: str = ""  # address, as far as it is known
    traceparent: str = ""  # the client's header of this name, unchecked; empty if tracing is off
    started: float = field(default_factory=time.monotonic)  # when the request's head was complete
    status: int = 0  # of the response; 0 until the response starts
    code: str = "ok"  # the error's code, for log and metrics
    error: ServingError | None = None  # the error that the client sees
    model: str = ""  # name of the called model; empty if there is none or it is unknown
    inference: Timings | None = None  # None without inference
    trace_id: str = ""  # of the request's span; empty if tracing is off
    answer: Any = None  # `Body` that counts the memory of a large answer until it has been sent

    @cached_property
    def milliseconds(self) -> dict[str, float]:
        """Milliseconds per stage, and in total up to the first access, for the response's head."""
        total = round(1000 * (time.monotonic() - self.started), 2)
        if (stages := self.inference) is None:
            return {"total": total}
        return {
            "decode": round(1000 * stages.decode_s, 2),
            "queue": round(1000 * stages.queue_s, 2),
            "infer": round(1000 * stages.infer_s, 2),
            "total": total,
        }

    def server_timing(self) -> str:
        """Returns the Server-Timing header: every stage and the total, in ms."""
        return ", ".join(f"{name};dur={ms:.2f}" for name, ms in self.milliseconds.items())


def is_probe(path: str) -> bool:
    """Returns whether a path is that of a probe."""
    return path in PROBES or path.endswith(PROBE_ENDS)


def is_quiet(path: str) -> bool:
    """Returns whether requests to a path are logged at level debug and not traced.

    These are probes, and the checks of the page and of Prometheus.
    """
    return is_probe(path) or path in ("/metrics", "/model")


def choose_id(offered: bytes | None) -> str:
    """Returns the client's X-Request-ID if it is harmless, else a new one."""
    text = (offered or b"").decode("latin-1")
    return text if VALID_ID.fullmatch(text) else f"{IDS.getrandbits(128):032x}"


def check_keys(names: Sequence[bytes]) -> None:
    """Checks the names of a request's headers. Raises RequestError if one with a key occurs twice.

    A proxy could check one key, and the service the other.
    """
    if any(names.count(name) > 1 for name in KEY_HEADERS):
        raise RequestError("send one key: a header with a key occurs twice")


class Refusals:
    """Limits log lines for refused requests (503, TEI's 429): 20 per second, then one summary."""

    def __init__(self, second_s: float = 1.0) -> None:
        self.second_s = second_s
        self.in_this_second = 0

    def level(self) -> str:
        """Returns the log level for the next refusal."""
        if not self.in_this_second:
            asyncio.get_running_loop().call_later(self.second_s, self._log_summary)
        self.in_this_second += 1
        return "warning" if self.in_this_second <= LINES_A_SECOND else "debug"

    def _log_summary(self) -> None:
        if (rest := self.in_this_second - LINES_A_SECOND) > 0:
            logger().warning("more requests were refused", requests=rest)
        self.in_this_second = 0


refusals = Refusals()


def to_client_error(error: Exception, context: RequestContext) -> ServingError:
    """Returns the error that the client sees, and notes it in the context.

    The web framework's errors become ours. Unexpected errors are logged, and the client gets a plain
    500. The traceback is dropped, because its frames would keep the client's data until the next garbage
    collection.
    """
    given = error
    if isinstance(error, HTTPException):
        detail = error.detail
        if detail == NO_PATH:
            path = context.path[:80]
            clean = re.sub("/+", "/", path).rstrip("/")
            hint = "" if clean in (path, "") else f"write {clean}, without the extra slash; "
            detail = f"there is no path {path}; {hint}/docs lists the paths"
        error = by_status(error.status_code, detail, error.headers)
    elif not isinstance(error, ServingError):
        logger().error("request failed", exc_info=error, request_id=context.request_id)
        error = InternalError(HIDDEN)
    elif type(error) is InternalError:
        logger().error("internal error", detail=error.detail, request_id=context.request_id)
        error = InternalError(HIDDEN)
    context.error, context.code = error, error.code
    given.__traceback__ = given.__cause__ = given.__context__ = None
    return error


def record(metrics: Metrics, context: RequestContext, series: str, timed: bool) -> None:
    """Counts and logs a finished request, and observes its duration if `timed`.

    The metrics have `series` instead of the path, since raw paths would create unlimited series. Without
    a response the client is gone.
    """
    if context.answer is not None:
        context.answer.__exit__()
    context.status = context.status or CLIENT_GONE
    if context.status == CLIENT_GONE:
        context.code = "client_gone"
    metrics.requests.labels(series, str(context.status), context.code, context.model).inc()
    if timed:
        metrics.total.labels(context.model).observe(time.monotonic() - context.started)
    if not logger().is_enabled_for(level := LEVELS[log_level(context)]):
        return
    logger().log(
        level,
        "request",
        request_id=context.request_id,
        method=context.method,
        path=context.path[:MAX_PATH],
        status=context.status,
        code=context.code,
        client=context.client,
        ms=context.milliseconds,
        **({"model": context.model} if context.model else {}),
        **({"trace_id": context.trace_id} if context.trace_id else {}),
    )


def log_level(context: RequestContext) -> str:
    """Returns the log level for a request: failures stand out, probes are quiet."""
    if context.status >= 500 and context.status != 503:
        return "warning"
    is_unready = context.status == 503 and context.method == "GET"  # as of a model that loads
    if is_quiet(context.path) or is_unready:
        return "debug"
    return refusals.level() if context.status in (429, 503) else "info"

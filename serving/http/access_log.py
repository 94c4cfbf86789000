"""What is told of a request: to the log and the metrics how it ended, to the client no secrets.

HTTP ends here with `middleware.AccessLogMiddleware` and `app.ErrorHandler`, TCP and gRPC by themselves.
"""

import asyncio
import time

from serving.errors import InternalError, ServingError
from serving.http.context import RequestContext
from serving.logging import LEVELS, logger
from serving.metrics import Metrics

CLIENT_GONE = 499  # nginx's number; it is seen in the log and in the metrics only
HIDDEN = "the server failed; the request may be tried again"
HEALTH_PATH = "/grpc.health.v1.Health/Check"
QUIET_PATHS = {"/health/live", "/health/ready", "/metrics", HEALTH_PATH}
LINES_A_SECOND = 20


class Refusals:
    """Those come by the thousand: in each second the first have a line each, the others one together."""

    def __init__(self, second_s: float = 1.0) -> None:
        self.second_s = second_s
        self.in_this_second = 0

    def level(self) -> str:
        """Of one more request's own line."""
        if not self.in_this_second:
            asyncio.get_running_loop().call_later(self.second_s, self._tell)
        self.in_this_second += 1
        return "info" if self.in_this_second <= LINES_A_SECOND else "debug"

    def _tell(self) -> None:
        if (rest := self.in_this_second - LINES_A_SECOND) > 0:
            logger().info("more requests were refused", requests=rest)
        self.in_this_second = 0


refusals = Refusals()


def to_client_error(error: Exception, context: RequestContext) -> ServingError:
    """The error as the client may know it: what went wrong inside goes to the log and no further.

    The log line of the request will have its code.
    """
    if not isinstance(error, ServingError):
        logger().error("request failed", exc_info=error, request_id=context.request_id)
        error = InternalError(HIDDEN)
    elif type(error) is InternalError:
        logger().error("internal error", detail=error.detail, request_id=context.request_id)
        error = InternalError(HIDDEN)
    context.code = error.code
    return error


def record(
    metrics: Metrics,
    context: RequestContext,
    status: int,
    *,
    method: str,
    path: str,
    series: str,
    client: str,
    timed: bool,
) -> None:
    """One request that has ended: its counter, its duration where it is `timed`, its log line.

    `series` stands in the metrics for `path`, of which there may be any number.
    """
    if status == CLIENT_GONE:
        context.code = "client_gone"
    metrics.requests.labels(series, str(status), context.code).inc()
    if timed:
        metrics.total.observe(time.monotonic() - context.started)
    logger().log(
        LEVELS[level_of(path, status)],
        "request",
        request_id=context.request_id,
        method=method,
        path=path,
        status=status,
        code=context.code,
        client=client,
        ms=context.milliseconds,
    )


def level_of(path: str, status: int) -> str:
    """Of the log line of a request that has ended."""
    if status >= 500 and status != 503:
        return "warning"
    if path in QUIET_PATHS:
        return "debug"
    return refusals.level() if status == 503 else "info"

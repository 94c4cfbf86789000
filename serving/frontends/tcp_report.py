"""What the TCP front-end says about a request: to the client, to the metrics, to the log."""

import time
from typing import Any

from serving.context import RequestContext
from serving.errors import InternalError, ServingError
from serving.logs import LEVELS, logger
from serving.metrics import Metrics


def failure(error: ServingError, context: RequestContext) -> tuple[int, dict[str, Any]]:
    """Status and content for the client; what went wrong inside stays in the log."""
    context.code = error.code
    detail = error.detail
    if type(error) is InternalError:
        logger().error("internal error", detail=detail, request_id=context.request_id)
        detail = "the server failed; the request may be tried again"
    said: dict[str, Any] = {"detail": detail, "code": error.code, "request_id": context.request_id}
    if "Retry-After" in error.headers:
        said["retry_after"] = int(error.headers["Retry-After"])
    return error.status, said


def record(metrics: Metrics, client: str, status: int, context: RequestContext) -> None:
    """How a request ended; the same series and the same line as over HTTP."""
    count(metrics, status, context.code)
    metrics.total.observe(time.monotonic() - context.started)
    failed = status >= 500 and status != 503  # which is a refusal, and comes by the thousand
    logger().log(
        LEVELS["warning" if failed else "info"],
        "request",
        request_id=context.request_id,
        method="TCP",
        path="tcp",
        status=status,
        code=context.code,
        client=client,
        ms=milliseconds(context),
    )


def count(metrics: Metrics, status: int, code: str) -> None:
    """One answer more."""
    metrics.requests.labels("tcp", str(status), code).inc()


def milliseconds(context: RequestContext) -> dict[str, float]:
    """Every stage, and the total so far."""
    stages = {**context.stages, "total": time.monotonic() - context.started}
    return {name: round(seconds * 1000, 2) for name, seconds in stages.items()}

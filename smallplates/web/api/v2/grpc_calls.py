"""Metadata, errors, metrics and log lines for calls on the gRPC port."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from smallplates.errors import InvalidRequestError, ServingError
from smallplates.web.api.v2.grpc_limits import check_fields
from smallplates.web.http.request_context import (
    CLIENT_GONE,
    HEALTH_PATH,
    RequestContext,
    choose_id,
    record,
    to_client_error,
)
from smallplates.web.metrics import Metrics

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

SERVICE = "inference.GRPCInferenceService"
HEALTH, CHECK = HEALTH_PATH.strip("/").split("/")
CODES = {
    200: grpc.StatusCode.OK,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    CLIENT_GONE: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
SMALL_BYTES = 64 * 1024  # once parsed, a message of this size takes a few megabytes at most
Message = Any  # protobuf creates its classes at run time
Context = Any  # grpc.aio.ServicerContext, which is untyped


@dataclass
class CallRecord:
    """The outcome of one request: its context, and its error if it failed."""

    request_context: RequestContext
    error: ServingError | None = None


class Calls:
    """Counts and logs requests, like AccessLogMiddleware for HTTP."""

    def __init__(self, metrics: Metrics, tracer: "Tracer | None" = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    @contextmanager
    def recording(self, name: str, context: Context) -> Iterator[CallRecord]:
        """Records the block as one request; an exception raised in it becomes the outcome's error."""
        outcome = CallRecord(own_context(context))
        status = CLIENT_GONE
        try:
            yield outcome
            status = 200
        except Exception as caught:
            outcome.error = to_client_error(caught, outcome.request_context)
            status = outcome.error.status
        finally:
            self._record(name, status, context, outcome.request_context)

    async def fail(self, name: str, context: Context, caught: Exception) -> None:
        """Records and aborts a call that failed outside of any request."""
        request_context = own_context(context)
        error = to_client_error(caught, request_context)
        self._record(name, error.status, context, request_context)
        await abort(context, error)

    def _record(self, name: str, status: int, context: Context, request_context: RequestContext) -> None:
        path = HEALTH_PATH if name == CHECK else f"/{SERVICE}/{name}"
        if self._tracer and name != CHECK:
            code = CODES.get(status, grpc.StatusCode.INTERNAL).name
            about = {"rpc.system.name": "grpc", "rpc.method": path[1:], "rpc.response.status_code": code}
            request_context.trace_id = self._tracer.record(request_context, status, path[1:], about)
        record(
            self._metrics,
            request_context,
            status,
            method="gRPC",
            path=path,
            series=path,
            client=context.peer(),
            timed=bool(request_context.timings),
        )


def own_context(context: Context) -> RequestContext:
    """Returns a new request context, with the client's request id if it sent one."""
    metadata = dict(context.invocation_metadata() or ())
    return RequestContext(
        choose_id(str(metadata.get("x-request-id", "")).encode()),
        traceparent=str(metadata.get("traceparent", "")),
    )


def authorization(context: Context) -> str:
    """Returns the `authorization` metadata, in the form of the HTTP header; '' if there is none."""
    value = dict(context.invocation_metadata() or ()).get("authorization", "")
    return value if isinstance(value, str) else ""  # gRPC metadata may also be bytes


def parsed(kind: Message, data: bytes) -> Message:
    """Parses a message of class `kind`. Raises InvalidRequestError."""
    if len(data) > SMALL_BYTES:
        check_fields(data, kind.DESCRIPTOR)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError("the message cannot be read") from error


async def abort(context: Context, error: ServingError) -> None:
    """Aborts the call with the error's status and detail."""
    code = CODES.get(error.status, grpc.StatusCode.INTERNAL)
    retry_after = error.headers.get("Retry-After")
    trailing = (("retry-after", retry_after),) if retry_after else ()
    await context.abort(code, error.detail, trailing)

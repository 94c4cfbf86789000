"""Metadata, errors, metrics and log lines for calls on the gRPC port."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from smallplates.errors import InvalidRequestError
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


class Calls:
    """Counts and logs requests, like AccessLogMiddleware for HTTP."""

    def __init__(self, metrics: Metrics, tracer: "Tracer | None" = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    @contextmanager
    def recording(self, name: str, context: Context) -> Iterator[RequestContext]:
        """Records the block as one request; an exception raised in it becomes the request's error."""
        request_context = own_context(name, context)
        try:
            yield request_context
            request_context.status = 200
        except Exception as caught:
            request_context.status = to_client_error(caught, request_context).status
        finally:
            self._record(name, request_context)

    async def fail(self, name: str, context: Context, caught: Exception) -> None:
        """Records and aborts a call that failed outside of any request."""
        request_context = own_context(name, context)
        request_context.status = to_client_error(caught, request_context).status
        self._record(name, request_context)
        await abort(context, request_context)

    def _record(self, name: str, context: RequestContext) -> None:
        if self._tracer and name != CHECK:
            status, method = context.status or CLIENT_GONE, context.path[1:]
            code = CODES.get(status, grpc.StatusCode.INTERNAL).name
            about = {"rpc.system.name": "grpc", "rpc.method": method, "rpc.response.status_code": code}
            context.trace_id = self._tracer.record(context, method, about)
        record(self._metrics, context, context.path, timed=context.inference is not None)


def own_context(name: str, context: Context) -> RequestContext:
    """Returns a new request context, with the client's request id if it sent one."""
    metadata = dict(context.invocation_metadata() or ())
    return RequestContext(
        choose_id(str(metadata.get("x-request-id", "")).encode()),
        "gRPC",
        HEALTH_PATH if name == CHECK else f"/{SERVICE}/{name}",
        context.peer(),
        str(metadata.get("traceparent", "")),
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


async def abort(context: Context, request_context: RequestContext) -> None:
    """Aborts the call with the status and detail of the request's error, if there is one."""
    if (error := request_context.error) is None:
        return
    code = CODES.get(error.status, grpc.StatusCode.INTERNAL)
    retry_after = error.headers.get("Retry-After")
    trailing = (("retry-after", retry_after),) if retry_after else ()
    await context.abort(code, error.detail, trailing)

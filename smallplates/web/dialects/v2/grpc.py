"""The Open Inference Protocol over gRPC: `GRPCInferenceService` on its own port.

Every web process has a server. If there are several, they share the port with SO_REUSEPORT, the only way
to share a gRPC listener, and the kernel assigns each connection to one of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
from google.protobuf.json_format import ParseDict

from smallplates.errors import ConfigurationError, DrainingError, NotFoundError, UnavailableError
from smallplates.logging import logger
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.pipeline import Pipeline, Target
from smallplates.web.dialects.v2 import grpc_messages as messages
from smallplates.web.dialects.v2 import metadata
from smallplates.web.dialects.v2.grpc_generated import open_inference_pb2 as pb
from smallplates.web.dialects.v2.grpc_limits import CALLS, MessageReadLimiter, Streams, options
from smallplates.web.dialects.v2.repository import Repository
from smallplates.web.http.body import Body
from smallplates.web.http.request_context import (
    CLIENT_GONE,
    HEALTH_PATH,
    RequestContext,
    choose_id,
    record,
    to_client_error,
)
from smallplates.web.inference.served_model import RequestOptions
from smallplates.web.metrics import Metrics

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

SERVICE, STREAM = "inference.GRPCInferenceService", "ModelStreamInfer"
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
STOP_S = 1.0
Message = Any  # protobuf creates its classes at run time
Context = Any  # grpc.aio.ServicerContext, which is untyped
Content = dict[str, Any]
"""A message as `json_format.ParseDict` takes it."""

Method = Callable[..., Content | Awaitable[Message | Content]]
"""Takes a message and the call's context; for inference, also the request's and its RequestOptions."""


class Service:
    """The methods of GRPCInferenceService and of gRPC's standard health service."""

    def __init__(self, pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None") -> None:
        service = pipeline.service
        self.pipeline = pipeline
        self.service = service
        self.catalog = catalog
        self.repository = Repository(service, catalog)
        self.reader = MessageReadLimiter(service.settings)
        self.calls = Calls(service.metrics, tracer)
        self.streams = Streams(service.settings)

    def handlers(self) -> tuple[Any, Any]:
        """Returns the handlers for a grpc.aio.Server."""
        methods: dict[str, Method] = {
            "ServerLive": lambda _, __: {"live": True},
            "ServerReady": lambda _, __: {"ready": self.service.is_ready},
            "ServerMetadata": lambda _, __: metadata.server_metadata(),
            "ModelReady": self.model_ready,
            "ModelMetadata": lambda request, _: metadata.metadata(self._entry(request)),
            "ModelConfig": lambda request, _: {"config": metadata.config(self._entry(request))},
            "ModelStatistics": self.model_statistics,
            "ModelInfer": self.model_infer,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.model_load,
            "RepositoryModelUnload": self.model_unload,
        }
        handlers = {name: self._method(name, answer, name) for name, answer in methods.items()}
        handlers[STREAM] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=lambda response: response.SerializeToString()
        )
        check = self._method(CHECK, self.health_check, "HealthCheck")
        return (
            grpc.method_handlers_generic_handler(SERVICE, handlers),
            grpc.method_handlers_generic_handler(HEALTH, {CHECK: check}),
        )

    def _method(self, name: str, answer: Method, prefix: str) -> Any:
        """Returns a handler for one message and one answer; as a stream, so we decide when to read.

        The messages are PREFIXRequest and PREFIXResponse. It counts and logs calls, and turns errors
        into a status.
        """
        kind, response_kind = getattr(pb, f"{prefix}Request"), getattr(pb, f"{prefix}Response")

        async def call(_: object, context: Context) -> Message:
            response = None
            with self.calls.record(name, context) as request_context:
                further = [request_context, self._admit(context)] if answer == self.model_infer else []
                # no variable may hold the message: gRPC keeps an aborted call's frame until the next
                # garbage collection
                response = answer(
                    messages.parse(kind, await self.reader.read(context.read)), context, *further
                )
                if isawaitable(response):
                    response = await response
            await abort(context, request_context)
            return ParseDict(response, response_kind()) if isinstance(response, dict) else response

        return grpc.stream_unary_rpc_method_handler(
            call, response_serializer=lambda response: response.SerializeToString()
        )

    async def _stream(self, _: object, context: Context) -> None:
        """Serves a stream. Its requests are recorded; the stream itself is recorded only if it fails."""
        try:
            self.pipeline.check_key.check(authorization(context))
            await self.streams.serve(context, partial(self._answer_of_stream, context))
        except Exception as error:
            await self.calls.fail(STREAM, context, error)

    async def _answer_of_stream(self, context: Context, data: bytes) -> Message:
        """Answers one request of a stream; an error is sent as an answer, and the stream continues."""
        request = response = None
        with self.calls.record(STREAM, context) as request_context:
            request = messages.parse(pb.ModelInferRequest, data)
            options = self._admit(context)
            response = await self.model_infer(request, context, request_context, options)
            response.parameters["triton_final_response"].bool_param = True
        if (error := request_context.error) is None:
            return pb.ModelStreamInferResponse(infer_response=response)
        response = pb.ModelInferResponse(id=request.id if request is not None else "")
        return pb.ModelStreamInferResponse(error_message=error.detail, infer_response=response)

    def _admit(self, context: Context) -> RequestOptions:
        return self.pipeline.admit(dict(context.invocation_metadata() or ()))

    def _entry(self, request: Message) -> CatalogEntry:
        return self.catalog.find(request.name, request.version or None)

    def health_check(self, request: Message, _: Context) -> Content:
        """Answers health probes of Kubernetes and load balancers. Raises NotFoundError."""
        if request.service not in ("", SERVICE):
            raise NotFoundError(f"there is no service {request.service[:80]!r}")
        return {"status": "SERVING" if self.service.is_ready else "NOT_SERVING"}

    def model_ready(self, request: Message, _: Context) -> Content:
        """Returns whether a model is ready; as in Triton, unknown models are not."""
        try:
            self.service.check_ready(self._entry(request).model)
        except (NotFoundError, DrainingError, UnavailableError):
            return {"ready": False}
        return {"ready": True}

    def model_statistics(self, request: Message, _: Context) -> Content:
        """Returns the statistics of one model, or of all if none is named. Raises NotFoundError."""
        entries = [self._entry(request)] if request.name else self.catalog.by_signature()
        return metadata.statistics(*entries)

    async def model_infer(
        self,
        request: Message,
        context: Context,
        request_context: RequestContext,
        options: RequestOptions,
    ) -> Message:
        """Runs inference for an admitted request. Raises ServingError."""
        if (remaining := context.time_remaining()) is not None:  # the client's deadline
            options = options.within(max(1000, int(remaining * 1e6)))
        typed_bytes = messages.typed_bytes(request)

        def find(request: Message) -> Target[ColumnCall]:
            entry = self.catalog.find(request.model_name, request.model_version or None)
            decode = partial(messages.decode, entry=entry, most=entry.model.largest_request)
            inline = None if typed_bytes <= messages.LARGE else 0
            return Target(entry.model, decode, entry.signature, inline)

        with Body(self.pipeline.reader, content=request) as body:
            body.hold(max(request.ByteSize(), typed_bytes))
            call, answer = await self.pipeline.answer(request_context, options, find, body)
        return messages.encode(call, answer)

    async def repository_index(self, request: Message, context: Context) -> Content:
        """Returns the same as `POST /v2/repository/index`."""
        return {"models": await self.repository.index(request.ready, authorization(context))}

    async def model_load(self, request: Message, context: Context) -> Content:
        """Loads a version, like `POST /v2/repository/models/NAME/load`."""
        self.repository.check_allowed(authorization(context))
        texts = {name: value.string_param for name, value in request.parameters.items()}
        await self.repository.load(request.model_name, msgspec.json.encode({"parameters": texts}))
        return {}

    async def model_unload(self, request: Message, context: Context) -> Content:
        """Unloads a model, like `POST /v2/repository/models/NAME/unload`."""
        self.repository.check_allowed(authorization(context))
        await self.repository.unload(request.model_name)
        return {}


class Calls:
    """Counts and logs requests, like AccessLogMiddleware for HTTP."""

    def __init__(self, metrics: Metrics, tracer: "Tracer | None" = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    @contextmanager
    def record(self, name: str, context: Context) -> Iterator[RequestContext]:
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


async def abort(context: Context, request_context: RequestContext) -> None:
    """Aborts the call with the status and detail of the request's error, if there is one."""
    if (error := request_context.error) is None:
        return
    code = CODES.get(error.status, grpc.StatusCode.INTERNAL)
    retry_after = error.headers.get("Retry-After")
    trailing = (("retry-after", retry_after),) if retry_after else ()
    await context.abort(code, error.detail, trailing)


@asynccontextmanager
async def run(pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None") -> AsyncIterator[None]:
    """Serves gRPC until the block ends. Raises ConfigurationError if the port is taken."""
    settings = pipeline.service.settings
    limits = options(settings, pipeline.service.registry.shares_ports)
    server = grpc.aio.server(options=limits, maximum_concurrent_rpcs=CALLS)
    server.add_generic_rpc_handlers(Service(pipeline, catalog, tracer).handlers())
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise ConfigurationError(
            f"gRPC cannot listen on {host}:{settings.grpc_port}: {error}"
        ) from error
    await server.start()
    logger().info("gRPC listening", host=settings.host, port=port)
    try:
        yield
    finally:
        await server.stop(STOP_S)

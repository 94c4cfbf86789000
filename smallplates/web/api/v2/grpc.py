"""The Open Inference Protocol over gRPC: `GRPCInferenceService` on its own port.

Every web process has a server. If there are several, they share the port with SO_REUSEPORT, the only way
to share a gRPC listener, and the kernel assigns each connection to one of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
from google.protobuf.json_format import ParseDict

from smallplates.errors import ConfigurationError, DrainingError, NotFoundError, UnavailableError
from smallplates.logging import logger
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.pipeline import Pipeline, Target
from smallplates.web.api.v2 import grpc_messages as messages
from smallplates.web.api.v2 import metadata
from smallplates.web.api.v2.grpc_calls import CHECK, HEALTH, SERVICE, Calls, abort, authorization, parsed
from smallplates.web.api.v2.grpc_generated import open_inference_pb2 as pb
from smallplates.web.api.v2.grpc_limits import CALLS, MessageReadLimiter, options
from smallplates.web.api.v2.grpc_streams import Streams
from smallplates.web.api.v2.repository import Repository
from smallplates.web.http.body import Body
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import RequestOptions

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

STREAM = "ModelStreamInfer"
STOP_S = 1.0
Message = Any  # protobuf creates its classes at run time
Context = Any  # grpc.aio.ServicerContext, which is untyped
Answer = Callable[..., Awaitable[Message]]
"""Takes a message, the call's context and the request's; for inference, also its RequestOptions."""


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
        methods: dict[str, tuple[Answer, Message]] = {
            "ServerLive": (self.server_live, pb.ServerLiveRequest),
            "ServerReady": (self.server_ready, pb.ServerReadyRequest),
            "ServerMetadata": (self.server_metadata, pb.ServerMetadataRequest),
            "ModelReady": (self.model_ready, pb.ModelReadyRequest),
            "ModelMetadata": (self.model_metadata, pb.ModelMetadataRequest),
            "ModelConfig": (self.model_config, pb.ModelConfigRequest),
            "ModelStatistics": (self.model_statistics, pb.ModelStatisticsRequest),
            "ModelInfer": (self.model_infer, pb.ModelInferRequest),
            "RepositoryIndex": (self.repository_index, pb.RepositoryIndexRequest),
            "RepositoryModelLoad": (self.model_load, pb.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self.model_unload, pb.RepositoryModelUnloadRequest),
        }
        handlers = {
            name: self._method(name, answer, request) for name, (answer, request) in methods.items()
        }
        handlers[STREAM] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=lambda response: response.SerializeToString()
        )
        check = self._method(CHECK, self.health_check, pb.HealthCheckRequest)
        return (
            grpc.method_handlers_generic_handler(SERVICE, handlers),
            grpc.method_handlers_generic_handler(HEALTH, {CHECK: check}),
        )

    def _method(self, name: str, answer: Answer, kind: Message) -> Any:
        """Returns a handler for one message and one answer; as a stream, so we decide when to read.

        It counts and logs calls, and turns errors into a status.
        """

        async def call(_: object, context: Context) -> Message:
            response = None
            with self.calls.recording(name, context) as request_context:
                admitted = [self._admit(context)] if kind is pb.ModelInferRequest else []
                # no variable may hold the message: gRPC keeps an aborted call's frame until the next
                # garbage collection
                response = await answer(
                    parsed(kind, await self.reader.read(context.read)),
                    context,
                    request_context,
                    *admitted,
                )
            await abort(context, request_context)
            return response

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
        with self.calls.recording(STREAM, context) as request_context:
            request, options = parsed(pb.ModelInferRequest, data), self._admit(context)
            response = await self.model_infer(request, context, request_context, options)
            response.parameters["triton_final_response"].bool_param = True
        if (error := request_context.error) is None:
            return pb.ModelStreamInferResponse(infer_response=response)
        response = pb.ModelInferResponse(id=request.id if request is not None else "")
        return pb.ModelStreamInferResponse(error_message=error.detail, infer_response=response)

    def _model(self, request: Message) -> CatalogEntry:
        return self.catalog.find(request.name, request.version or None)

    async def server_live(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """Returns that the process is alive."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """Returns whether the service is ready."""
        return pb.ServerReadyResponse(ready=self.service.is_ready)

    async def health_check(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Answers health probes of Kubernetes and load balancers. Raises NotFoundError."""
        if request.service not in ("", SERVICE):
            raise NotFoundError(f"there is no service {request.service[:80]!r}")
        status = pb.HealthCheckResponse.ServingStatus
        return pb.HealthCheckResponse(
            status=status.SERVING if self.service.is_ready else status.NOT_SERVING
        )

    async def server_metadata(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """Returns the same as `GET /v2`."""
        return pb.ServerMetadataResponse(**metadata.server_metadata())

    async def model_ready(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Returns whether a model is ready; as in Triton, unknown models are not."""
        try:
            self.service.check_ready(self._model(request).model)
        except (NotFoundError, DrainingError, UnavailableError):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    async def model_metadata(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Describes a model. Raises NotFoundError."""
        content = metadata.metadata(self._model(request))
        return ParseDict(content, pb.ModelMetadataResponse())

    async def model_config(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Returns a model's configuration. Raises NotFoundError."""
        content = metadata.config(self._model(request))
        return ParseDict({"config": content}, pb.ModelConfigResponse())

    async def model_statistics(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Returns the statistics of one model, or of all if none is named. Raises NotFoundError."""
        models = [self._model(request)] if request.name else self.catalog.by_signature()
        content = [metadata.statistics(model) for model in models]
        return ParseDict({"model_stats": content}, pb.ModelStatisticsResponse())

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

    async def repository_index(self, request: Message, context: Context, _: RequestContext) -> Message:
        """Returns the same as `POST /v2/repository/index`."""
        rows = await self.repository.index(request.ready, authorization(context))
        return ParseDict({"models": rows}, pb.RepositoryIndexResponse())

    async def model_load(self, request: Message, context: Context, _: RequestContext) -> Message:
        """Loads a version, like `POST /v2/repository/models/NAME/load`."""
        self.repository.check_allowed(authorization(context))
        texts = {name: value.string_param for name, value in request.parameters.items()}
        await self.repository.load(request.model_name, msgspec.json.encode({"parameters": texts}))
        return pb.RepositoryModelLoadResponse()

    async def model_unload(self, request: Message, context: Context, _: RequestContext) -> Message:
        """Unloads a model, like `POST /v2/repository/models/NAME/unload`."""
        self.repository.check_allowed(authorization(context))
        await self.repository.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _admit(self, context: Context) -> RequestOptions:
        return self.pipeline.admit(dict(context.invocation_metadata() or ()))


@asynccontextmanager
async def running(
    pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None"
) -> AsyncIterator[None]:
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

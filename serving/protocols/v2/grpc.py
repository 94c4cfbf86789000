"""The Open Inference Protocol in gRPC: `GRPCInferenceService` on a port of its own.

Every web process has a server; where there are several, they share the port (SO_REUSEPORT), and the
kernel hands each connection to one of them. The library listens by itself, and can take no
socket that its process has inherited, as the HTTP server does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import msgspec
from google.protobuf.json_format import ParseDict

from serving.engine.memory import Signature
from serving.errors import (
    ConfigurationError,
    NotFoundError,
    NotSupportedError,
    RetryableError,
)
from serving.http.context import RequestContext
from serving.inference.service import Classifier
from serving.logging import logger
from serving.protocols.admission import Admission, RequestOptions
from serving.protocols.catalog import PHOTO_MODEL, TENSOR_MODEL, CatalogEntry, ModelCatalog
from serving.protocols.v2 import grpc_messages as messages
from serving.protocols.v2 import metadata
from serving.protocols.v2.grpc_calls import CHECK, HEALTH, SERVICE, Calls, abort, authorization, parsed
from serving.protocols.v2.grpc_generated import open_inference_pb2 as pb
from serving.protocols.v2.grpc_limits import CALLS, MessageReadLimiter, options
from serving.protocols.v2.grpc_streams import Streams
from serving.protocols.v2.inference import infer
from serving.protocols.v2.repository import Repository

STREAM = "ModelStreamInfer"
STOP_S = 1.0
Message = Any  # protobuf's classes are made at run time
Context = Any  # grpc.aio.ServicerContext, which has no types
Answer = Callable[[Message, Context, RequestContext], Awaitable[Message]]


class Service:
    """The service's methods, bound to one classifier."""

    def __init__(self, classifier: Classifier, door: Admission, models: ModelCatalog) -> None:
        self.classifier = classifier
        self.door = door
        self.models = models
        self.repository = Repository(classifier, models)
        self.arrivals = MessageReadLimiter(classifier.settings)
        self.calls = Calls(classifier.metrics)
        self.streams = Streams(classifier.settings)

    def handlers(self) -> tuple[Any, Any]:
        """What a grpc.aio.Server is given: the protocol, and gRPC's own health service."""
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
        handlers |= {
            name: grpc.stream_unary_rpc_method_handler(self._refused(name, words))
            for name, words in metadata.UNSUPPORTED_CALLS.items()
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
        """Of one message and one answer; as a stream, so that we decide when the message is read."""
        return grpc.stream_unary_rpc_method_handler(
            self._observed(name, answer, kind),
            response_serializer=lambda response: response.SerializeToString(),
        )

    def _observed(
        self, name: str, answer: Answer, kind: Message
    ) -> Callable[[object, Context], Awaitable[Message]]:
        """A call of one message and one answer."""

        async def call(_: object, context: Context) -> Message:
            response = None
            with self.calls.recording(name, context) as outcome:
                if kind is pb.ModelInferRequest:
                    self.door.check_key.check(authorization(context))
                # in no variable: gRPC keeps the frame of a call that is aborted until a collection
                response = await answer(
                    parsed(kind, await self.arrivals.read(context.read)), context, outcome.own
                )
            if outcome.error is not None:
                await abort(context, outcome.error)
            return response

        return call

    def _refused(self, name: str, words: str) -> Callable[[object, Context], Awaitable[None]]:
        """A call of Triton's that is not served."""

        async def call(_: object, context: Context) -> None:
            await self.calls.fail(name, context, NotSupportedError(words))

        return call

    async def _stream(self, _: object, context: Context) -> None:
        """Each of a stream's requests is counted by itself; the stream only where it fails."""
        try:
            self.door.check_key.check(authorization(context))
            await self.streams.serve(context, partial(self._answer_of_stream, context))
        except Exception as error:
            await self.calls.fail(STREAM, context, error)

    async def _answer_of_stream(self, context: Context, data: bytes) -> Message:
        """Errors are answers here, and the stream goes on."""
        request = response = None
        with self.calls.recording(STREAM, context) as outcome:
            request = parsed(pb.ModelInferRequest, data)
            response = await self.model_infer(request, context, outcome.own)
            response.parameters["triton_final_response"].bool_param = True
        if outcome.error is None:
            return pb.ModelStreamInferResponse(infer_response=response)
        response = pb.ModelInferResponse(id=request.id if request is not None else "")
        return pb.ModelStreamInferResponse(error_message=outcome.error.detail, infer_response=response)

    def _is_ready(self) -> bool:
        try:
            self.classifier.check_ready()
        except RetryableError:
            return False
        return True

    def _model(self, request: Message) -> CatalogEntry:
        return self.models.find(request.name, request.version or None)

    async def server_live(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """Requests can be answered."""
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def health_check(self, request: Message, _: Context, __: RequestContext) -> Message:
        """What Kubernetes' probes and load balancers ask. Raises NotFoundError."""
        if request.service not in ("", SERVICE):
            raise NotFoundError(f"there is no service {request.service[:80]!r}")
        status = pb.HealthCheckResponse.ServingStatus
        return pb.HealthCheckResponse(status=status.SERVING if self._is_ready() else status.NOT_SERVING)

    async def server_metadata(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """As `GET /v2`."""
        return pb.ServerMetadataResponse(**metadata.server_metadata())

    async def model_ready(self, request: Message, _: Context, __: RequestContext) -> Message:
        """What is not served is not ready, as Triton has it."""
        try:
            self._model(request)
        except NotFoundError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._is_ready())

    async def model_metadata(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Raises NotFoundError."""
        content = metadata.metadata(self.classifier, self._model(request))
        return ParseDict(content, pb.ModelMetadataResponse())

    async def model_config(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Raises NotFoundError."""
        content = metadata.config(self.classifier, self._model(request))
        return ParseDict({"config": content}, pb.ModelConfigResponse())

    async def model_statistics(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Of one model, or of both where none is named. Raises NotFoundError."""
        if request.name:
            found = [self._model(request)]
        else:
            found = [self.models.find(PHOTO_MODEL), self.models.find(TENSOR_MODEL)]
        content = [metadata.statistics(self.classifier, model) for model in found]
        return ParseDict({"model_stats": content}, pb.ModelStatisticsResponse())

    async def model_infer(self, request: Message, context: Context, own: RequestContext) -> Message:
        """Raises ServingError."""
        model = self.models.find(request.model_name, request.model_version or None)
        terms = self._admit(context, model.kind)
        with self.door.held(request.ByteSize()):
            parse = partial(messages.parse, request, model, self.classifier.largest_request)
            if messages.is_large(request):
                question = await self.classifier.on_thread(parse, terms.bulk)
            else:
                question = parse()
            answer = await infer(self.classifier, question, terms)
        own.set_timings(answer.stages)
        return messages.encode(question, answer)

    async def repository_index(self, request: Message, _: Context, __: RequestContext) -> Message:
        """As `POST /v2/repository/index`."""
        return ParseDict({"models": self.repository.index(request.ready)}, pb.RepositoryIndexResponse())

    async def model_load(self, request: Message, context: Context, _: RequestContext) -> Message:
        """As `POST /v2/repository/models/NAME/load`."""
        self.repository.check_allowed(authorization(context))
        texts = {name: value.string_param for name, value in request.parameters.items()}
        await self.repository.load(request.model_name, msgspec.json.encode({"parameters": texts}))
        return pb.RepositoryModelLoadResponse()

    async def model_unload(self, request: Message, context: Context, _: RequestContext) -> Message:
        """Raises NotSupportedError always."""
        self.repository.check_allowed(authorization(context))
        self.repository.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _admit(self, context: Context, kind: Signature) -> RequestOptions:
        """As `Admission.admit`, with the client's own deadline."""
        metadata = dict(context.invocation_metadata() or ())
        terms = self.door.admit_by(
            authorization(context),
            metadata.get("x-request-timeout-ms"),
            metadata.get("x-priority"),
            kind,
        )
        remaining = context.time_remaining()
        return terms if remaining is None else terms.within(max(1000, int(remaining * 1e6)))


@asynccontextmanager
async def running(classifier: Classifier, door: Admission, models: ModelCatalog) -> AsyncIterator[None]:
    """Serves until the block ends. Raises ConfigurationError when the port is taken."""
    settings = classifier.settings
    server = grpc.aio.server(options=options(settings), maximum_concurrent_rpcs=CALLS)
    server.add_generic_rpc_handlers(Service(classifier, door, models).handlers())
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

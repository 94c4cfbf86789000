"""The Open Inference Protocol in gRPC: `GRPCInferenceService` on a port of its own.

Every web process has a server; where there are several, they share the port (SO_REUSEPORT), and the
kernel hands each connection to one of them. A process that handed connections on, as `cluster.py` does
for HTTP, would need gRPC's own parser.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from serving.classifier import Classifier
from serving.context import RequestContext, choose_id
from serving.engine.memory import Kind
from serving.errors import (
    ConfigurationError,
    InvalidRequestError,
    RetryableError,
    ServingError,
)
from serving.frontends import v2_grpc_messages as messages
from serving.frontends import v2_models
from serving.frontends.door import Door, Terms
from serving.frontends.grpc_generated import open_inference_pb2 as pb
from serving.frontends.models import PHOTO_MODEL, TENSOR_MODEL, NamedModel, NamedModels
from serving.frontends.v2_grpc_limits import CALLS, Arrivals, options
from serving.frontends.v2_inference import infer
from serving.frontends.v2_repository import Repository
from serving.logs import logger
from serving.report import CLIENT_GONE, record, told

SERVICE = "inference.GRPCInferenceService"
STOP_S = 1.0
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
Message = Any  # protobuf's classes are made at run time
Context = Any  # grpc.aio.ServicerContext, which has no types
Answer = Callable[[Message, Context, RequestContext], Awaitable[Message]]


class Service:
    """The service's methods, bound to one classifier."""

    def __init__(self, classifier: Classifier, door: Door, models: NamedModels) -> None:
        self.classifier = classifier
        self.door = door
        self.models = models
        self.repository = Repository(classifier, models)
        self.arrivals = Arrivals(classifier.settings)

    def handler(self) -> Any:
        """What a grpc.aio.Server is given."""
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
        }
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(  # so that we decide when a message is read
                self._observed(name, answer, request),
                response_serializer=lambda response: response.SerializeToString(),
            )
            for name, (answer, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _observed(
        self, name: str, answer: Answer, kind: Message
    ) -> Callable[[object, Context], Awaitable[Message]]:
        """Translates errors; counts and logs, as `middleware.Observer` does."""

        async def call(_: object, context: Context) -> Message:
            metadata = dict(context.invocation_metadata() or ())
            own = RequestContext(choose_id(str(metadata.get("x-request-id", "")).encode()))
            status, error = CLIENT_GONE, None
            try:
                if kind is pb.ModelInferRequest:
                    self.door.check_key.check(authorization(context))
                data = await self.arrivals.read(context.read)
                response = await answer(parsed(kind, data), context, own)
                status = 200
            except Exception as caught:
                error = told(caught, own)
                status = error.status
            finally:
                self._record(name, status, context.peer(), own)
            if error is not None:
                await abort(context, error)
            return response

        return call

    def _record(self, name: str, status: int, client: str, own: RequestContext) -> None:
        path = f"/{SERVICE}/{name}"
        record(
            self.classifier.metrics,
            own,
            status,
            method="gRPC",
            path=path,
            series=path,
            client=client,
            timed=bool(own.stages),
        )

    def _is_ready(self) -> bool:
        try:
            self.classifier.check_ready()
        except RetryableError:
            return False
        return True

    def _model(self, request: Message) -> NamedModel:
        return self.models.find(request.name, request.version or None)

    async def server_live(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """Requests can be answered."""
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def server_metadata(self, _: Message, __: Context, ___: RequestContext) -> Message:
        """As `GET /v2`."""
        return pb.ServerMetadataResponse(**v2_models.server_metadata())

    async def model_ready(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Raises NotFoundError."""
        self._model(request)
        return pb.ModelReadyResponse(ready=self._is_ready())

    async def model_metadata(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Raises NotFoundError."""
        content = v2_models.metadata(self.classifier, self._model(request))
        return ParseDict(content, pb.ModelMetadataResponse())

    async def model_config(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Raises NotFoundError."""
        content = v2_models.config(self.classifier, self._model(request))
        return ParseDict({"config": content}, pb.ModelConfigResponse())

    async def model_statistics(self, request: Message, _: Context, __: RequestContext) -> Message:
        """Of one model, or of both where none is named. Raises NotFoundError."""
        if request.name:
            found = [self._model(request)]
        else:
            found = [self.models.find(PHOTO_MODEL), self.models.find(TENSOR_MODEL)]
        content = [v2_models.statistics(self.classifier, model) for model in found]
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
        own.time_went_to(answer.stages)
        return messages.encode(question, answer)

    async def repository_index(self, request: Message, _: Context, __: RequestContext) -> Message:
        """As `POST /v2/repository/index`."""
        return ParseDict({"models": self.repository.index(request.ready)}, pb.RepositoryIndexResponse())

    def _admit(self, context: Context, kind: Kind) -> Terms:
        """As `Door.admit`, with the client's own deadline."""
        metadata = dict(context.invocation_metadata() or ())
        terms = self.door.admit_by(
            authorization(context),
            metadata.get("x-request-timeout-ms"),
            metadata.get("x-priority"),
            kind,
        )
        remaining = context.time_remaining()
        return terms if remaining is None else terms.within(max(1000, int(remaining * 1e6)))


def authorization(context: Context) -> str:
    """As HTTP's header; bytes, which gRPC has for other names, are none."""
    value = dict(context.invocation_metadata() or ()).get("authorization", "")
    return value if isinstance(value, str) else ""


def parsed(kind: Message, data: bytes) -> Message:
    """A message of this kind. Raises InvalidRequestError."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError("the message cannot be read") from error


async def abort(context: Context, error: ServingError) -> None:
    """Ends the call."""
    code = CODES.get(error.status, grpc.StatusCode.INTERNAL)
    retry_after = error.headers.get("Retry-After")
    trailing = (("retry-after", retry_after),) if retry_after else ()
    await context.abort(code, error.detail, trailing)


@asynccontextmanager
async def running(classifier: Classifier, door: Door, models: NamedModels) -> AsyncIterator[None]:
    """Serves until the block ends. Raises ConfigurationError when the port is taken."""
    settings = classifier.settings
    server = grpc.aio.server(options=options(settings), maximum_concurrent_rpcs=CALLS)
    server.add_generic_rpc_handlers((Service(classifier, door, models).handler(),))
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

"""The Open Inference Protocol over gRPC: `GRPCInferenceService`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from smallplates.errors import DrainingError, NotFoundError, UnavailableError
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.pipeline import Target
from smallplates.web.dialects.v2 import grpc_messages as messages
from smallplates.web.dialects.v2 import metadata
from smallplates.web.dialects.v2.repository import Repository
from smallplates.web.grpc.calls import Call, Calls, Content, Inference, Method, Methods, authorization
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.grpc.limits import Context, Message, Streams

SERVICE, STREAM = "inference.GRPCInferenceService", "ModelStreamInfer"
STREAM_PATH = f"/{SERVICE}/{STREAM}"


def services(calls: Calls, catalog: ModelCatalog) -> Mapping[str, Methods]:
    """Returns the protocol's only service."""
    return {SERVICE: Service(calls, catalog).methods()}


class Service:
    """The methods of GRPCInferenceService."""

    def __init__(self, calls: Calls, catalog: ModelCatalog) -> None:
        self.calls = calls
        self.service = calls.pipeline.service
        self.catalog = catalog
        self.repository = Repository(self.service, catalog)
        self.streams = Streams(self.service.settings)

    def methods(self) -> Methods:
        """Returns all methods; the messages of each are NAMERequest and NAMEResponse."""
        answers: dict[str, Any] = {
            "ServerLive": lambda _, __: {"live": True},
            "ServerReady": lambda _, __: {"ready": self.service.is_ready},
            "ServerMetadata": lambda _, __: metadata.server_metadata(),
            "ModelReady": self.model_ready,
            "ModelMetadata": lambda request, _: metadata.metadata(self._entry(request)),
            "ModelConfig": lambda request, _: {"config": metadata.config(self._entry(request))},
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.model_load,
            "RepositoryModelUnload": self.model_unload,
        }
        methods = {
            name: Method(getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"), answer)
            for name, answer in answers.items()
        }
        infer = Inference(pb.ModelInferRequest, self.model_infer)
        return {**methods, "ModelInfer": infer, STREAM: self._stream}

    async def _stream(self, _: object, context: Context) -> None:
        """Serves a stream. Its requests are recorded; the stream itself is recorded only if it fails."""
        try:
            self.calls.pipeline.check_key.check(authorization(context))
            await self.streams.serve(context, partial(self._answer_of_stream, context))
        except Exception as error:
            await self.calls.fail(STREAM_PATH, context, error)

    async def _answer_of_stream(self, context: Context, data: bytes) -> Message:
        """Answers one request of a stream; an error is sent as an answer, and the stream continues."""
        request = answer = None
        with self.calls.record(STREAM_PATH, context) as request_context:
            request = await self.calls.parse(pb.ModelInferRequest, data)
            call = self.calls.admit(context, request_context)
            answer = await self.model_infer(request, call, messages.encode_in_stream)
        if (error := request_context.error) is None:
            return answer
        response = pb.ModelInferResponse(id=request.id if request is not None else "")
        return pb.ModelStreamInferResponse(error_message=error.detail, infer_response=response)

    def _entry(self, request: Message) -> CatalogEntry:
        return self.catalog.find(request.name, request.version or None)

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
        self, request: Message, call: Call, encode: messages.Encode = messages.encode
    ) -> bytes:
        """Runs inference. Raises ServingError."""
        typed_bytes = messages.typed_bytes(request)

        def find(request: Message) -> Target[ColumnCall]:
            entry = self.catalog.find(request.model_name, request.model_version or None)
            decode = partial(messages.decode, entry=entry, most=entry.model.largest_request)
            inline = None if typed_bytes <= messages.LARGE else 0
            return Target(entry.model, decode, entry.signature, inline)

        size = max(request.ByteSize(), typed_bytes)
        return await call.encode(encode, *await call.infer(find, request, size))

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

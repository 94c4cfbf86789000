"""The Open Inference Protocol in HTTP, as Triton and KServe speak it: everything under `/v2`."""

import base64
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from serving.errors import NotSupportedError, ServingError
from serving.http.body import WORTH_IT, accepted, packed
from serving.http.context import RequestContext
from serving.http.middleware import FastRoute
from serving.http.responses import json_response
from serving.inference.service import Classifier
from serving.protocols.admission import Admission, unless_disconnected
from serving.protocols.catalog import PHOTO_MODEL, TENSOR_MODEL, CatalogEntry, ModelCatalog
from serving.protocols.native import CODES, EXAMPLE
from serving.protocols.v2 import codec, metadata
from serving.protocols.v2.inference import InferRequest, infer
from serving.protocols.v2.repository import Repository, only_ready

PREFIX = "/v2"
INFER = "/v2/models/{model}/infer"
LARGE = 64 * 1024  # bytes of JSON; more is a thread's work
ModelName = Annotated[str, Path(openapi_examples={"photos": {"value": PHOTO_MODEL}})]
Version = Annotated[str, Path(openapi_examples={"first": {"value": "1"}})]  # Swagger fills it in
STATUS = {422: 400}  # the protocol has no other number for what is wrong with a request


OTHER_CODES = {
    400: "the request cannot be read, or is of another shape",
    404: "no such model or version",
}


def error_response(error: ServingError, _: RequestContext) -> Response:
    """`{"error": "..."}`."""
    return json_response({"error": error.detail}, STATUS.get(error.status, error.status), error.headers)


class Infer:
    """The handler of every infer path."""

    def __init__(self, classifier: Classifier, door: Admission, models: ModelCatalog) -> None:
        self.classifier = classifier
        self.door = door
        self.models = models

    async def __call__(self, name: str, version: str | None, request: Request) -> Response:
        """Raises ServingError, and ClientDisconnect."""
        model = self.models.find(name, version)
        terms = self.door.admit(request, model.kind)
        async with self.door.body(request, compressed=True) as content:
            question = await self._parse(request, model, content, terms.bulk)
            answer = await unless_disconnected(request, infer(self.classifier, question, terms))
        RequestContext.of(request).set_timings(answer.stages)
        body, json_bytes = codec.encode(question, answer)
        return await respond(request, body, json_bytes)

    async def _parse(
        self, request: Request, model: CatalogEntry, content: bytes, bulk: bool
    ) -> InferRequest:
        length = codec.header_length(request.headers.get(codec.HEADER), len(content))
        parse = partial(codec.parse, content, length, model, self.classifier.largest_request)
        json_bytes = len(content) if length is None else length
        if json_bytes > LARGE and model.input.datatype != "BYTES":  # as text; base64 is read at once
            return await self.classifier.on_thread(parse, bulk)
        return parse()

    def fast_routes(self) -> dict[str, FastRoute]:
        """The paths that most requests are for, without a version."""
        return {
            f"/v2/models/{name}/infer": FastRoute(INFER, partial(self, name, None))
            for name in self.models.kinds
        }


async def respond(request: Request, body: bytes, json_bytes: int | None) -> Response:
    """Adds the header that says where the JSON ends, and compresses where that was asked for."""
    headers = {}
    media_type = "application/json"
    if json_bytes is not None:
        headers[codec.HEADER] = str(json_bytes)
        media_type = "application/octet-stream"
    encoding = accepted(request.headers.get("accept-encoding"))
    if encoding and len(body) >= WORTH_IT:
        body = await packed(body, encoding)
        headers["Content-Encoding"] = encoding
    return Response(body, media_type=media_type, headers=headers)


def create_router(
    classifier: Classifier, door: Admission, models: ModelCatalog, handler: Infer
) -> APIRouter:
    """All paths under `/v2`, bound to one classifier."""
    router = APIRouter(tags=["Open Inference Protocol"])
    add_server_routes(router, classifier)
    add_model_routes(router, classifier, models)
    add_infer_routes(router, door, handler)
    add_repository_routes(router, classifier, door, models)
    for path, words in metadata.UNSUPPORTED_PATHS.items():
        add_refusal(router, path, words)
    return router


def add_refusal(router: APIRouter, path: str, words: str) -> None:
    """A path of Triton's that is not served."""

    @router.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def refuse() -> Response:
        raise NotSupportedError(words)


def add_server_routes(router: APIRouter, classifier: Classifier) -> None:
    """Metadata and health of the server, statistics of all models."""

    @router.get(PREFIX, summary="The server and its extensions", responses=documented_errors())
    async def server() -> Response:
        return json_response(metadata.server_metadata())

    @router.get("/v2/health/live", summary="The process answers", responses=documented_errors())
    async def live() -> Response:
        return json_response({"live": True})

    @router.get("/v2/health/ready", summary="Requests can be answered", responses=documented_errors(503))
    async def ready() -> Response:
        classifier.check_ready()
        return json_response({"ready": True})


def add_model_routes(router: APIRouter, classifier: Classifier, models: ModelCatalog) -> None:
    """What can be asked about a model, with and without its version."""

    def about(suffix: str, summary: str, describe: Callable[[CatalogEntry], dict[str, Any]]) -> None:
        @router.get(
            "/v2/models/{model}" + suffix, summary=summary, responses=documented_errors(404, 503)
        )
        async def any_version(model: ModelName) -> Response:
            return json_response(describe(models.find(model)))

        @router.get(
            "/v2/models/{model}/versions/{version}" + suffix,
            summary=f"{summary}, of one version",
            responses=documented_errors(404, 503),
        )
        async def one_version(model: ModelName, version: Version) -> Response:
            return json_response(describe(models.find(model, version)))

    def ready(model: CatalogEntry) -> dict[str, Any]:
        classifier.check_ready()
        return {"name": model.name, "ready": True}

    def statistics(*found: CatalogEntry) -> dict[str, Any]:
        return {"model_stats": [metadata.statistics(classifier, model) for model in found]}

    @router.get("/v2/models/stats", summary="Figures of both models", responses=documented_errors(503))
    async def all_statistics() -> Response:
        return json_response(statistics(models.find(PHOTO_MODEL), models.find(TENSOR_MODEL)))

    about("", "Names, types and shapes", partial(metadata.metadata, classifier))
    about("/ready", "Whether it can be asked", ready)
    about("/config", "How it is served", partial(metadata.config, classifier))
    about("/stats", "Counts and durations", statistics)


def add_infer_routes(router: APIRouter, door: Admission, handler: Infer) -> None:
    """The same handler, with and without a version; `FastPathMiddleware` goes around the first."""
    options: dict[str, Any] = {  # FastAPI's own types
        "responses": documented_errors(400, 401, 404, 408, 413, 415, 500, 503, 504),
        "openapi_extra": infer_request(),
        "dependencies": door.check_key.documented(),
    }

    @router.post(INFER, summary="Ask a model", **options)
    async def any_version(model: ModelName, request: Request) -> Response:
        return await handler(model, None, request)

    @router.post("/v2/models/{model}/versions/{version}/infer", summary="Ask a version", **options)
    async def one_version(model: ModelName, version: Version, request: Request) -> Response:
        return await handler(model, version, request)


def add_repository_routes(
    router: APIRouter, classifier: Classifier, door: Admission, models: ModelCatalog
) -> None:
    """Reading is free; loading needs the admin key, and that one is set."""
    repository = Repository(classifier, models)

    @router.post("/v2/repository/index", include_in_schema=False)
    async def index(request: Request) -> Response:
        async with door.small_body(request) as content:
            return json_response(repository.index(only_ready(content)))

    @router.post("/v2/repository/models/{model}/load", include_in_schema=False)
    async def load(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        async with door.body(request) as content:
            await repository.load(model, content)
        return json_response({})

    @router.post("/v2/repository/models/{model}/unload", include_in_schema=False)
    async def unload(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        repository.unload(model)
        return json_response({})


class V2Error(BaseModel):
    """What went wrong, in words."""

    error: str


def documented_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these statuses."""
    return {
        status: {
            "model": V2Error,
            "description": (text := OTHER_CODES.get(status) or CODES[status][0])[0].upper() + text[1:],
        }
        for status in statuses
    }


def infer_request() -> dict[str, Any]:
    """The JSON form, with a real picture; with binary tensors after it, a body is an octet stream."""
    tensor = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "datatype": {"enum": ["BYTES", "FP32"]},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array"},
            "parameters": {"type": ["object", "null"]},
        },
        "required": ["name", "datatype", "shape"],
    }
    output = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parameters": {"type": ["object", "null"]}},
        "required": ["name"],
    }
    request = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": ["array", "null"], "items": output},
            "parameters": {
                "type": ["object", "null"],
                "description": "`timeout`, in microseconds, is another one.",
                "properties": {  # but for the timeout: who tries its range gets the 504 it asks for
                    "top_k": {"type": "integer", "minimum": 0, "description": "Best classes of a photo"},
                },
            },
        },
        "required": ["inputs"],
    }
    photo = base64.b64encode(EXAMPLE.read_bytes()).decode("ascii")
    example = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1, 1], "data": [photo]}
    content = {
        "application/json": {"schema": request, "example": {"inputs": [example]}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return {"requestBody": {"required": True, "content": content}}

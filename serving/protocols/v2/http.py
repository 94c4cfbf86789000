"""The Open Inference Protocol in HTTP, as Triton and KServe speak it: everything under `/v2`."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from serving.errors import NotSupportedError, ServingError
from serving.http.access_log import RequestContext
from serving.http.body import WORTH_IT, accepted_encoding, packed
from serving.http.responses import json_response
from serving.inference.service import InferenceService
from serving.protocols.admission import Admission, DirectRoute, unless_disconnected
from serving.protocols.catalog import DTYPES, CatalogEntry, ModelCatalog
from serving.protocols.native import CODES
from serving.protocols.v2 import codec, metadata
from serving.protocols.v2.inference import InferRequest, infer
from serving.protocols.v2.repository import Repository, only_ready

PREFIX = "/v2"
TAGS: list[str | Enum] = ["Open Inference Protocol"]
LARGE = 64 * 1024  # bytes of JSON; more is a thread's work
Version = Annotated[str, Path(openapi_examples={"first": {"value": "1"}})]  # Swagger fills it in
STATUS = {422: 400}  # the protocol has no other number for a request that is wrong
INDEX = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
OTHER_CODES = {
    400: "the request cannot be read, or is of another shape",
    404: "no such model or version",
}


def error_response(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"error": "..."}`."""
    return json_response({"error": error.detail}, STATUS.get(error.status, error.status), error.headers)


def create_router(service: InferenceService, admission: Admission, catalog: ModelCatalog) -> APIRouter:
    """Returns all paths under `/v2`."""
    router = APIRouter(tags=TAGS)
    add_server_routes(router, service)
    add_model_routes(router, service, catalog)
    router.routes.extend(infer_router(service, admission, catalog).routes)
    router.routes.extend(repository_router(service, admission, catalog).routes)
    for path, reason in metadata.UNSUPPORTED_PATHS.items():
        add_unsupported_route(router, path, reason)
    return router


def add_unsupported_route(router: APIRouter, path: str, reason: str) -> None:
    """Adds a path of Triton's that is answered 501 with the reason."""

    @router.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def refuse() -> Response:
        raise NotSupportedError(reason)


def add_server_routes(router: APIRouter, service: InferenceService) -> None:
    """Adds metadata and health of the server."""

    @router.get(PREFIX, summary="The server and its extensions", responses=documented_errors())
    async def server() -> Response:
        return json_response(metadata.server_metadata())

    @router.get("/v2/health/live", summary="The process answers", responses=documented_errors())
    async def live() -> Response:
        return json_response({"live": True})

    @router.get("/v2/health/ready", summary="Requests can be answered", responses=documented_errors(503))
    async def ready() -> Response:
        service.check_ready()
        return json_response({"ready": True})


def add_model_routes(router: APIRouter, service: InferenceService, catalog: ModelCatalog) -> None:
    """Adds what can be asked about a model, with and without its version."""

    def about(suffix: str, summary: str, describe: Callable[[CatalogEntry], dict[str, Any]]) -> None:
        @router.get(
            "/v2/models/{model}" + suffix, summary=summary, responses=documented_errors(404, 503)
        )
        async def any_version(model: str) -> Response:
            return json_response(describe(catalog.find(model)))

        @router.get(
            "/v2/models/{model}/versions/{version}" + suffix,
            summary=f"{summary}, of one version",
            responses=documented_errors(404, 503),
        )
        async def one_version(model: str, version: Version) -> Response:
            return json_response(describe(catalog.find(model, version)))

    def ready(model: CatalogEntry) -> dict[str, Any]:
        service.check_ready()
        return {"name": model.name, "ready": True}

    def statistics(*found: CatalogEntry) -> dict[str, Any]:
        return {"model_stats": [metadata.statistics(service, model) for model in found]}

    @router.get("/v2/models/stats", summary="Figures of all forms", responses=documented_errors(503))
    async def all_statistics() -> Response:
        return json_response(statistics(*catalog.of_each_form()))

    about("", "Names, types and shapes", partial(metadata.metadata, service))
    about("/ready", "Whether it can be asked", ready)
    about("/config", "How it is served", partial(metadata.config, service))
    about("/stats", "Counts and durations", statistics)


def infer_router(service: InferenceService, admission: Admission, catalog: ModelCatalog) -> APIRouter:
    """Returns the two infer paths, with and without a version."""
    router = APIRouter(route_class=DirectRoute, tags=TAGS)
    documentation: dict[str, Any] = {  # FastAPI's own types
        "responses": documented_errors(400, 401, 404, 408, 413, 415, 500, 503, 504),
        "openapi_extra": infer_request(),
        "dependencies": admission.check_key.documented(),
    }

    async def infer_model(name: str, version: str | None, request: Request) -> Response:
        model = catalog.find(name, version)
        options = admission.admit(request, model.signature)
        async with admission.body(request) as content:
            parsed = await parse(request, model, content, options.bulk)
            found = await unless_disconnected(request, infer(service, parsed, options))
        RequestContext.of(request).set_timings(found.timings)
        body, json_bytes = codec.encode(parsed, found)
        return await respond(request, body, json_bytes)

    async def parse(request: Request, model: CatalogEntry, content: bytes, bulk: bool) -> InferRequest:
        length = codec.header_length(request.headers.get(codec.HEADER), len(content))
        parse_content = partial(codec.parse, content, length, model, service.largest_request)
        json_bytes = len(content) if length is None else length
        if json_bytes > LARGE and not model.is_quick_to_parse:
            return await service.run_on_thread(parse_content, bulk)
        return parse_content()

    @router.post("/v2/models/{model}/infer", summary="Ask a model", **documentation)
    async def any_version(model: str, request: Request) -> Response:
        return await infer_model(model, None, request)

    @router.post("/v2/models/{model}/versions/{version}/infer", summary="Ask a version", **documentation)
    async def one_version(model: str, version: Version, request: Request) -> Response:
        return await infer_model(model, version, request)

    return router


async def respond(request: Request, body: bytes, json_bytes: int | None) -> Response:
    """Returns the answer, compressed where the client accepts it.

    `json_bytes` is the length of the JSON where binary tensors follow; it becomes a header.
    """
    headers = {}
    media_type = "application/json"
    if json_bytes is not None:
        headers[codec.HEADER] = str(json_bytes)
        media_type = "application/octet-stream"
    encoding = accepted_encoding(request.headers.get("accept-encoding"))
    if encoding and len(body) >= WORTH_IT:
        body = await packed(body, encoding)
        headers["Content-Encoding"] = encoding
    return Response(body, media_type=media_type, headers=headers)


def repository_router(
    service: InferenceService, admission: Admission, catalog: ModelCatalog
) -> APIRouter:
    """Returns the repository's paths. Reading is free; loading exists where an admin key is set."""
    router = APIRouter(route_class=DirectRoute, tags=TAGS)
    repository = Repository(service, catalog)
    is_allowed = service.settings.admin_key is not None
    documentation: dict[str, Any] = {  # FastAPI's own types
        "responses": documented_errors(400, 401, 404, 408, 413, 415, 500, 503),
        "include_in_schema": is_allowed,
    }

    @router.post(
        "/v2/repository/index",
        summary="The versions that there are",
        responses=documented_errors(400, 408, 413, 415, 503),
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": INDEX}}}},
    )
    async def index(request: Request) -> Response:
        async with admission.small_body(request) as content:
            return json_response(repository.index(only_ready(content)))

    @router.post("/v2/repository/models/{model}/load", summary="Serve a version", **documentation)
    async def load(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        async with admission.body(request) as content:
            await repository.load(model, content)
        return json_response({})

    @router.post("/v2/repository/models/{model}/unload", include_in_schema=False)
    async def unload(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        repository.unload(model)
        return json_response({})

    return router


class V2Error(BaseModel):
    """What went wrong, in words."""

    error: str


def documented_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for these statuses."""
    return {
        status: {
            "model": V2Error,
            "description": (text := OTHER_CODES.get(status) or CODES[status][0])[0].upper() + text[1:],
        }
        for status in statuses
    }


def infer_request() -> dict[str, Any]:
    """Documents the JSON body, and the body with binary tensors."""
    tensor = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "datatype": {"enum": ["BYTES", *DTYPES]},
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
            "inputs": {"type": "array", "items": tensor, "minItems": 1},
            "outputs": {"type": ["array", "null"], "items": output},
            "parameters": {
                "type": ["object", "null"],
                "description": "`timeout`, in microseconds, is another one.",
                "properties": {  # but for the timeout: who tries its range gets the 504 it asks for
                    "top_k": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "Best candidates",
                    },
                },
            },
        },
        "required": ["inputs"],
    }
    content = {
        "application/json": {"schema": request},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return {"requestBody": {"required": True, "content": content}}

"""The Open Inference Protocol over HTTP, as Triton and KServe speak it: all paths under `/v2`."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from fastapi import Request, Response

from smallplates.web.api.catalog import CatalogEntry, ColumnSpec, ModelCatalog
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.dialect import Dialect, ErrorText, Routes, text_error
from smallplates.web.api.documentation import BINARY, example_values
from smallplates.web.api.pipeline import Pipeline, Target
from smallplates.web.dialects.v2 import codec, metadata
from smallplates.web.dialects.v2.repository import INDEX_SCHEMA, Repository, only_ready
from smallplates.web.http import body as http
from smallplates.web.http.body import LARGE, json_parts, json_response
from smallplates.web.inference.service import InferenceService


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths under `/v2`."""
    add_server_routes(routes, pipeline.service)
    add_model_routes(routes, pipeline.service, catalog)
    add_infer_routes(routes, pipeline, catalog)
    add_repository_routes(routes, pipeline, catalog)


def add_server_routes(routes: Routes, service: InferenceService) -> None:
    """Adds the server's metadata and health paths."""

    @routes.about("/v2", "The server and its extensions")
    async def server() -> Response:
        return json_response(metadata.server_metadata())

    @routes.about("/v2/health/live")
    async def live() -> Response:
        return json_response({"live": True})

    @routes.about("/v2/health/ready")
    async def ready() -> Response:
        service.check_ready()
        return json_response({"ready": True})


def add_model_routes(routes: Routes, service: InferenceService, catalog: ModelCatalog) -> None:
    """Adds the paths that describe a model, with and without a version."""

    def about(suffix: str, summary: str, describe: Callable[[CatalogEntry], dict[str, Any]]) -> None:
        @routes.about(f"/v2/models/{{model}}{suffix}", summary, 404, 503)
        @routes.about(f"/v2/models/{{model}}/versions/{{version}}{suffix}")
        async def answer(model: str, version: str | None = None) -> Response:
            return json_response(describe(catalog.find(model, version)))

    def ready(model: CatalogEntry) -> dict[str, Any]:
        service.check_ready(model.model)
        return {"name": model.name, "ready": True}

    @routes.about("/v2/models/stats")
    async def all_statistics() -> Response:
        return json_response(metadata.statistics(*catalog.by_signature()))

    about("", "Names, types and shapes", metadata.metadata)
    about("/ready", "", ready)
    about("/config", "How the model is served", metadata.config)
    about("/stats", "Counts and durations", metadata.statistics)


def add_infer_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the two infer paths, with and without a version."""
    content = {"application/json": {"schema": codec.SCHEMA}, "application/octet-stream": BINARY}

    @routes.call("/v2/models/{model}/infer", "Call a model", content)
    @routes.call("/v2/models/{model}/versions/{version}/infer", "Call a version", content)
    async def infer(model: str, request: Request, version: str | None = None) -> Response:
        entry, header = catalog.find(model, version), request.headers.get(codec.HEADER)
        encoding = http.accepted_encoding(request.headers.get("accept-encoding"))
        inline = None if entry.is_quick_to_parse or codec.is_small(header) else LARGE

        def decode(body: bytes) -> ColumnCall:
            call = codec.decode(body, header, entry, entry.model.largest_request)
            call.respond = lambda answer, _: respond(*codec.encode(call, answer), encoding)
            return call

        return await pipeline.http(request, Target(entry.model, decode, entry.signature, inline))


def example(entry: CatalogEntry) -> Any:
    """Returns the body of a call with a model's example; None if it has none."""
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": shape,
            "data": tensor_data(spec, value if shape else [value]),
        }
        for spec, shape, value in example_values(entry)
    ]
    return {"inputs": inputs} if inputs else None


def tensor_data(spec: ColumnSpec, value: Any) -> list[Any]:
    """Returns a value as `data`, which carries objects as text."""
    if spec.field is None or spec.field.is_list:
        return [*value]
    return [http.dump_json(value).decode() if spec.field.is_json else value]


def respond(content: Any, tails: Sequence[bytes | memoryview], encoding: str | None) -> Response:
    """Returns the response, compressed if the client accepts an encoding.

    If binary tensors follow the JSON, a header has the JSON's length.
    """
    if not tails:
        return json_response(content, encoding=encoding)
    head = b"".join(json_parts(content))
    slices = (bytes(tail[at : at + LARGE]) for tail in tails for at in range(0, len(tail), LARGE))
    headers, kind = {codec.HEADER: str(len(head))}, "application/octet-stream"
    return http.respond(chain([head], slices), 200, headers, kind, encoding)


def add_repository_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the repository's paths. Listing needs no key; loading is possible only with an admin key."""
    repository = Repository(pipeline.service, catalog)
    is_allowed = pipeline.service.settings.admin_key is not None
    documentation: dict[str, Any] = {  # FastAPI's own types
        "responses": routes.errors(400, 401, 404, 408, 413, 415, 500, 503),
        "include_in_schema": is_allowed,
    }

    @routes.post(
        "/v2/repository/index",
        summary="Versions of all models",
        responses=routes.errors(400, 408, 413, 415, 503),
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": INDEX_SCHEMA}}}},
    )
    async def index(request: Request) -> Response:
        with await pipeline.small_reader.read(request) as body:
            is_ready = only_ready(await body.decompress())
            authorization = request.headers.get("authorization", "")
            return json_response(await repository.index(is_ready, authorization))

    @routes.post("/v2/repository/models/{model}/load", summary="Load a model", **documentation)
    async def load(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        with await pipeline.reader.read(request) as body:
            await repository.load(model, await body.decompress())
        return json_response({})

    @routes.post("/v2/repository/models/{model}/unload", summary="Unload a model", **documentation)
    async def unload(model: str, request: Request) -> Response:
        repository.check_allowed(request.headers.get("authorization", ""))
        with await pipeline.small_reader.read(request):  # ignores Triton's `unload_dependents`
            await repository.unload(model)
        return json_response({})


DIALECT = Dialect(
    add_routes,
    "Open Inference Protocol",
    text_error,
    ErrorText,
    example,
    prefixes=("/v2/",),
    about="For clients of KServe and NVIDIA Triton: tensors, and the models' metadata and state.",
    grpc="smallplates.web.dialects.v2.grpc:services",
)

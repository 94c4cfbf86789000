"""`create_app`: assembles settings, models, inference service, protocols and middleware."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute

from smallplates import __version__
from smallplates.logging import configure_logging, warn_of_unknown_variables
from smallplates.models.folder import configured_models, stored_models
from smallplates.plugins import plugins
from smallplates.settings import Protocol, Settings
from smallplates.supervision.planner import planner
from smallplates.supervision.registry import Registry
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import Dialect, Route, Routes, error_shape
from smallplates.web.api.head_check import refusal
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.dialects import (
    cloud,
    huggingface,
    native,
    ollama,
    openai,
    rerank,
    tei,
    tfserving,
    torchserve,
    weaviate,
)
from smallplates.web.dialects.tcp import TcpServer
from smallplates.web.dialects.v2 import codec
from smallplates.web.dialects.v2 import http as v2
from smallplates.web.http.middleware import RequestMiddleware
from smallplates.web.inference.service import InferenceService
from smallplates.web.metrics import Metrics
from smallplates.web.remote_registry import RemoteRegistry
from smallplates.web.swagger import add_swagger

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

DIALECTS: Mapping[Protocol, Dialect] = {
    "v2": v2.DIALECT,
    "tfserving": tfserving.DIALECT,
    "torchserve": torchserve.DIALECT,
    "openai": openai.DIALECT,
    "huggingface": huggingface.DIALECT,
    "cloud": cloud.DIALECT,  # before TEI, whose bodies it answers at /invocations
    "tei": tei.DIALECT,
    "rerank": rerank.DIALECT,
    "ollama": ollama.DIALECT,
    "weaviate": weaviate.DIALECT,
}
"""Protocols over HTTP besides the native one, by their names in SERVING_PROTOCOLS."""

CORS_RESPONSE_HEADERS = (
    f"Accept-Encoding, Allow, {codec.HEADER}, Retry-After, Server-Timing, WWW-Authenticate, "
    "X-Input-Truncated, X-Request-ID"
)
"""Headers of our responses that a browser would hide from a page of another origin."""


def create_app(
    settings: Settings, backend: str, registry: Registry | RemoteRegistry | None = None
) -> FastAPI:
    """Returns the ASGI application; `app.state.service` is its inference service.

    `backend` names a `engine.backend.Backend` as `module:class`; only the workers import it. Without
    `registry`, the application starts its own engines. Raises ConfigurationError if a model's
    description is invalid.
    """
    configure_logging(settings)
    models = configured_models(settings)  # now, so that errors stop the start early
    if registry is None:  # otherwise the cluster's parent does it, once for all its processes
        warn_of_unknown_variables([*models, *stored_models(settings)])
    registry = registry or Registry(settings, planner(backend, settings), models)
    service = InferenceService(settings, registry, models)
    pipeline, catalog = Pipeline(service), ModelCatalog(service)
    tcp = TcpServer(pipeline)
    tracer = make_tracer(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        grpc = grpc_server(pipeline, catalog, tracer)
        with tracer.run() if tracer else nullcontext():
            async with service.run(), tcp.run(), grpc:
                yield

    app = FastAPI(
        title="Model server",
        version=__version__,
        description="Send a request to `/predict`; `/model` describes the models that are served.",
        lifespan=lifespan,
        servers=[{"url": ".", "description": "where this document is, also behind a proxy's prefix"}],
        openapi_url=None,  # see `swagger.py`
        redirect_slashes=False,  # redirects would go to whatever the Host header says
        telemetry={"tracing": False, "metrics": False, "logs": False},  # saves work at every request
    )
    app.state.service = service
    dialects = enabled_dialects(settings)
    app.openapi_tags = [
        {"name": dialect.title, "description": dialect.about} for dialect in dialects if dialect.title
    ]
    add_swagger(app, pipeline, catalog)
    for dialect in dialects:  # `include_router` would cost 20 us per request
        add_routes(app, Routes(dialect, pipeline, catalog))
    for route in app.router.routes:  # also Swagger's
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods.add("HEAD")  # handled like GET; the HTTP server omits the body
    app.middleware_stack = log = middleware_stack(app, settings, service.metrics, dialects, tracer)
    app.state.check_head = partial(refusal, pipeline=pipeline, log=log)
    return app


def add_routes(app: FastAPI, routes: Routes) -> None:
    """Adds a dialect's routes; on an earlier one's path it answers only the bodies that it claims."""
    earlier = [route for route in app.router.routes if isinstance(route, Route)]
    known = {(route.path, frozenset(route.methods or ())): route for route in earlier}
    for route in routes.routes:
        assert isinstance(route, Route)  # noqa: S101 the router's class of routes
        first = known.get((route.path, frozenset(route.methods or ())))
        if first is None:
            app.router.routes.append(route)
        elif route.claim:
            first.claims = (*first.claims, route.claim)


def middleware_stack(
    app: FastAPI,
    settings: Settings,
    metrics: Metrics,
    dialects: Sequence[Dialect],
    tracer: "Tracer | None",
) -> RequestMiddleware:
    """Returns the middleware around the router; unlike FastAPI's, it handles errors in one place."""
    router, shape = AsyncExitStackMiddleware(app.router), partial(error_shape, dialects=dialects)
    stack = RequestMiddleware(router, Route, shape, metrics, tracer)
    if settings.cors_origins:
        stack.stack = CORSMiddleware(
            stack.answer,
            allow_origins=settings.cors_origins,
            allow_methods=sorted(set().union(*(getattr(route, "methods", ()) for route in app.routes))),
            allow_headers=["*"],  # as any other client: unknown headers are ignored
            expose_headers=[CORS_RESPONSE_HEADERS],
        )
    return stack


def enabled_dialects(settings: Settings) -> list[Dialect]:
    """Returns the native API, the protocols that the settings name, and those of other packages.

    Raises ConfigurationError if one of these cannot be imported.
    """
    return [
        native.DIALECT,
        *(dialect for name, dialect in DIALECTS.items() if name in settings.protocols),
        *plugins("dialect"),
    ]


def grpc_server(
    pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None"
) -> AbstractAsyncContextManager[None]:
    """Returns the gRPC server if a port is set; otherwise gRPC is not even imported."""
    settings = pipeline.service.settings
    if settings.grpc_port is None:
        return nullcontext()
    from smallplates.web.dialects import tfserving_grpc, torchserve_grpc
    from smallplates.web.dialects.v2 import grpc as v2_grpc
    from smallplates.web.grpc import server

    services = {
        "v2": v2_grpc.services,
        "tfserving": tfserving_grpc.services,
        "torchserve": torchserve_grpc.services,
    }
    enabled = [each for name, each in services.items() if name in settings.protocols]
    return server.run(pipeline, catalog, tracer, enabled)


def make_tracer(settings: Settings) -> "Tracer | None":
    """Returns the tracer if a collector is set; otherwise OpenTelemetry is not even imported."""
    if settings.otlp_endpoint is None:
        return None
    from smallplates.web.http.tracing import Tracer

    return Tracer(settings.otlp_endpoint)

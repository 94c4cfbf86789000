"""`create_app`: assembles settings, models, inference service, protocols and middleware."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute

from smallplates import __version__
from smallplates.errors import library_errors
from smallplates.logging import configure_logging, warn_of_unknown_variables
from smallplates.models.folder import configured_models, stored_models
from smallplates.plugins import plugins
from smallplates.protocols import PROTOCOLS
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.supervision.registry import Registry
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import Dialect, Route, Routes, error_shape
from smallplates.web.api.head_check import refusal
from smallplates.web.api.mounts import Mounts
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.dialects import native
from smallplates.web.dialects.tcp import TcpServer
from smallplates.web.dialects.v2 import codec
from smallplates.web.http.middleware import RequestMiddleware
from smallplates.web.inference.service import InferenceService
from smallplates.web.metrics import Metrics
from smallplates.web.remote_registry import RemoteRegistry
from smallplates.web.swagger import add_swagger

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

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
    dialects = enabled_dialects(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        grpc = grpc_server(dialects, pipeline, catalog, tracer)
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
    app.openapi_tags = [
        {"name": dialect.title, "description": dialect.about} for dialect in dialects if dialect.title
    ]
    mounts = Mounts(service)
    add_swagger(app, pipeline, catalog, mounts)
    for dialect in dialects:
        mounts.add(Routes(dialect, pipeline, catalog))
    app.router.routes.extend(mounts.routes)  # `include_router` would cost 20 us per request
    for route in app.router.routes:  # also Swagger's
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods.add("HEAD")  # handled like GET; the HTTP server omits the body
    app.middleware_stack = log = middleware_stack(app, settings, service.metrics, dialects, tracer)
    app.state.check_head = partial(refusal, pipeline=pipeline, log=log)
    return app


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
        *(resolve_name(place) for name, place in PROTOCOLS.items() if name in settings.protocols),
        *plugins("dialect"),
    ]


def grpc_server(
    dialects: Sequence[Dialect], pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None"
) -> AbstractAsyncContextManager[None]:
    """Returns the gRPC server if a port is set; otherwise gRPC is not even imported.

    Raises ConfigurationError if a dialect's services cannot be imported.
    """
    if pipeline.service.settings.grpc_port is None:
        return nullcontext()
    from smallplates.web.grpc import server

    places = [dialect.grpc for dialect in dialects if dialect.grpc]
    with library_errors("the services for gRPC cannot be imported"):
        services = [resolve_name(place) for place in places]
    return server.run(pipeline, catalog, tracer, services)


def make_tracer(settings: Settings) -> "Tracer | None":
    """Returns the tracer if a collector is set; otherwise OpenTelemetry is not even imported."""
    if settings.otlp_endpoint is None:
        return None
    from smallplates.web.http.tracing import Tracer

    return Tracer(settings.otlp_endpoint)

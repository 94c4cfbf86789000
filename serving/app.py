"""`create_app`: puts settings, model, classifier and front-ends together."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from serving import __version__
from serving.engine.provider import EngineProvider, LocalEngine
from serving.errors import InvalidRequestError, ServingError, by_status
from serving.http.access_log import to_client_error
from serving.http.context import RequestContext
from serving.http.middleware import (
    AccessLogMiddleware,
    FastPathMiddleware,
    FastRoute,
    HeadMiddleware,
    ServerErrorMiddleware,
)
from serving.http.responses import ErrorShapes
from serving.inference.service import Classifier
from serving.logging import configure_logging
from serving.metrics import Metrics
from serving.model import Model
from serving.protocols import admin, native, tfserving, torchserve
from serving.protocols.admission import Admission
from serving.protocols.catalog import ModelCatalog
from serving.protocols.tcp import TcpServer
from serving.protocols.v2 import http
from serving.settings import Settings


def create_app(
    settings: Settings, backend: str, provider: EngineProvider | None = None
) -> "Application":
    """The ASGI application.

    `backend` names a `backends.base.Backend` as `module:class`; only the workers import it. Without
    `provider`, the application starts its own engine. Raises ConfigurationError when the model cannot
    be described.
    """
    configure_logging(settings)
    metrics = Metrics(shared=provider is not None)
    model = Model.read(settings.model_dir)
    classifier = Classifier(model, settings, metrics, provider or LocalEngine(backend, settings))
    door, models = Admission(classifier), ModelCatalog(classifier)
    predict = native.Predict(classifier, door)
    tcp = TcpServer(classifier, door.reader)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with (
            classifier.running(),
            tcp.running(),
            grpc_server(classifier, door, models),
        ):
            yield

    app: FastAPI = FastAPIOffline(
        title="Food classifier",
        version=__version__,
        description="A photo in, its class out. See `/model` for what is served.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.include_router(native.create_router(classifier, predict))
    if settings.admin_key:
        app.include_router(admin.create_router(classifier, door, settings.admin_key))
    errors = ErrorShapes()
    ways = {"/predict": FastRoute("/predict", predict)}
    ways |= add_protocols(app, classifier, door, models, errors)
    respond = ErrorHandler(errors)
    add_error_handlers(app, respond)
    app.add_middleware(ServerErrorMiddleware, on_error=respond)
    inside: ASGIApp = FastPathMiddleware(app, ways, respond)
    if settings.cors_origins:
        inside = CORSMiddleware(
            inside,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "X-Priority",
                "X-Request-ID",
                "X-Request-Timeout-Ms",
            ],
            expose_headers=["X-Request-ID", "Server-Timing", "Retry-After"],
        )
    return Application(app, AccessLogMiddleware(HeadMiddleware(inside), metrics, errors), classifier)


class Application:
    """FastAPI with our layers around it, not within its own, through which most requests need not go."""

    def __init__(self, fastapi: FastAPI, outermost: ASGIApp, classifier: Classifier) -> None:
        self.fastapi = fastapi
        self.outermost = outermost
        self.classifier = classifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it: requests for the layers, the server's start and end for FastAPI."""
        await (self.outermost if scope["type"] == "http" else self.fastapi)(scope, receive, send)

    def running(self) -> AbstractAsyncContextManager[object]:
        """Where the server has no word for start and end."""
        return self.fastapi.router.lifespan_context(self.fastapi)


def add_protocols(
    app: FastAPI, classifier: Classifier, door: Admission, models: ModelCatalog, errors: ErrorShapes
) -> dict[str, FastRoute]:
    """The other protocols that are switched on; returns their short ways."""
    ways: dict[str, FastRoute] = {}
    if "v2" in classifier.settings.protocols:
        infer = http.Infer(classifier, door, models)
        app.include_router(http.create_router(classifier, door, models, infer))
        errors.add("v2", http.error_response)
        ways |= infer.fast_routes()
    if "tfserving" in classifier.settings.protocols:
        rows = tfserving.Predict(classifier, door, models)
        app.include_router(tfserving.create_router(models, rows))
        errors.add(tfserving.SEGMENT, tfserving.error_response)
        ways |= rows.fast_routes()
    if "torchserve" in classifier.settings.protocols:
        photos = torchserve.Predict(classifier, door, models)
        app.include_router(torchserve.create_router(classifier, models, photos))
        for segment in torchserve.SEGMENTS:
            errors.add(segment, torchserve.error_response)
        ways |= photos.fast_routes()
    return ways


def grpc_server(
    classifier: Classifier, door: Admission, models: ModelCatalog
) -> AbstractAsyncContextManager[None]:
    """Runs where a port is set; nothing of it is imported elsewhere."""
    if classifier.settings.grpc_port is None:
        return nullcontext()
    from serving.protocols.v2 import grpc

    return grpc.running(classifier, door, models)


class ErrorHandler:
    """The answer for an error; what went wrong inside stays in the log."""

    def __init__(self, errors: ErrorShapes) -> None:
        self.errors = errors

    def __call__(self, request: Request, error: Exception) -> Response:
        """In the shape of the path's protocol."""
        context = RequestContext.of(request)
        return self.errors.response(request.scope["path"], to_client_error(error, context), context)


def add_error_handlers(app: FastAPI, respond: ErrorHandler) -> None:
    """Every error leaves in the shape of its path."""

    @app.exception_handler(ServingError)
    async def on_serving_error(request: Request, error: ServingError) -> Response:
        return respond(request, error)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        return respond(request, by_status(error.status_code, str(error.detail), error.headers))

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        problem: dict[str, Any] = error.errors()[0]  # FastAPI's own type
        place = ".".join(str(part) for part in problem["loc"])
        return respond(request, InvalidRequestError(f"{place}: {problem['msg']}"))

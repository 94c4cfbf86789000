"""Swagger's page at `/docs`, and the OpenAPI document that it shows, at `/openapi.json`."""

import asyncio
import copy
import warnings
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.staticfiles import StaticFiles

from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import Route
from smallplates.web.api.documentation import describe_models
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.http.body import dump_json
from smallplates.web.http.request_context import check_keys

FILES = "static-offline-docs"
"""Path of the page's files, relative to the page: a proxy may put a prefix before all paths."""

PACKAGES: list[str | tuple[str, str]] = [("smallplates.web", "static"), ("fastapi_offline", "static")]
"""Packages and folders with these files."""

PAGE = Path(__file__).parent / "static/docs.html"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The same as those of `flask_app`."""


class Swagger:
    """Serves the page, which contains no data, and the document, which needs the key if one is set."""

    def __init__(self, app: FastAPI, pipeline: Pipeline, catalog: ModelCatalog) -> None:
        self._app, self._pipeline, self._catalog = app, pipeline, catalog
        self._page = Response(PAGE.read_bytes(), headers=HEADERS, media_type="text/html")
        self._described: object = None  # the models in service that the document is about
        self._document = b""
        self._making = asyncio.Lock()

    def add_routes(self) -> None:
        """Adds the page, its files and the document to the application."""
        self._app.mount(f"/{FILES}", StaticFiles(packages=PACKAGES))
        self._app.add_route("/docs", self.page, include_in_schema=False)
        self._app.add_route("/openapi.json", self.document, include_in_schema=False)

    async def page(self, _: Request) -> Response:
        """Returns the page; its script fetches the document, with a key that it asks for if needed."""
        return self._page

    async def document(self, request: Request) -> Response:
        """Returns the document, made anew on a thread if the models have changed."""
        check_keys([name for name, _ in request.headers.raw])
        self._pipeline.check_headers(request.headers)
        service = self._pipeline.service
        async with self._making:
            if self._described is not (models := service.models):
                self._document = await asyncio.to_thread(describe, self._app, self._catalog)
                self._described = models
        return Response(self._document, media_type="application/json")


def describe(app: FastAPI, catalog: ModelCatalog) -> bytes:
    """Returns the OpenAPI document, including requests and answers of the models in service."""
    with warnings.catch_warnings():  # about duplicate operation ids, which are replaced later
        warnings.simplefilter("ignore", UserWarning)
        schema: dict[str, Any] = copy.deepcopy(app.openapi())
    models = [
        entry
        for entry in catalog.by_signature()
        if entry.takes_tensors is (entry.model.task.request_signature is None)
    ]
    if models:  # empty if all models have been unloaded
        routes = [route for route in app.routes if isinstance(route, Route)]
        describe_models(schema, routes, models)
    return dump_json(schema)

"""Swagger's page at `/docs`, and the OpenAPI document that it shows, at `/openapi.json`."""

import asyncio
import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.staticfiles import StaticFiles

from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import Route
from smallplates.web.api.documentation import describe_models
from smallplates.web.api.mounts import Mounts
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.http.body import dump_json
from smallplates.web.http.request_context import check_keys

OFFLINE = ("fastapi_offline", "static")  # package and folder of Swagger's own files
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The same as that of `flask_app`."""


def add_swagger(app: FastAPI, pipeline: Pipeline, catalog: ModelCatalog, mounts: Mounts) -> None:
    """Adds the page, which contains no data, its files, and the document, which needs the key if set."""
    html = (Path(__file__).parent / "static/docs.html").read_bytes()
    page = Response(html, headers={"Content-Security-Policy": POLICY}, media_type="text/html")
    described: object = None  # the models in service that the document is about
    document, making = b"", asyncio.Lock()

    async def docs(_: Request) -> Response:
        """Returns the page; its script fetches the document, with a key that it asks for if needed."""
        return page

    async def openapi(request: Request) -> Response:
        """Returns the document, made anew on a thread if the models have changed."""
        nonlocal described, document
        check_keys([name for name, _ in request.headers.raw])
        pipeline.check_headers(request.headers)
        async with making:
            if described is not (models := pipeline.service.models):
                mounts.follow()
                document = await asyncio.to_thread(describe, app, catalog, mounts.routes)
                described = models
        return Response(document, media_type="application/json")

    app.mount("/static-offline-docs", StaticFiles(packages=[(__package__, "static"), OFFLINE]))
    app.add_route("/docs", docs)
    app.add_route("/openapi.json", openapi)


def describe(app: FastAPI, catalog: ModelCatalog, routes: Sequence[Route]) -> bytes:
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
        describe_models(schema, routes, models)
    return dump_json(schema)

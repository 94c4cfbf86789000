"""`/admin`: chooses which version of the model is served. Available only if an admin key is set."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, SecretStr

from serving.http.body import decode_json, json_response
from serving.protocols.documentation import documented_errors
from serving.protocols.pipeline import DirectRoute, KeyCheck, Pipeline

VERSION = "^[1-9][0-9]{0,9}$"


class VersionRequest(msgspec.Struct):
    """The version to serve from now on."""

    version: Annotated[str, msgspec.Meta(pattern=VERSION)]


REQUEST = msgspec.json.Decoder(VersionRequest)
SCHEMA = msgspec.json.schema(VersionRequest)


class VersionResponse(BaseModel):
    """The version in service."""

    version: str


def create_router(pipeline: Pipeline, key: SecretStr) -> APIRouter:
    """Returns a router with the admin path."""
    router = APIRouter(route_class=DirectRoute)
    check_key = KeyCheck(key)

    @router.post(
        "/admin/version",
        summary="Serve another version of the model",
        response_model=VersionResponse,
        responses=documented_errors(400, 401, 408, 413, 415, 422, 500, 503),
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": SCHEMA}}}
        },
        dependencies=check_key.documented(),
    )
    async def switch(request: Request) -> Response:
        """Loads the version beside the current one, and switches when its workers are warmed up.

        Responds when the previous version has answered every request that it had accepted.
        """
        check_key.check(request.headers.get("authorization", ""))
        async with pipeline.reader.read(request) as content:
            wanted: VersionRequest = decode_json(REQUEST, content)
        service = pipeline.service
        version = await service.load(service.default, wanted.version)
        return json_response({"version": version})

    return router

"""`/admin`: which version of the model is served. Exists only where an admin key is set."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, SecretStr

from serving.classifier import Classifier
from serving.context import RequestContext
from serving.errors import ConfigurationError, InvalidRequestError
from serving.frontends import native_docs as docs
from serving.frontends.guard import KeyCheck
from serving.logs import logger
from serving.responses import json_response


class VersionRequest(BaseModel):
    """The version to serve from now on."""

    version: Annotated[str, Field(pattern="^[1-9][0-9]{0,9}$")]


class VersionResponse(BaseModel):
    """The version in service."""

    version: str


def create_router(classifier: Classifier, key: SecretStr) -> APIRouter:
    """The admin path, bound to one classifier."""
    router = APIRouter()

    @router.post(
        "/admin/version",
        summary="Serve another version of the model",
        response_model=VersionResponse,
        responses=docs.errors(401, 422, 500, 503),
        dependencies=KeyCheck(key).enforced(),
    )
    async def switch(request: Request, wanted: VersionRequest) -> Response:
        """Loads it beside the one in service and switches when its workers are warm.

        Answers when the version before has answered all it had accepted, and is gone.
        """
        try:
            await classifier.switch(wanted.version)
        except ConfigurationError as error:
            raise InvalidRequestError(f"version {wanted.version} cannot be served: {error}") from error
        request_id = RequestContext.of(request).request_id
        logger().warning("version switched", version=wanted.version, request_id=request_id)
        return json_response({"version": wanted.version})

    return router

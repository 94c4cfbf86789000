"""Refuses a request by its head: without a task, the framework, or its body.

`HttpProtocol` calls `refusal` for every head. It knows the paths whose requests have already come as far
as `Pipeline.http`, and repeats what that checks before the body. All other requests, and all that are
not refused, take the usual way.
"""

from functools import lru_cache

from starlette.responses import Response
from starlette.types import Scope

from smallplates.errors import ServingError
from smallplates.web.api.dialect import error_shape
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.http.middleware import AccessLogMiddleware, ErrorShape
from smallplates.web.http.protocol import Refusal
from smallplates.web.http.request_context import RequestContext, check_keys, to_client_error

ADMISSION = {
    name.encode(): name for name in ("authorization", "api-key", "x-request-timeout-ms", "x-priority")
}
"""Headers that `Pipeline.admit` reads."""

ANY_ID = b"0123456789abcdef0123456789abcdef"
"""Stands for the request's id in a prepared response; as long as the ids that the service makes."""


def refusal(scope: Scope, pipeline: Pipeline, log: AccessLogMiddleware) -> Refusal | None:
    """Returns the response to a refused request, which it counts and logs; None for all others.

    Requests that need headers of CORS are left to its middleware.
    """
    headers = dict(reversed(scope["headers"]))  # of several with the same name the first
    known = pipeline.known.get((scope["method"], scope["path"]))
    if known is None or (b"origin" in headers and pipeline.service.settings.cors_origins):
        return None
    scope["route"], model, signature = known
    name = ""
    try:
        check_keys([key for key, _ in scope["headers"]])
        named = {ADMISSION[n]: headers[n].decode("latin-1") for n in ADMISSION if n in headers}
        options = pipeline.admit(named)
        name = model.description.name
        model.refuse_if_full(options, signature)
    except ServingError as error:
        context = log.begin(scope)
        context.model = name
        to_client_error(error, context)
        shape, kind = error_shape(scope, ()), type(error)
        if b"x-request-id" in headers:  # its length may differ, and JSON may escape it
            response = shape(error, context)
        else:
            response = prepare(shape, kind, error.detail)  # type: ignore[arg-type]  # hashes the class
        added = log.headers(context, response.status_code)
        log.record(scope)
        body = bytes(response.body).replace(ANY_ID, context.request_id.encode())
        return response.status_code, [*response.raw_headers, *added], body
    return None


@lru_cache(256)
def prepare(shape: ErrorShape, kind: type[ServingError], detail: str) -> Response:
    """Returns the response for an error of a request whose id is ANY_ID."""
    return shape(kind(detail), RequestContext(ANY_ID.decode()))

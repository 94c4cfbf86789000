"""Refuses a request by its head: without a task, the framework, or its body.

`HttpProtocol` calls `refusal` for every head. It checks the name of the host. It knows the paths whose
requests have already come as far as `Pipeline.http`, and checks in its place what that checks before the
body. All other requests take the usual way.
"""

from functools import lru_cache

from starlette.responses import Response
from starlette.types import Scope

from smallplates import host_names
from smallplates.errors import MisdirectedRequestError, ServingError
from smallplates.web.api.dialect import error_shape
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.http.middleware import ErrorShape, RequestMiddleware
from smallplates.web.http.protocol import Refusal
from smallplates.web.http.request_context import RequestContext, check_keys, to_client_error

ADMISSION = {
    name.encode(): name for name in ("authorization", "api-key", "x-request-timeout-ms", "x-priority")
}
"""Headers that `Pipeline.admit` reads."""

ANY_ID = b"0123456789abcdef0123456789abcdef"
"""Stands for the request's id in a prepared response; as long as the ids that the service makes."""


def refusal(
    scope: Scope, pipeline: Pipeline, log: RequestMiddleware, is_local: bool = False
) -> Refusal | None:
    """Returns the response to a refused request, which it counts and logs; None for all others.

    Requests that need headers of CORS are left to its middleware. `is_local` means that only this
    machine reaches the port.
    """
    headers = dict(reversed(scope["headers"]))  # of several with the same name the first
    known, settings = pipeline.known.get((scope["method"], scope["path"])), pipeline.service.settings
    host = headers.get(b"host", b"").decode("latin-1")
    is_own = not is_local or host_names.is_own(host, settings.allowed_hosts)
    if is_own and (known is None or (b"origin" in headers and settings.cors_origins)):
        return None
    name = ""
    try:
        if not is_own or known is None:
            raise MisdirectedRequestError(f"to serve {host[:80]}, add it to SERVING_ALLOWED_HOSTS")
        scope["route"], model, signature = known
        check_keys([key for key, _ in scope["headers"]])
        named = {ADMISSION[n]: headers[n].decode("latin-1") for n in ADMISSION if n in headers}
        options = pipeline.admit(named)
        name = model.description.name
        model.refuse_if_full(options, signature)
        scope["admitted"] = options
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

"""Builds the Flask application: settings in, routes, headers and error answers wired up."""

import hmac
import io
import json
import logging
import re
import uuid
from functools import partial
from typing import IO, Any

from flask import Flask, Request, Response, g, request
from werkzeug.exceptions import HTTPException, NotFound

from flask_app.api_client import ApiClient, Visit
from flask_app.errors import ApiError, PageError, UploadError
from flask_app.feedback import Feedback
from flask_app.forms import label_of
from flask_app.service import Service
from flask_app.settings import Settings, read_password
from flask_app.views import ModelName, Views, answer_error
from smallplates import host_names

logger = logging.getLogger(__name__)

TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
FORM_SLACK = 64 * 1024  # names, boundaries and tokens around the photos
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class InMemoryRequest(Request):
    """Request that keeps uploads in memory; Werkzeug writes those over 500 KB to a file."""

    max_form_parts = 200

    def _get_file_stream(
        self,
        total_content_length: int | None,  # noqa: ARG002 the signature is Werkzeug's
        content_type: str | None,  # noqa: ARG002
        filename: str | None = None,  # noqa: ARG002
        content_length: int | None = None,  # noqa: ARG002
    ) -> IO[bytes]:
        return io.BytesIO()


class PageApp(Flask):
    """Flask application whose requests stay in memory, and which may lie below any path of a proxy."""

    request_class = InMemoryRequest

    def url_for(self, *args: Any, **values: Any) -> str:  # Any: of any rule
        """Returns an address relative to that of the current request."""
        return "../" * (request.path.count("/") - 1) + "." + super().url_for(*args, **values)


def create_app(settings: Settings) -> Flask:
    """Builds the page's application. Raises OSError when the feedback folder cannot be written.

    The caller closes its `extensions["api"]`.
    """
    app = PageApp(__name__)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes + FORM_SLACK
    app.config["MAX_FORM_MEMORY_SIZE"] = None  # the limit above holds for texts, too
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters["json"] = partial(json.dumps, ensure_ascii=False)
    app.jinja_env.filters["label"] = lambda name: label_of(str(name), {})
    api = app.extensions["api"] = ApiClient(settings)
    feedback = Feedback(settings)
    feedback.prepare()
    service = Service(api)
    views = Views(settings, api, service, feedback)
    app.url_map.converters["model"] = ModelName
    app.before_request(note_visit)
    app.before_request(partial(check_host, app, settings.allowed_hosts))
    if settings.password_file is not None:
        app.before_request(partial(check_password, read_password(settings.password_file)))
    app.before_request(partial(note_model, service))
    app.before_request(refuse_cross_origin)
    app.after_request(add_headers)
    views.add_to(app)
    add_error_answers(app, views)
    return app


def note_visit() -> None:
    """Keeps the browser's X-Request-ID if it is harmless, else makes one; the API gets it, too.

    A valid traceparent is passed on, but never invented.
    """
    header = request.headers.get("X-Request-ID", "")
    g.request_id = header if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", header) else uuid.uuid4().hex
    header = request.headers.get("traceparent", "")
    traceparent = header if TRACEPARENT.fullmatch(header) else None
    client_left = request.environ.get("waitress.client_disconnected", lambda: False)
    g.visit = Visit(g.request_id, traceparent, client_left)


def check_host(app: Flask, names: str) -> None:
    """Raises PageError if only this machine reaches the page, and another site's name points to it."""
    host = request.headers.get("Host", "")
    if app.config.get("IS_LOCAL") and not host_names.is_own(host, names):
        raise PageError("misdirected_request", f"to serve {host[:80]}, add it to UI_ALLOWED_HOSTS")


def check_password(password: bytes) -> None:
    """Raises PageError unless the request has the password; health checks need none."""
    credentials = request.authorization
    text = credentials.password if credentials is not None and credentials.type == "basic" else None
    matches = hmac.compare_digest((text or "").encode(), password)
    if not matches and request.endpoint != "healthz":
        challenge = {"WWW-Authenticate": 'Basic realm="page", charset="UTF-8"'}
        raise PageError("password_required", headers=challenge)


def refuse_cross_origin() -> None:
    """Raises PageError when another site's page posts here through a visitor's browser."""
    if request.method != "POST":
        return
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and origin.partition("://")[2] != request.host
    if foreign:
        raise PageError("cross_origin")


def note_model(service: Service) -> None:
    """Keeps the name of the model that the address names; it is empty for the default model.

    Raises NotFound if there is no such model, ApiError if the API has not told its models yet.
    """
    g.model = ""
    name = (request.view_args or {}).get("model") or request.args.get("model", "")
    if name and name not in service.states():
        raise NotFound if service.model() else ApiError("api_unreachable")
    g.model = name


def add_headers(response: Response) -> Response:
    """Adds the security headers, the request id and Cache-Control to a response."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if "request_id" in g:
        response.headers.setdefault("X-Request-ID", g.request_id)
    if request.endpoint != "static":
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def add_error_answers(app: Flask, views: Views) -> None:
    """Registers handlers that answer every error in words: JSON for the script, a page for people."""

    @app.errorhandler(PageError)
    def _(error: PageError) -> Response:
        return answer_error(views, error)

    @app.errorhandler(HTTPException)
    def _(error: HTTPException) -> Response:
        if error.code == 413:
            return answer_error(views, UploadError("payload_too_large"))
        return answer_error(views, from_http(error))

    @app.errorhandler(Exception)
    def _(error: Exception) -> Response:
        logger.error("request %s failed", g.get("request_id", ""), exc_info=error)
        return answer_error(views, PageError())


def from_http(error: HTTPException) -> PageError:
    """Translates an error that Flask raised itself, such as 404, 405 or a broken form."""
    status = error.code or 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, f"http_{status}")
    allow = {k: v for k, v in error.get_headers() if k == "Allow"}
    return PageError(code, headers=allow, status=status)

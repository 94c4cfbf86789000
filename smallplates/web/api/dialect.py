"""A protocol: a `Dialect`, which `smallplates.protocols` lists, and the `Routes` that it adds.

A route calls its handler without FastAPI's parsing; FastAPI only documents it. A package of your own
adds a dialect as an entry point in the group `smallplates.dialects`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from smallplates.errors import NotFoundError, ServingError
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog
from smallplates.web.api.fields import MAX_ELEMENTS, MAX_IDS, check_elements
from smallplates.web.api.pipeline import Claim, Pipeline, Target
from smallplates.web.http.body import LARGE, decode_json, json_response
from smallplates.web.http.middleware import ErrorShape
from smallplates.web.http.request_context import RequestContext, check_keys, is_probe
from smallplates.web.inference.served_model import ServedModel


class Named(msgspec.Struct):
    """The part of a body that names the model."""

    model: str | None = None


NAMED = msgspec.json.Decoder(Named)
Finder = Callable[..., Target[Any]]
"""Finds the model for a body and, if the path has one, the model's name."""

OBJECTS = {"application/json": {"schema": {"type": "object"}}}
Handler = TypeVar("Handler", bound=Callable[..., Any])

ERRORS = {
    400: ("the body, its encoding or its content cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    404: ("no such model or version", "not_found"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes, pixels, tokens or numbers", "payload_too_large"),
    415: ("unsupported content type", "unsupported_media_type"),
    422: ("the request does not match the schema", "invalid_request"),
    429: ("no free slot", "overloaded"),
    500: ("the server or the model's own code failed", "internal_error"),
    503: ("no free slot, shutting down, or not ready", "overloaded"),
    504: ("the deadline passed", "deadline_exceeded"),
}
"""Status -> what it means, and the code of one such error."""

OF_CALLS = (400, 401, 404, 408, 413, 415, 500, 503, 504)


class ErrorResponse(BaseModel):
    """What went wrong, in words and as a code."""

    detail: str
    code: str
    request_id: str


class ErrorText(BaseModel):
    """What went wrong, in words."""

    error: str


def native_error(error: ServingError, context: RequestContext) -> Response:
    """Returns `{"detail", "code", "request_id"}` with the error's status and headers."""
    return json_response(native_content(error, context), error.status, error.headers)


def native_content(error: ServingError, context: RequestContext) -> dict[str, Any]:
    """Returns the JSON of an error in the native API and over TCP."""
    return {"detail": error.detail, "code": error.code, "request_id": context.request_id}


def text_error(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"error": "..."}`; protocols with this format use 400 instead of 422."""
    status = 400 if error.status == 422 else error.status
    return json_response({"error": error.detail}, status, error.headers)


class BodyKind(NamedTuple):
    """A body that says all about a call, also the model's name."""

    type: Any  # of the decoded body
    call: Callable[[CatalogEntry, Any, int], Any]  # from a decoded body of so many bytes to a Call
    example: Mapping[str, Any] | Callable[[CatalogEntry], Mapping[str, Any]]
    needs_worker: bool = True


@dataclass(frozen=True)
class Dialect:
    """A protocol."""

    add_routes: Callable[["Routes", Pipeline, ModelCatalog], None]
    title: str | None = None  # heading of its paths in Swagger
    error: ErrorShape = native_error
    error_model: type[BaseModel] = ErrorResponse  # the body that `error` returns
    example: Callable[[CatalogEntry], Any] = lambda _: None  # a model's example: the JSON body of a call
    takes_tensors: bool = True
    prefixes: tuple[str, ...] = ()  # paths below them that no route has get this dialect's errors
    about: str = ""  # a sentence below the title
    grpc: str = ""  # its services for gRPC, as `module:function`; imported only if a port is set


class Route(APIRoute):
    """Calls its handler with the path's parameters and, if the handler takes it, the request.

    The handler itself parses bodies, headers and queries, so that a key is checked before the body is
    read.
    """

    dialect: Dialect
    is_call = False  # whether it calls a model
    example: Callable[[CatalogEntry], Any] | None = None  # a body for this path only; else the dialect's
    tasks: Sequence[str] = ()  # those that it is for; empty: all
    claim: Claim | None = None  # what it answers if an earlier dialect has its path
    others: Sequence["Route"] = ()  # those of other dialects that have claims on its path
    claims: Sequence[Claim] = ()  # what these answer now
    is_off = False
    follow: Callable[[], None]  # calls `mount` if the models have changed
    shared: dict[tuple[str, ...], asyncio.Task[Response]]  # responses that requests wait for

    def mount(self, tasks: Collection[str]) -> None:
        """Turns the path, and each claim on it, on if it is for one of the models' tasks; else off."""
        on = [each for each in (self, *self.others) if not each.tasks or {*each.tasks} & {*tasks}]
        self.claims = [each.claim for each in on if each.claim and each is not self]
        self.is_off = not on

    def check_on(self) -> None:
        """Raises NotFoundError if no model has one of the path's tasks."""
        self.follow()
        if self.is_off:
            raise NotFoundError(
                f"no model here is for {' or '.join(self.tasks)}: this path is off until one is served; "
                "/predict calls the default model"
            )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose path has matched.

        Raises 405 for an unsupported method, and what `answer` raises.
        """
        if scope["method"] not in (self.methods or ()):
            self.check_on()
            same = (each for each in scope["app"].routes if getattr(each, "path", None) == self.path)
            allowed = sorted(method for each in same for method in each.methods)
            use = " or ".join(each for each in allowed if each != "HEAD")
            detail = f"{scope['method'][:80]} is not supported at this path; use {use}"
            raise HTTPException(405, detail, headers={"Allow": ", ".join(allowed)})
        response = await self.answer(scope, receive)
        await response(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """Returns the response to a request with a supported method.

        Raises RequestError for several keys, and what `check_on` raises.
        """
        if "admitted" not in scope:  # else `head_check` has looked
            check_keys([name for name, _ in scope["headers"]])
        self.check_on()
        given = {}
        if self.dependant.request_param_name:
            given["request"] = Request(scope, receive)
        elif not is_probe(self.path):  # these must know of a signal that has just come
            return await self._share(scope["path_params"])
        response: Response = await self.endpoint(**given, **scope["path_params"])
        return response

    async def _share(self, parameters: Mapping[str, str]) -> Response:
        """Returns the response to all requests with these parameters that wait for it.

        One that comes after the handler has started gets a newer response.
        """
        key = tuple(parameters.values())

        async def respond() -> Response:
            del self.shared[key]
            response: Response = await self.endpoint(**parameters)
            return response

        if key not in self.shared:
            self.shared[key] = asyncio.create_task(respond())
        return await asyncio.shield(self.shared[key])


def error_shape(scope: Scope, dialects: Sequence[Dialect]) -> ErrorShape:
    """Returns how a request's errors look: as its route says or, if there is none, by its path."""
    if isinstance(route := scope.get("route"), Route):
        dialect: Dialect = scope.get("dialect", route.dialect)
        return dialect.error
    path = f"{scope['path']}/"
    return next((each.error for each in dialects if path.startswith(each.prefixes)), native_error)


class Routes(APIRouter):
    """The routes of a dialect."""

    def __init__(self, dialect: Dialect, pipeline: Pipeline, catalog: ModelCatalog) -> None:
        super().__init__(route_class=Route, tags=[dialect.title] if dialect.title else None)
        self._dialect = dialect
        self._security = pipeline.check_key.security()
        self._pipeline, self._catalog = pipeline, catalog
        dialect.add_routes(self, pipeline, catalog)
        for route in self.routes:
            assert isinstance(route, Route)  # noqa: S101 the router's class of routes
            route.dialect, route.shared = dialect, {}

    def errors(self, *statuses: int) -> dict[int | str, dict[str, Any]]:
        """Returns FastAPI's `responses` for errors of these statuses; native ones get an example."""
        return {status: self._error(status) for status in statuses}

    def _error(self, status: int) -> dict[str, Any]:
        model, (text, code) = self._dialect.error_model, ERRORS[status]
        documented: dict[str, Any] = {"model": model, "description": text[0].upper() + text[1:]}
        if model is ErrorResponse:
            example = {"detail": text, "code": code, "request_id": "5f0c9a61e5b14a06a4b3f6d6f8b3c7aa"}
            documented["content"] = {"application/json": {"example": example}}
        if status == 503:
            seconds = {"schema": {"type": "integer"}, "description": "Seconds to wait."}
            documented["headers"] = {"Retry-After": seconds}
        return documented

    def about(
        self, path: str, summary: str = "", *errors: int, tasks: Sequence[str] = (), **further: Any
    ) -> Callable[[Handler], Handler]:
        """Adds a path for GET; without a summary, it is not documented, as another path says the same.

        It is off while no model has one of the `tasks`, if there are any. `further` is for FastAPI.
        """
        form: dict[str, Any] = {"summary": summary, "responses": self.errors(*errors), **further}

        def add(handler: Handler) -> Handler:
            self.get(path, include_in_schema=bool(summary), **form)(handler)
            route: Any = self.routes[-1]
            route.tasks = tasks
            return handler

        return add

    def call(
        self,
        path: str,
        summary: str,
        content: Mapping[str, Any] | None = None,
        errors: Sequence[int] = OF_CALLS,
        methods: Sequence[str] = ("POST",),
        example: Callable[[CatalogEntry], Any] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Adds a path that calls a model; `content` has the bodies by content type.

        `example` replaces the dialect's.
        """
        body = {"requestBody": {"required": True, "content": content}} if content else None

        def add(handler: Handler) -> Handler:
            self.add_api_route(
                path,
                handler,
                summary=summary,
                methods=[*methods],
                responses=self.errors(*errors),
                openapi_extra=body,
                include_in_schema="{version}" not in path,
                dependencies=self._security,
            )
            route: Any = self.routes[-1]
            route.is_call, route.example = True, example
            return handler

        return add

    def finder(self, kinds: Mapping[str, BodyKind]) -> Finder:
        """Returns what finds the model for a body, by its path or by name in the body.

        The model's task says how the body is decoded.
        """
        accepts_ids = self._pipeline.service.settings.accept_token_ids
        decoders = {kind.type: msgspec.json.Decoder(kind.type) for kind in kinds.values()}

        def find(body: bytes, model: str = "") -> Target[Any]:
            entry = self._catalog.choose(model or decode_json(NAMED, body).model, tuple(kinds))
            kind = kinds[entry.model.description.task]
            inline = LARGE if kind.needs_worker else 0
            return Target(entry.model, partial(decode, kind, entry), inline_bytes=inline)

        def decode(kind: BodyKind, entry: CatalogEntry, body: bytes) -> Any:
            check_elements(body, MAX_ELEMENTS if kind.needs_worker and not accepts_ids else MAX_IDS)
            return kind.call(entry, decode_json(decoders[kind.type], body), len(body))

        return find

    def by_body(
        self,
        path: str,
        summary: str,
        kinds: Mapping[str, BodyKind],
        field: str = "",
        find: Finder | None = None,
        early: Callable[[str], ServedModel | None] | None = None,
    ) -> None:
        """Adds a path that decodes a body by the task of its model, which `{model}` or the body names.

        If an earlier dialect has the path, this one answers JSON objects with `field` there. The path
        is off while no model has one of the tasks in `kinds`. `find` replaces what they find. `early`
        returns the model before the body is read, of any task, so the path is always on.
        """
        pipeline, finder = self._pipeline, find or self.finder(kinds)
        known = early or partial(self._catalog.certain, tasks=tuple(kinds))

        def example(entry: CatalogEntry) -> Any:
            if (kind := kinds.get(entry.model.description.task)) is None:
                return None
            body = kind.example(entry) if callable(kind.example) else kind.example
            return {**body, "model": entry.name}

        @self.call(path, summary, OBJECTS, example=example)
        async def handler(request: Request, model: str = "") -> Response:
            return await pipeline.http(request, partial(finder, model=model), known(model))

        route: Any = self.routes[-1]
        route.tasks = () if early else [*kinds]
        route.claim = Claim(field, finder, self._dialect) if field else None

"""Routes that the router has matched once: their responses are written in one step, or in parts."""

import asyncio
import socket
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from fastapi import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from smallplates.errors import NotFoundError
from smallplates.web.api.dialect import native_error
from smallplates.web.http.body import ResponseInParts
from smallplates.web.http.middleware import LONGEST_PATH, MOST_PATHS, RequestMiddleware
from smallplates.web.http.protocol import HttpProtocol

PARTS = [b"x" * 70_000, b"y" * 70_000]


class Answering:
    """A route that answers according to its path."""

    methods = frozenset({"GET", "HEAD"})

    async def answer(self, scope: Scope, _: Receive) -> Response:
        if scope["path"] == "/fails":
            raise NotFoundError("there is nothing")
        return ResponseInParts(PARTS) if scope["path"] == "/parts" else Response(scope["path"])


class Application:
    """The middleware around a router that counts what it matches."""

    def __init__(self) -> None:
        self.matched: list[str] = []
        self.middleware = RequestMiddleware(
            self.router, Answering, lambda _: native_error, Mock(), tracer=None
        )

    async def router(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.matched.append(scope["path"])
        route = scope["route"] = Answering()
        scope["path_params"] = {}
        response = await route.answer(scope, receive)
        await response(scope, receive, send)

    def answers(self, *requests: str) -> list[bytes]:
        """Returns what a client reads until the server closes the connection, for each request."""

        async def talk() -> list[bytes]:
            config = uvicorn.Config(self.middleware, lifespan="off", log_config=None)
            config.load()
            read = []
            for request in requests:
                ours, theirs = socket.socketpair()
                theirs.setblocking(False)
                loop = asyncio.get_running_loop()
                protocol = partial(HttpProtocol, config, ServerState(), {})
                await loop.connect_accepted_socket(protocol, theirs)
                reader, writer = await asyncio.open_connection(sock=ours)
                with closing(writer):
                    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                    read.append(await reader.read())
            return read

        return asyncio.run(talk())


@pytest.mark.parametrize(
    ("request_line", "status", "contains"),
    [
        ("GET /whole", b"200", b"\r\n\r\n/whole"),
        ("GET /parts", b"200", PARTS[1][:60_000]),
        ("GET /fails", b"404", b"there is nothing"),
    ],
)
def test_a_route_that_is_known_answers_as_the_router_does(
    request_line: str, status: bytes, contains: bytes
) -> None:
    app = Application()
    first, second = app.answers(request_line, request_line)
    assert len(app.matched) == 1
    for answer in (first, second):
        assert answer.split(b" ", 2)[1] == status
        assert contains in answer
        assert b"x-request-id: " in answer
        assert b"server-timing: " in answer
    assert len(first) == pytest.approx(len(second), abs=8)  # numbers of Server-Timing


def test_a_head_request_gets_no_body() -> None:
    for answer in Application().answers("HEAD /whole", "HEAD /whole"):
        assert answer.endswith(b"\r\n\r\n")
        assert b"content-length: 6" in answer


def test_not_every_path_is_remembered() -> None:
    app: Any = Application()
    app.answers(*(f"GET /{number}" for number in range(MOST_PATHS + 1)))
    assert len(app.middleware._found) == 1


def test_long_paths_are_not_remembered() -> None:
    app = Application()
    app.answers(*(f"GET /{'x' * LONGEST_PATH}" for _ in range(2)))
    assert len(app.matched) == 2

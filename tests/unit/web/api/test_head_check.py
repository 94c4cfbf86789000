"""Refusals by the head alone: the same response, counts and log line as the framework's way gives."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from smallplates.errors import OverloadedError, ServingError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.web import app as application
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.dialect import Dialect, Routes
from smallplates.web.api.pipeline import Call, Pipeline, Target
from smallplates.web.http import request_context
from smallplates.web.http.body import json_response
from smallplates.web.http.protocol import Connections, HttpProtocol
from smallplates.web.http.request_context import RequestContext
from tests.fake import BACKEND
from tests.unit.web.inference.test_served_model import served

KEY = "Authorization: Bearer guest"
VARIES = re.compile(rb"[0-9a-f]{32}|(?<=date: )[^\r]+|(?<=dur=)[\d.]+")
NATIVE = ("POST", "/predict?top_k=2", "overloaded")
CALLS = [
    NATIVE,
    ("POST", "/predict/food11", "overloaded"),
    ("POST", "/v2/models/food11/infer", "all slots"),
    ("POST", "/v2/models/food_classifier_onnx/versions/1/infer", "all slots"),
    ("POST", "/v1/models/food11:predict", "all slots"),
    ("POST", "/v1/models/food11/versions/1:predict", "all slots"),
    ("POST", "/predictions/food11", "ServiceUnavailableException"),
    ("PUT", "/predictions/food11/1.0", "ServiceUnavailableException"),
    ("POST", "/", "all slots"),
    ("POST", "/models/food11", "all slots"),
    ("POST", "/invocations", "all slots"),
    ("POST", "/busy/food11", "busy"),
]
OTHER = ("/", "/models/food11", "/invocations", "/busy/food11")
"""Paths whose protocols answer overload with 429."""

HEADS = [
    (b"503", [KEY]),
    (b"400", [KEY, "Authorization: Bearer thief"]),
    (b"400", [KEY, KEY]),
    (b"400", ["api-key: guest", "Api-Key: thief"]),
    (b"503", [KEY, "X-Priority: bulk", "X-Priority: urgent"]),
    (b"503", [KEY, "X-Priority: bulk"]),
    (b"503", ["api-key: guest"]),
    (b"503", ["api-key: guest", "Authorization: Bearer thief"]),
    (b"401", ["api-key: thief"]),
    (b"401", ["api-key: Bearer guest"]),
    (b"503", [KEY, 'X-Request-ID: a"\\b']),
    (b"503", [KEY, "X-Request-ID: \u00e4"]),
    (b"401", []),
    (b"401", ["X-Priority: urgent", "X-Request-ID: mine"]),
    (b"4", [KEY, "X-Priority: urgent"]),
    (b"4", [KEY, "X-Request-Timeout-Ms: soon"]),
]


def busy(error: ServingError, _: RequestContext) -> Response:
    """A protocol whose answer to overload is 429."""
    status = 429 if isinstance(error, OverloadedError) else error.status
    return json_response({"busy": error.detail}, status, error.headers)


def add_busy(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    @routes.call("/busy/{model}", "Call a model")
    async def call(model: str, request: Request) -> Response:
        target = Target(catalog.find(model).model, lambda _: Call())
        return await pipeline.http(request, target)


class Service:
    """An application with a model whose slots are all taken; counts its calls."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.app: FastAPI = application.create_app(settings, BACKEND, Mock(shares_ports=False))
        self.service = self.app.state.service
        self.refusing = served(model, "cpu", 5.0, 2, 1)
        self.refusing.client = Mock(is_down=False)
        self.refusing.client.check_free.side_effect = self.check_free
        self.service.models = {"food11": self.refusing}
        self.calls = 0

    def check_free(self, bulk: bool) -> None:
        """As `EngineClient.check_free` does when it is full."""
        raise OverloadedError(f"all slots {'for bulk requests ' if bulk else ''}are taken")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        await self.app(scope, receive, send)

    def answer(self, data: bytes, by_head: bool) -> bytes:
        connections = Connections()
        if by_head:
            connections.check_head = self.app.state.check_head

        async def talk() -> bytes:
            config = uvicorn.Config(self, lifespan="off", log_config=None)
            config.load()
            protocol = HttpProtocol(config, ServerState(), {}, connections=connections)
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: protocol, theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
            with closing(writer):
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
                return head + await reader.readexactly(size)

        return asyncio.run(talk())

    def failures(self) -> list[Any]:
        """Signatures of the refusals in the model's statistics."""
        counted: Any = self.refusing.client.statistics.count_failure
        return [call.args for call in counted.call_args_list]


@pytest.fixture
def make(model: Model, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Service]:
    """Makes services whose log has a line for every refusal."""
    monkeypatch.setattr(request_context, "refusals", request_context.Refusals())
    monkeypatch.setattr(request_context, "LINES_A_SECOND", 100_000)
    dialects = application.enabled_dialects(Settings())
    dialects.append(Dialect(add_busy, "Busy", busy, takes_tensors=False))
    monkeypatch.setattr(application, "enabled_dialects", lambda _: dialects)

    def service(**settings: Any) -> Service:  # Any: fields of Settings
        return Service(model, Settings(api_key="guest", **settings))

    return service


def request(method: str, path: str, headers: list[str], version: str = "1.1", size: int = 3) -> bytes:
    head = [f"{method} {path} HTTP/{version}", "Host: x", f"Content-Length: {size}", *headers, "", ""]
    return "\r\n".join(head).encode("latin-1") + bytes(size)


def counts(service: Service) -> tuple[list[str], list[Any]]:
    text = service.service.metrics.text().decode()
    samples = re.findall(r"^serving_request(?:s_total|_seconds_count)\S+ \S+", text, re.MULTILINE)
    return samples, service.failures()


@pytest.mark.parametrize(("method", "path", "words"), CALLS)
def test_refusals_are_the_same_as_without_the_check(
    make: Callable[..., Service], capfd: pytest.CaptureFixture[str], method: str, path: str, words: str
) -> None:
    slow, fast = make(), make()

    def answer(headers: list[str], version: str = "1.1") -> bytes:
        data = request(method, path, headers, version)
        expected, answered = slow.answer(data, by_head=False), fast.answer(data, by_head=True)
        assert VARIES.sub(b"", answered) == VARIES.sub(b"", expected)
        return answered

    assert words.encode() in answer([KEY])
    assert fast.calls == 1  # before, the path is unknown
    for status, headers in HEADS:
        wanted = b"429" if path in OTHER and status == b"503" else status
        for more in ([], ["Connection: close"]):
            assert answer([*headers, *more]).startswith(b"HTTP/1.1 " + wanted)
        assert answer(headers, "1.0").startswith(b"HTTP/1.1 " + wanted)
    assert fast.calls == 1
    assert words.encode() in answer([KEY])
    assert counts(fast) == counts(slow)
    found = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    log = [{**line, **dict.fromkeys(("timestamp", "ms", "request_id"))} for line in found]
    assert log[::2] == log[1::2]
    assert {line["level"] for line in log if line["code"] == "overloaded"} == {"warning"}


def test_what_takes_the_usual_way(make: Callable[..., Service]) -> None:
    service = make(cors_origins=["https://page"])
    data = request(*NATIVE[:2], [KEY])
    service.answer(data, by_head=True)
    service.answer(data, by_head=True)
    assert service.calls == 1
    answered = service.answer(request(*NATIVE[:2], [KEY, "Origin: https://page"]), by_head=True)
    assert b"access-control-allow-origin: https://page" in answered
    assert service.calls == 2
    assert service.answer(request("GET", "/predict", [KEY]), by_head=True).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("path", ["/predict", "/nothing", "/docs", "/metrics"])
def test_another_name_for_a_port_of_this_machine(make: Callable[..., Service], path: str) -> None:
    """Another site's name may point to 127.0.0.1; browsers then let its pages read the answers."""
    service = make(allowed_hosts="api.example")
    local = partial(service.app.state.check_head, is_local=True)
    data = request("GET", path, [KEY])
    assert not service.answer(data, by_head=True).startswith(b"HTTP/1.1 421")  # any machine reaches it
    service.app.state.check_head = local
    called, answered = service.calls, service.answer(data, by_head=True)
    assert answered.startswith(b"HTTP/1.1 421")
    assert b'"misdirected_request"' in answered
    assert b"SERVING_ALLOWED_HOSTS" in answered
    assert service.calls == called
    for host in (b"localhost:8000", b"[::1]", b"api.example:443"):
        assert b" 421 " not in service.answer(data.replace(b"Host: x", b"Host: " + host), by_head=True)


def test_a_model_that_leaves_or_drains_is_noticed(make: Callable[..., Service]) -> None:
    service = make()
    data = request("POST", "/predict/food11", [KEY])
    service.answer(data, by_head=True)
    service.service.start_draining()
    assert b'"draining"' in service.answer(data, by_head=True)
    assert service.calls == 1
    service.service.models = {}
    assert b'"unavailable"' in service.answer(data, by_head=True)
    assert service.calls == 2
    assert not service.app.state.check_head.keywords["pipeline"].known

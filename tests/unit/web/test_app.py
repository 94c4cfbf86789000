"""The application without a server: unforeseen errors, calls of other origins, words at the start."""

import asyncio
import re
import socket
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import httpx
import pytest

from smallplates.errors import ConfigurationError, NotFoundError, ServingError
from smallplates.models.folder import Model, configured_models, stored_models
from smallplates.service import serve
from smallplates.settings import Settings
from smallplates.supervision.cluster import Cluster
from smallplates.supervision.registry import EnginePlan, Registry
from smallplates.web.api.dialect import Route
from smallplates.web.app import create_app
from smallplates.web.sockets import cannot_listen
from tests.fake import BACKEND
from tests.unit.web.inference.test_served_model import served


@pytest.mark.parametrize(
    ("path", "said"), [("/broken", {"detail", "code", "request_id"}), ("/v2/broken", {"error"})]
)
def test_the_last_answer_has_the_shape_of_its_path(
    path: str, said: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    app = create_app(Settings(), BACKEND)

    @app.get(path)
    async def broken() -> None:
        raise ValueError("with secret details")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # raises what the application raises
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    answer = asyncio.run(ask())
    assert answer.status_code == 500
    assert set(answer.json()) == said
    assert "secret" not in answer.text


def test_each_unknown_variable_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.setenv("SERVING_INSTANCE", "2")
    monkeypatch.setenv("SERVING_INSTANCES__LATER", "2")
    monkeypatch.setenv("SERVING_PRECISION__TYPO", "fp32")
    settings = Settings(model_store=tmp_path)

    def named() -> list[str]:
        lines = capfd.readouterr().err.splitlines()
        return [part for line in lines for part in line.split('"') if part.startswith("SERVING_")]

    create_app(settings, BACKEND)
    once = named()
    assert once[:2] == ["SERVING_INSTANCE", "SERVING_INSTANCES"]
    assert once[2:] == ["SERVING_PRECISION__TYPO", "SERVING_PRECISION__LATER"]
    registry = Registry(settings, lambda *_: EnginePlan(BACKEND, ()), configured_models(settings))
    create_app(settings, BACKEND, registry)  # as each of several web processes does
    assert named() == []

    async def nothing(_: Cluster) -> None:
        """Starts no process."""

    monkeypatch.setattr(Cluster, "_serve", nothing)
    Cluster("tests.fake", settings).run()
    assert named() == once


def test_a_store_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    settings = Settings(model_store=tmp_path).model_copy(update={"model_store": tmp_path / "none"})
    assert stored_models(settings) == {}


@pytest.mark.parametrize("package", ["os", "", ".x", "no_such_package", "tests"])
def test_a_package_that_is_no_backend_is_refused(package: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no package"):
        serve(package, {})


def test_a_host_that_no_machine_can_have_is_refused() -> None:
    wrong = Settings(host="\xe9" * 70)
    expected = pytest.raises(ConfigurationError, match="cannot listen on SERVING_HOST=\xe9")
    with expected, socket.socket() as listener, cannot_listen(wrong):
        listener.bind((wrong.host, 0))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    """A client of an application that pages of http://page.example may call."""
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    settings = Settings(cors_origins=["http://page.example"])
    transport = httpx.ASGITransport(create_app(settings, BACKEND))
    return httpx.AsyncClient(transport=transport, base_url="http://x")


@pytest.mark.parametrize(
    ("path", "method", "header"),
    [
        ("/predict", "POST", "x-request-timeout-ms"),
        ("/predict", "POST", "content-encoding, content-type"),
        ("/predict", "POST", "authorization,traceparent,tracestate,baggage"),
        ("/v2/models/m/infer", "POST", "inference-header-content-length"),
        ("/predictions/m", "PUT", "content-type"),
        ("/model", "HEAD", "x-request-id"),
    ],
)
def test_a_listed_origin_may_send_what_the_api_takes(
    client: httpx.AsyncClient, path: str, method: str, header: str
) -> None:
    def preflight(origin: str) -> httpx.Response:
        asked = {"Method": method, "Headers": header}
        headers = {f"Access-Control-Request-{name}": value for name, value in asked.items()}
        return asyncio.run(client.options(path, headers={"Origin": origin, **headers}))

    answer = preflight("http://page.example")
    assert answer.status_code == 200, answer.text
    assert method in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == header
    assert preflight("http://other.example").status_code == 400


def test_methods_that_no_route_has_are_not_allowed(client: httpx.AsyncClient) -> None:
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "DELETE"}
    assert asyncio.run(client.options("/predict", headers=headers)).status_code == 400


def test_no_path_ends_in_a_slash(client: httpx.AsyncClient) -> None:
    transport: Any = client._transport
    own = ("/v1/", "/v2", "/openai/", "/api/")  # protocols with errors of their own for unknown paths
    for route in (each for each in transport.app.routes if isinstance(each, Route)):
        path = re.sub("{.*?}", "x", route.path)
        for method in ("GET", "POST") if path != "/" else ():
            answer = asyncio.run(client.request(method, f"{path}/"))
            assert answer.status_code == 404, (method, path, answer.text)
            assert ("error" in answer.json()) == path.startswith(own), answer.text


def test_a_listed_origin_may_read_every_header_of_an_answer(client: httpx.AsyncClient) -> None:
    other, answer = (
        asyncio.run(client.get("/health/live", headers={"Origin": f"http://{name}.example"}))
        for name in ("other", "page")
    )
    assert "Access-Control-Allow-Origin" not in other.headers
    assert answer.headers["Access-Control-Allow-Origin"] == "http://page.example"
    exposed = set(answer.headers["Access-Control-Expose-Headers"].lower().split(", "))
    of_errors = {name for kind in subclasses(ServingError) for name in kind("").headers}
    wanted = {"Inference-Header-Content-Length", "X-Request-ID", "Server-Timing", "X-Input-Truncated"}
    wanted |= {"Accept-Encoding", "Allow", *of_errors} - {"Connection"}  # a browser's own business
    assert exposed == {name.lower() for name in wanted}


def subclasses(kind: type[ServingError]) -> set[type[ServingError]]:
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


def test_a_protocol_that_cannot_be_imported_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[smallplates.dialects]\nodd = no_such_module:DIALECT\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"odd.*no_such_module"):
        create_app(Settings(), BACKEND)


def test_those_who_wait_for_an_answer_share_it(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport: Any = client._transport
    service = transport.app.state.service
    metrics, model = Mock(return_value=b"x"), Mock(side_effect=NotFoundError("no such model"))
    monkeypatch.setattr(service.metrics, "text", metrics)
    monkeypatch.setattr(service, "model", model)

    async def ask(*paths: str) -> list[int]:
        answers = await asyncio.gather(*(client.get(path) for path in paths))
        assert len({answer.headers["x-request-id"] for answer in answers}) == len(paths)
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask("/metrics", "/model/a", "/metrics", "/model/b", "/model/a")) == [
        *(200, 404, 200, 404, 404)
    ]
    assert metrics.call_count == 1
    assert model.call_args_list == [call("a"), call("b")]
    assert asyncio.run(ask("/metrics")) == [200]
    assert metrics.call_count == 2


def test_the_document_is_made_once_for_the_models_in_service_and_needs_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    app = create_app(Settings(api_key="sesame"), BACKEND)
    threads: list[threading.Thread] = []

    def made(*_: object) -> bytes:
        threads.append(threading.current_thread())
        return b"{}"

    monkeypatch.setattr("smallplates.web.swagger.describe", made)

    async def ask() -> None:
        guest = {"Authorization": "Bearer sesame"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for headers in ([], [("api-key", "thief")]):
                answer = await client.get("/openapi.json", headers=headers)
                assert answer.json()["code"] == "unauthorized"
            two = [*guest.items(), ("api-key", "sesame"), ("api-key", "thief")]
            assert (await client.get("/openapi.json", headers=two)).status_code == 400
            assert not threads
            await client.get("/docs")
            for count in (1, 2):
                asked = (client.get("/openapi.json", headers=guest) for _ in range(5))
                assert {answer.content for answer in await asyncio.gather(*asked)} == {b"{}"}
                assert len(threads) == count
                app.state.service.models = {}  # as after every change of the models

    asyncio.run(ask())
    assert threading.main_thread() not in threads


def test_the_document_has_what_the_model_in_service_can_do(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    app = create_app(Settings(), BACKEND)

    async def ask() -> dict[str, Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            document: dict[str, Any] = (await client.get("/openapi.json")).json()
            return document

    assert asyncio.run(ask())["info"]["title"] == "Model server"
    app.state.service.models = {"food11": served(model, "cpu", 5.0, 2, 1)}
    document = asyncio.run(ask())
    paths = set(document["paths"])
    assert document["info"]["title"] == model.description.title
    assert {"/predict", "/invocations", "/v2/models/{model}/infer", "/predictions/{model}"} <= paths
    assert len(paths) <= 20
    assert not paths & {"/embed", "/info", "/api/tags", "/meta", "/v2/health/ready", "/ping"}
    assert not [path for path in paths if "version" in path]
    app.state.service.models = {}
    assert asyncio.run(ask())["info"]["title"] == "Model server"


@pytest.mark.parametrize("header", ["Authorization", "api-key"])
@pytest.mark.parametrize("path", ["/predict", "/v1/embeddings", "/v2/repository/models/food11/load"])
def test_several_keys_are_refused(monkeypatch: pytest.MonkeyPatch, path: str, header: str) -> None:
    """A proxy might have checked another one."""
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    app = create_app(Settings(api_key="sesame", admin_key="chief"), BACKEND)

    async def ask(*keys: str) -> int:
        headers = [(header, f"Bearer {key}") for key in keys]
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.post(path, headers=headers, content=b"{}")).status_code

    assert asyncio.run(ask("chief", "sesame")) == 400
    assert asyncio.run(ask("sesame", "sesame")) == 400

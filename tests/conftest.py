"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest

from tests import servers

BACKENDS = ("fastapi_onnx", "fastapi_pt")


@pytest.fixture(scope="session", params=BACKENDS)
def backend_service(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The base URL of a running service, and where it speaks gRPC."""
    port = str(servers.free_port())
    settings = {"SERVING_LOG_LEVEL": "warning", "SERVING_GRPC_PORT": port}
    with servers.api(request.param, settings) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def backend_url(backend_service: tuple[str, str]) -> str:
    """The base URL; every test that takes it runs on both backends."""
    return backend_service[0]


@pytest.fixture(scope="session")
def grpc_target(backend_service: tuple[str, str]) -> str:
    """Host and port of the same service's gRPC."""
    return backend_service[1]


@pytest.fixture(scope="session")
def onnx_url() -> Iterator[str]:
    """The base URL of a running service whose backend does not matter."""
    with servers.api("fastapi_onnx", {"SERVING_LOG_LEVEL": "warning"}) as url:
        yield url

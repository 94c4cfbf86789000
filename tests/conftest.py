"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest

from tests import servers

BACKENDS = ("fastapi_onnx", "fastapi_pt")


@pytest.fixture(scope="session", params=BACKENDS)
def backend_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The base URL of a running service; every test that takes it runs on both backends."""
    with servers.api(request.param, {"SERVING_LOG_LEVEL": "warning"}) as url:
        yield url


@pytest.fixture(scope="session")
def onnx_url() -> Iterator[str]:
    """The base URL of a running service whose backend does not matter."""
    with servers.api("fastapi_onnx", {"SERVING_LOG_LEVEL": "warning"}) as url:
        yield url

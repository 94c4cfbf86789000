"""What the tests on a GPU share; where there is none, they fail instead of being skipped."""

from collections.abc import Iterator

import pytest

from smallplates.errors import ConfigurationError
from smallplates.worker import cuda_driver
from tests import servers

GIB = 1 << 30


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nothing runs without a GPU, and the reason is the last line."""
    if not any(item.get_closest_marker("gpu") for item in session.items):
        return
    try:
        cuda_driver.total_memory(0)
    except ConfigurationError as error:
        pytest.exit(f"the tests marked gpu need a GPU: {error}", returncode=1)


@pytest.fixture(params=["fastapi_onnx", "fastapi_pt"])
def package(request: pytest.FixtureRequest) -> str:
    """Every test that takes it runs on both backends."""
    return str(request.param)


def fraction(gibibytes: float) -> float:
    """The share of GPU 0's memory that is about so much."""
    return min(1.0, gibibytes * GIB / cuda_driver.total_memory(0))


@pytest.fixture
def gpu_url(package: str) -> Iterator[str]:
    """The base URL of a service on the GPU, with two web processes."""
    settings = {"SERVING_DEVICE": "cuda", "SERVING_WEB_PROCESSES": "2", "SERVING_LOG_LEVEL": "warning"}
    with servers.api(package, settings) as url:
        yield url

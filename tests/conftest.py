"""Selects the slow tests, and has the fixtures that several folders share.

`make test` runs what is not marked `slow` and needs no PyTorch; `make test-all` runs the rest, too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from serving.backends import cuda_driver
from serving.errors import ConfigurationError
from tests import servers

FOLDER = Path(__file__).parent
HAS_TORCH = find_spec("torch") is not None
NEED_TORCH = [
    "contract/test_same_answers.py",
    "e2e/test_compare.py",
    "e2e/test_jobs.py",
    "e2e/test_notebooks.py",
    "unit/training/test_given_graph.py",
    "unit/serving/tasks/image/test_like_torchvision.py",
    "unit/benchmarks/test_peers.py",
    "unit/fastapi_pt/test_backend.py",
    "unit/fastapi_pt/test_on_a_gpu.py",
    "unit/training/test_quantisation.py",
    "unit/training/test_training.py",
]
SLOW = [
    *NEED_TORCH,
    "browser/test_access.py",
    "browser/test_access_of_forms.py",
    "browser/test_forms.py",
    "browser/test_photos.py",
    "browser/test_questions.py",
    "browser/test_texts.py",
    "browser/test_trouble.py",
    "e2e/test_benchmarks.py",
    "e2e/test_client.py",
    "e2e/test_floods.py",
    "e2e/test_gpu_engine.py",
    "e2e/test_grpc_floods.py",
    "e2e/test_image_client.py",
    "e2e/test_java_client.py",
    "e2e/test_keeper.py",
    "e2e/test_launch.py",
    "e2e/test_openapi.py",
    "e2e/test_page_triton.py",
    "e2e/test_perf_analyzer.py",
    "e2e/test_protocols.py",
    "e2e/test_start_and_end.py",
    "e2e/test_tcp.py",
    "e2e/test_tutorial_client.py",
    "e2e/test_upgrades.py",
]
IN_TURN = [
    "browser/test_access_of_forms.py",
    "e2e/test_jobs.py",
    "e2e/test_compare.py",
    "e2e/test_benchmarks.py",
    "browser/test_forms.py",
    "browser/test_photos.py",
    "browser/test_questions.py",
    "browser/test_texts.py",
    "browser/test_trouble.py",
    "unit/training/test_training.py",
    "unit/training/test_quantisation.py",
    "e2e/test_keeper.py",
]
"""Slow tests of the page and of tools: CI runs another quarter of the files each day."""

TODAY = datetime.now(UTC).toordinal() % 4
NOT_TODAY = [name for index, name in enumerate(IN_TURN) if index % 4 != TODAY]
collect_ignore = [
    *(NOT_TODAY if os.environ.get("CI") else []),
    *([] if HAS_TORCH else NEED_TORCH),
    *([] if find_spec("ray") else ["ray"]),
    *([] if find_spec("optimum") else ["transformers"]),
]


def has_gpu() -> bool:
    """Returns whether CUDA's driver finds a GPU."""
    try:
        cuda_driver.total_memory(0)
    except ConfigurationError:
        return False
    return True


NO_GPU = pytest.mark.skipif(has_gpu(), reason="needs a machine without a GPU")
NEEDS_TORCH = (
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed: `make .venv/dev-all.installed`"),
)
BACKENDS = ("fastapi_onnx", pytest.param("fastapi_pt", marks=NEEDS_TORCH))


def pytest_configure(config: pytest.Config) -> None:
    """Ends a run of the slow tests in CI where PyTorch is missing: nothing is skipped there."""
    if os.environ.get("CI") and not HAS_TORCH and config.option.markexpr == "slow":
        pytest.exit("the slow tests need PyTorch: `make .venv/dev-all.installed`", returncode=1)


def pytest_report_header() -> list[str]:
    """Tells that the tests of PyTorch are left out, where they are."""
    return [] if HAS_TORCH else ["PyTorch is not installed: what needs it is left out"]


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests in the files of SLOW."""
    slow = {FOLDER / name for name in SLOW}
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)


@contextmanager
def started(package: str) -> Iterator[tuple[str, str]]:
    """Runs a service; yields its base URL, and host and port of its gRPC."""
    port = str(servers.free_port())
    with servers.api(package, {"SERVING_LOG_LEVEL": "warning", "SERVING_GRPC_PORT": port}) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def onnx_service() -> Iterator[tuple[str, str]]:
    """The ONNX service that all tests share: base URL, and host and port of its gRPC."""
    with started("fastapi_onnx") as service:
        yield service


@pytest.fixture(scope="session")
def onnx_url(onnx_service: tuple[str, str]) -> str:
    """The base URL of a service whose backend does not matter."""
    return onnx_service[0]


@pytest.fixture(scope="session", params=BACKENDS)
def backend_service(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A service of each backend: base URL, and host and port of its gRPC."""
    if request.param == "fastapi_onnx":
        yield request.getfixturevalue("onnx_service")
    else:
        with started(request.param) as service:
            yield service


@pytest.fixture(scope="session")
def backend_url(backend_service: tuple[str, str]) -> str:
    """The base URL; every test that takes it runs on both backends."""
    return backend_service[0]


@pytest.fixture(scope="session")
def grpc_target(backend_service: tuple[str, str]) -> str:
    """Host and port of the same service's gRPC."""
    return backend_service[1]

"""Leaves out what cannot run here, and has the fixtures that several folders share.

Each file says itself what it is: `pytestmark` has `slow`, and `torch` if the file needs PyTorch.
`make test` runs the tests that are not `slow`; `make test-all` runs all.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from smallplates.errors import ConfigurationError
from smallplates.worker import cuda_driver
from tests import servers

HAS_TORCH = find_spec("torch") is not None
collect_ignore = [
    *([] if find_spec("ray") else ["ray"]),
    *([] if find_spec("optimum") else ["transformers"]),
    *([] if find_spec("cohere") else ["clients"]),
]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the files whose `pytestmark` has `torch` if PyTorch is missing: they import it."""
    if HAS_TORCH or not collection_path.match("test_*.py"):
        return None
    marks = re.search(r"^pytestmark = (?:\[\n[^\]]*|.*)", collection_path.read_text(), re.MULTILINE)
    return True if marks and "mark.torch" in marks[0] else None


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
    pytest.mark.torch,
    pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed: `make .venv/dev-all.installed`"),
)
BACKENDS = ("fastapi_onnx", pytest.param("fastapi_pt", marks=NEEDS_TORCH))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of some folders by the folder's name."""
    folders = {Path(__file__).parent / name for name in ("browser", "clients", "ray", "transformers")}
    for item in items:
        if item.path.parent in folders:
            item.add_marker(item.path.parent.name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives the files of `contract/` to one process: they share a service of each backend."""
    from xdist.scheduler import LoadFileScheduling

    if config.option.dist != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    folder = "tests/contract/"
    scheduling._split_scope = lambda node: folder if node.startswith(folder) else file_of(node)
    return scheduling


def pytest_configure(config: pytest.Config) -> None:
    """Ends a run of the slow tests in CI where PyTorch is missing: nothing is skipped there.

    Below nohup, programs that tests start would ignore SIGHUP, too.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # programs do not inherit a handler
    if os.environ.get("CI") and not HAS_TORCH and config.option.markexpr == "slow":
        pytest.exit("the slow tests need PyTorch: `make .venv/dev-all.installed`", returncode=1)


def pytest_report_header() -> list[str]:
    """Tells that the tests of PyTorch are left out, if they are."""
    return [] if HAS_TORCH else ["PyTorch is not installed: what needs it is left out"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop that all processes of the service run on."""
    return "asyncio"


@contextmanager
def started(package: str, **more: str) -> Iterator[tuple[str, str]]:
    """Runs a service; yields its base URL, and host and port of its gRPC.

    Its answers have the same last digits on every machine, since it chooses nothing by measuring.
    """
    port = str(servers.free_port())
    env = {"SERVING_LOG_LEVEL": "warning", "SERVING_GRPC_PORT": port}
    with servers.api(package, {**env, **servers.UNMEASURED, **more}) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def onnx_tcp_port() -> int:
    """Where the shared ONNX service takes frames over TCP."""
    return servers.free_port()


@pytest.fixture(scope="session")
def onnx_service(onnx_tcp_port: int) -> Iterator[tuple[str, str]]:
    """The ONNX service that all tests share: base URL, and host and port of its gRPC."""
    with started("fastapi_onnx", SERVING_TCP_PORT=str(onnx_tcp_port)) as service:
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

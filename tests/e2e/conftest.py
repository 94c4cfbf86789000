"""Services of the fake backend."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests import servers
from tests.e2e.services import close
from tests.e2e.tasks import Service, every_task
from tests.fake.model import write_model
from tests.servers import metric, wait_for


@pytest.fixture(scope="session")
def fake_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder; the class names are the class indices."""
    folder = tmp_path_factory.mktemp("models") / "fake"
    write_model(folder, "1")
    return folder


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Held computations end when this file exists."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def obedient(model: Path, folder: Path) -> dict[str, str]:
    """The environment of a fake service; its gate and its brokenness are files in `folder`."""
    return {
        "SERVING_MODEL_DIR": str(model),
        "SERVING_INSTANCES": "2",
        "SERVING_LOG_LEVEL": "error",
        "SERVING_WORKER_TIMEOUT_MS": "60000",
        "FAKE_GATE": str(folder / "gate"),
        "FAKE_BROKEN": str(folder / "broken"),
        "FAKE_LOADING": str(folder / "loading"),
    }


@pytest.fixture
def fake_settings(fake_model: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a fake service for one test, with its files in `tmp_path`."""
    return obedient(fake_model, tmp_path)


@pytest.fixture
def versions(fake_settings: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same, of a model with three versions whose classes begin with `one-`, `two-` and `three-`."""
    folder = tmp_path / "fake"
    write_model(folder, "1", "one-")
    write_model(folder / "2", "2", "two-")
    write_model(folder / "3", "3", "three-")
    return {**fake_settings, "SERVING_MODEL_DIR": str(folder)}


@pytest.fixture
def senders() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


class SharedService:
    """A fake service that the tests of a module use in turn."""

    def __init__(self, url: str, gate: Path) -> None:
        self.url = url
        self.gate = gate
        self._slots = metric(url, "serving_free_slots")
        self._before = ""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Closes the gate for one test; opens it after, and waits until the service is idle."""
        close(self.gate)
        self._before = requests.get(f"{self.url}/metrics", timeout=60).text
        try:
            yield
        finally:
            self.gate.touch()
        wait_for(lambda: metric(self.url, "serving_free_slots") == self._slots)
        wait_for(lambda: requests.get(f"{self.url}/health/ready", timeout=60).status_code == 200)

    def growth(self, name: str) -> float:
        """Returns how much a counter without labels has grown since the test began."""
        return metric(self.url, name) - servers.value(self._before, name)


@pytest.fixture(scope="module")
def module_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedService]:
    gate = tmp_path_factory.mktemp("shared") / "gate"
    settings = {**request.module.SETTINGS, "FAKE_GATE": str(gate)}
    with servers.api("tests.fake", settings) as url:
        yield SharedService(url, gate)
        gate.touch()


@pytest.fixture
def shared(module_service: SharedService) -> Iterator[SharedService]:
    """The module's service, idle and with a closed gate."""
    with module_service.used():
        yield module_service


@pytest.fixture(scope="session")
def one_worker(fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedService]:
    """A service with one worker and batches of up to eight, for tests that do not crash it."""
    folder = tmp_path_factory.mktemp("one_worker")
    settings = {**obedient(fake_model, folder), "SERVING_INSTANCES": "1", "SERVING_MAX_BATCH_SIZE": "8"}
    with servers.api("tests.fake", settings) as url:
        yield SharedService(url, folder / "gate")
        (folder / "gate").touch()


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a model of every task."""
    with every_task(tmp_path_factory.mktemp("tasks")) as service:
        yield service

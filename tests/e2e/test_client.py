"""`smallplates.client` and a fake backend: overload, restarts, deadlines, cancelling, batches."""

from pathlib import Path

import pytest

import smallplates.client
from smallplates.client import Client
from tests import servers
from tests.e2e.conftest import SharedService
from tests.fake.backend import command
from tests.servers import wait_for

pytestmark = pytest.mark.slow

SETTINGS = {
    "SERVING_INSTANCES": "1",
    "SERVING_QUEUE_SIZE": "2",
    "SERVING_LOG_LEVEL": "error",
    "SERVING_MAX_BATCH_SIZE": "1",
    "SERVING_WORKER_TIMEOUT_MS": "60000",
}


@pytest.fixture
def url(shared: SharedService) -> str:
    """The address of the module's service: one instance and two slots."""
    return shared.url


@pytest.fixture
def gate(shared: SharedService) -> Path:
    """Held computations end when this file exists."""
    return shared.gate


def value(client: Client, name: str) -> float:
    return next(sample.value for sample in client.metrics() if sample.name == name)


def test_overload_is_waited_for(url: str, gate: Path) -> None:
    with Client(url) as client, Client(url, tries=1) as impatient:
        before = refused_so_far(client)
        held = [client.submit(command(held=True)) for _ in range(2)]
        wait_for(lambda: value(client, "serving_free_slots") == 0)
        with pytest.raises(smallplates.client.ServiceUnavailableError) as refused:
            impatient.predict(command())
        assert refused.value.code == "overloaded"
        assert refused.value.retry_after_s is not None
        patient = client.submit(command(class_index=3))
        wait_for(lambda: refused_so_far(client) >= before + 2)
        gate.touch()
        assert patient.result().tries > 1
        assert [future.result().tries for future in held] == [1, 1]


def refused_so_far(client: Client) -> float:
    """How many answers were 503."""
    samples = [s for s in client.metrics() if s.name == "serving_requests_total"]
    return sum(sample.value for sample in samples if sample.labels["status"] == "503")


def test_a_restart_is_waited_for() -> None:
    port = servers.free_port()
    arguments = ["smallplates.service", "tests.fake", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with Client(url, tries=100) as client:
        with servers.running(arguments, f"{url}/health/ready", SETTINGS):
            assert client.predict(command()).tries == 1
        with pytest.raises(smallplates.client.UnreachableError):
            client.ready()
        patient = client.submit(command(), timeout_s=300)
        with servers.running(arguments, f"{url}/health/ready", SETTINGS):
            client.wait_ready()
            assert patient.result().tries > 1


def test_a_batch_against_a_small_service(url: str) -> None:
    """Sixteen at a time for two slots: each is answered in the end, and in order."""
    with Client(url, tries=1000, timeout_s=60) as client:
        labels = client.model().labels
        photos = [command(class_index=index % 11) for index in range(40)]
        photos[7] = b"no picture"
        items = list(client.predict_many(photos, concurrency=16))
    assert [item.error.code for item in items if item.error] == ["invalid_image"]
    answers = [item.prediction.label for item in items if item.prediction]
    assert answers == [labels[index % 11] for index in range(40) if index != 7]


def test_a_key() -> None:
    key = "sésame-胡麻"
    with servers.api("tests.fake", {**SETTINGS, "SERVING_API_KEY": key}) as url:
        with Client(url) as stranger, pytest.raises(smallplates.client.UnauthorizedError):
            stranger.predict(command())
        with Client(url, api_key=key) as friend:
            assert friend.predict(command()).label

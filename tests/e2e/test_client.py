"""`smallplates.client` and a fake backend: overload, restarts, deadlines, cancelling, batches."""

from pathlib import Path

import pytest

import smallplates.client
from smallplates.client import Client
from tests import servers
from tests.e2e.conftest import SharedService
from tests.fake.backend import Failure, command
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
    """A metric without labels."""
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


def test_deadlines_reach_the_service(url: str, gate: Path, shared: SharedService) -> None:
    with Client(url) as client:
        held = client.submit(command(held=True))
        wait_for(gate.with_suffix(".held").exists)
        with pytest.raises(smallplates.client.DeadlineExceededError) as late:
            client.predict(command(), timeout_s=2, request_id="late-1")
        assert late.value.request_id == "late-1"
        wait_for(lambda: shared.growth("serving_expired_total") == 1)
        gate.touch()
        assert held.result().label


def test_cancelling_frees_the_slot(url: str, gate: Path, shared: SharedService) -> None:
    with Client(url) as client:
        held = client.submit(command(held=True))
        wait_for(gate.with_suffix(".held").exists)
        queued = client.submit(command())
        wait_for(lambda: value(client, "serving_free_slots") == 0)
        queued.cancel()
        wait_for(lambda: shared.growth("serving_cancelled_total") == 1)
        gate.touch()
        assert held.result().label
        wait_for(lambda: value(client, "serving_free_slots") == 2)


def test_failures_are_told_apart(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(smallplates.client.ServerError) as failed:
            client.predict(command(failure=Failure.RAISE))
        assert (failed.value.code, failed.value.retryable) == ("internal_error", False)
        with pytest.raises(smallplates.client.RequestRefusedError) as refused:
            client.predict(b"no picture")
        assert refused.value.code == "invalid_image"
        assert refused.value.request_id
        assert len(client.predict(command(), top_k=11).top) == 11
        assert client.predict(command(), base64=True, priority="bulk").label
        assert {sample.name for sample in client.metrics()} >= {"serving_ready_workers"}
        assert len(client.model().labels) == 11


def test_a_picture_that_crashes_workers_is_not_sent_again(url: str, shared: SharedService) -> None:
    with Client(url) as client:
        with pytest.raises(smallplates.client.ServerError) as crashed:
            client.predict(command(failure=Failure.EXIT))
        assert crashed.value.code == "worker_crashed"
        wait_for(lambda: shared.growth("serving_worker_restarts_total") == 2)


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

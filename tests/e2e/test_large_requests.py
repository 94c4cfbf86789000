"""Requests of more inputs than the service has slots: in order, beside others, all or nothing."""

import base64
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests import servers
from tests.e2e.conftest import SharedService, obedient
from tests.e2e.services import predict
from tests.fake.backend import Failure, command
from tests.fake.model import CLASSES
from tests.servers import wait_for

MANY, MOST = 1000, 1600
SETTINGS = {
    "SERVING_INSTANCES": "2",
    "SERVING_MAX_BATCH_SIZE": "4",
    "SERVING_QUEUE_SIZE": "64",
    "SERVING_MAX_REQUEST_ITEMS": str(MOST),
    "SERVING_MAX_ANSWER_BYTES": str(4 * CLASSES * 1200),
    "FAKE_MS": "2",
}


@pytest.fixture(scope="module")
def large_service(fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedService]:
    folder = tmp_path_factory.mktemp("large")
    with servers.api("tests.fake", {**obedient(fake_model, folder), **SETTINGS}) as url:
        yield SharedService(url, folder / "gate")


@pytest.fixture
def service(large_service: SharedService) -> Iterator[SharedService]:
    """The service, idle before and after."""
    with large_service.used():
        yield large_service


def pictures(count: int, **other: bytes) -> list[bytes]:
    """Pictures whose class is their index, but for those that are given by index."""
    return [other.get(f"_{index}") or command(class_index=index % CLASSES) for index in range(count)]


def ask(url: str, images: list[bytes], **headers: str) -> requests.Response:
    rows = [{"b64": base64.b64encode(image).decode()} for image in images]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"{url}/v1/models/food_classifier:predict"
    return requests.post(path, json={"instances": rows}, headers=named, timeout=60)


def classes(response: requests.Response) -> list[str]:
    rows: list[dict[str, Any]] = response.json()["predictions"]
    return [row["FOOD_LABEL"] for row in rows]


def test_a_thousand_are_answered_in_order_and_others_meanwhile(
    service: SharedService, senders: ThreadPoolExecutor
) -> None:
    held = pictures(MANY, _100=command(held=True, class_index=100))
    large = [senders.submit(ask, service.url, images) for images in (held, pictures(MANY))]
    wait_for(service.gate.with_suffix(".held").exists)  # by one of two workers
    alone = [predict(service.url, command(class_index=index)) for index in range(20)]
    assert not large[0].done()
    assert [answer.json()["prediction"] for answer in alone] == [str(index) for index in range(20)]
    service.gate.touch()
    for request in large:
        assert classes(request.result()) == [str(index % CLASSES) for index in range(MANY)]


def test_one_failure_ends_all_of_it(service: SharedService) -> None:
    failing = pictures(MANY, _300=command(failure=Failure.RAISE))
    assert ask(service.url, failing).status_code == 500
    unreadable = ask(service.url, pictures(MANY, _300=b"no picture"))
    assert unreadable.status_code == 400
    assert "element 300" in unreadable.text
    assert service.growth("serving_batch_size_sum") < MANY


def test_its_deadline_ends_all_of_it(service: SharedService) -> None:
    held = ask(service.url, pictures(MANY, _100=command(held=True)), X_Request_Timeout_Ms="1000")
    assert held.status_code == 504, held.text
    assert service.growth("serving_batch_size_sum") < MANY


def test_a_client_that_leaves_ends_all_of_it(service: SharedService) -> None:
    parts = urlsplit(service.url)
    leaving = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    rows = [{"b64": base64.b64encode(image).decode()} for image in [command(held=True)] * MANY]
    leaving.request(
        "POST", "/v1/models/food_classifier:predict", json.dumps({"instances": rows}).encode()
    )
    wait_for(service.gate.with_suffix(".held").exists)
    leaving.close()
    service.gate.touch()
    wait_for(lambda: service.growth("serving_cancelled_total") == 1)
    assert service.growth("serving_batch_size_sum") < MANY


def test_too_many_are_refused_by_the_settings(service: SharedService) -> None:
    refused = ask(service.url, [b""] * (MOST + 1))
    assert refused.status_code == 400
    assert f"1 to {MOST} inputs (SERVING_MAX_REQUEST_ITEMS)" in refused.text
    refused = ask(service.url, pictures(MOST))
    assert refused.status_code == 413
    assert "SERVING_MAX_ANSWER_BYTES" in refused.text

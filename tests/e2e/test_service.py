"""Overload, deadlines, cancellation, failures and access, on real connections to a fake backend."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from smallplates.client import Client, UnauthorizedError
from smallplates.web.http.protocol import CONTINUE
from tests import servers
from tests.e2e.conftest import SharedService
from tests.e2e.services import hold, predict, raw_request, switch
from tests.fake.backend import command
from tests.servers import metric, wait_for

SETTINGS = {
    "SERVING_INSTANCES": "1",
    "SERVING_QUEUE_SIZE": "4",
    "SERVING_BODY_TIMEOUT_MS": "2000",
    "SERVING_LOG_LEVEL": "error",
    "SERVING_MAX_BATCH_SIZE": "1",
    "SERVING_WORKER_TIMEOUT_MS": "60000",
}
KEY = "sésame-胡麻"
GUARDS = {
    "SERVING_API_KEY": KEY,
    "SERVING_ADMIN_KEY": "chief",
    "SERVING_MAX_BODY_BYTES": "100000",
    "SERVING_MAX_BUFFERED_BYTES": "100000",
    "SERVING_BODY_TIMEOUT_MS": "20000",
}
GUEST = {"Authorization": f"Bearer {KEY}".encode()}


@pytest.fixture
def url(shared: SharedService) -> str:
    """The address of the module's service: one instance and four slots."""
    return shared.url


@pytest.fixture
def gate(shared: SharedService) -> Path:
    """Held computations end when this file exists."""
    return shared.gate


@pytest.fixture(scope="module")
def guarded_url() -> Iterator[str]:
    """A service with keys, an origin that may call it, and little room."""
    with servers.api("tests.fake", {**SETTINGS, **GUARDS}) as base:
        yield base


def listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60).close()
    except OSError:
        return False
    return True


def test_a_deadline_holds_while_waiting_and_expired_work_is_not_computed(
    url: str, gate: Path, senders: ThreadPoolExecutor, shared: SharedService
) -> None:
    first = hold(senders, url, gate)
    late = predict(url, command(), X_Request_Timeout_Ms="100")
    assert late.status_code == 504
    assert late.json()["code"] == "deadline_exceeded"
    assert not first.done()
    gate.touch()
    assert first.result().status_code == 200
    assert predict(url, command()).status_code == 200
    assert shared.growth("serving_infer_seconds_count") == 2
    assert shared.growth("serving_expired_total") == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_only_sends_no_more_is_answered(
    url: str, gate: Path, version: bytes, count: int, shared: SharedService
) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        picture = command(held=True)
        head = b"POST /predict HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n" % (
            version,
            len(picture),
        )
        keep = b"Connection: keep-alive\r\n" if count > 1 else b""
        connection.sendall((head + keep + b"\r\n" + picture) * count)
        wait_for(gate.with_suffix(".held").exists)
        connection.shutdown(socket.SHUT_WR)
        first = connection.recv(12, socket.MSG_WAITALL) if version == b"1.1" else b""
        gate.touch()
        answers = connection.makefile("rb").read()
    assert first in (b"", b"HTTP/1.1 100")
    assert answers.count(b"HTTP/1.1 200 OK") == (count if version == b"1.1" else 1)
    assert shared.growth("serving_cancelled_total") == 0


def test_an_api_key_is_asked_for(guarded_url: str) -> None:
    assert requests.post(f"{guarded_url}/predict?top_k=0", timeout=60).status_code == 401
    for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic sesame"}):
        refused = predict(guarded_url, command(), **wrong)
        assert refused.status_code == 401
        assert refused.json()["code"] == "unauthorized"
        assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert predict(guarded_url, command(), **GUEST).status_code == 200
    with Client(guarded_url) as stranger, pytest.raises(UnauthorizedError):
        stranger.predict(command())
    with Client(guarded_url, api_key=KEY) as friend:
        assert friend.predict(command()).label
    assert requests.get(f"{guarded_url}/health/ready", timeout=60).status_code == 200
    assert requests.get(f"{guarded_url}/docs", timeout=60).status_code == 200
    refused = requests.get(f"{guarded_url}/openapi.json", timeout=60)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    schema = requests.get(f"{guarded_url}/openapi.json", headers=GUEST, timeout=60).json()
    assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_an_admin_body_is_bounded_and_not_read_without_the_key(guarded_url: str) -> None:
    path = "/v2/repository/models/food11/load"
    url, parts = f"{guarded_url}{path}", urlsplit(guarded_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as stranger:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
        stranger.sendall(head.encode())  # and nothing of the body
        assert stranger.recv(4096).startswith(b"HTTP/1.1 401 ")
    headers = {"Authorization": "Bearer chief"}
    wrong = b'{"parameters": {"version": "../1"}}'
    for body, status in ((b" " * 100_001, 413), (b"{", 400), (wrong, 400)):
        answer = requests.post(url, data=body, headers=headers, timeout=60)
        assert answer.status_code == status, answer.text
    assert switch(guarded_url, "1", model="food11").status_code == 200


def test_sigterm_refuses_what_is_new_and_answers_what_was_accepted(
    tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    settings = {**SETTINGS, "FAKE_GATE": str(gate), "SERVING_BODY_TIMEOUT_MS": "20000"}
    body = command(class_index=7)
    with (
        servers.api("tests.fake", settings) as url,
        servers.process_of(url) as process,
        raw_request(url, b"") as slow,
    ):
        slow.settimeout(60)
        assert slow.recv(65536).startswith(b"HTTP/1.1 400 ")
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        slow.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert slow.recv(65536) == CONTINUE  # so it is admitted
        accepted = senders.submit(predict, url, command(held=True))
        wait_for(lambda: metric(url, "serving_free_slots") == 3)
        process.terminate()
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 503)
        refused = predict(url, command())
        assert refused.status_code == 503
        assert refused.json()["code"] == "draining"
        assert not accepted.done()
        slow.sendall(body)
        gate.touch()
        assert b'"prediction":"Rice"' in slow.recv(65536)
        assert accepted.result().status_code == 200
        wait_for(lambda: not listens(url))
        psutil.wait_procs([process], timeout=60)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

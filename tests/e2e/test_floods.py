"""Clients by the hundred that mean no good, on the HTTP port: others are answered, and nothing grows."""

import contextlib
import socket
from collections.abc import Iterator
from itertools import count, cycle
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from tests import servers
from tests.e2e.services import attempt, raw_request
from tests.fake.backend import command
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow

SETTINGS = {
    "SERVING_INSTANCES": "1",
    "SERVING_LOG_LEVEL": "error",
    "SERVING_MAX_BATCH_SIZE": "1",
    "SERVING_MAX_CONNECTIONS": "60",
    "SERVING_HEAD_TIMEOUT_MS": "1000",
    "SERVING_BODY_TIMEOUT_MS": "1000",
}
PATIENT = {"SERVING_HEAD_TIMEOUT_MS": "60000", "SERVING_BODY_TIMEOUT_MS": "60000"}
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
SLOW: dict[str, tuple[bytes, bytes]] = {
    "request line": (b"", b"P" * 10_000),
    "headers": (POST, b"x-filler: " + b"y" * 10_000),
    "body": (POST + b"Content-Length: 10000\r\n\r\n", b"z" * 10_000),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n" * 2000),
    "v2": (
        POST.replace(b"/predict", b"/v2/models/food_classifier/infer")
        + b"Content-Length: 10000\r\n\r\n",
        b"z" * 10_000,
    ),
    "body after its answer": (
        POST + b"X-Priority: none\r\nContent-Length: 10000\r\n\r\n",
        b"z" * 10_000,
    ),
}
"""What a slow client begins with, and what it goes on with, one byte at a time."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service that is impatient, and has room for few."""
    with servers.api("tests.fake", SETTINGS) as base:
        yield base


@pytest.fixture(scope="module")
def patient_url() -> Iterator[str]:
    """A service that is patient, and has room for few."""
    with servers.api("tests.fake", {**SETTINGS, **PATIENT}) as base:
        yield base


def connect(url: str, receive_bytes: int | None = None) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(60)
    connection.connect((parts.hostname, parts.port))
    return connection


def is_answered(url: str) -> bool:
    with requests.Session() as session:
        return session.post(f"{url}/predict", data=command(), timeout=60).status_code == 200


def send_one(connection: socket.socket, byte: bytes) -> bool:
    """False when the service has closed the connection."""
    connection.setblocking(False)
    try:
        while answer := connection.recv(65536):
            assert b" 500 " not in answer
        return False
    except BlockingIOError:
        pass
    except ConnectionError:
        return False
    try:
        connection.send(byte)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return True


def established(process: psutil.Process) -> int:
    return sum(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections("tcp"))


@contextlib.contextmanager
def many(url: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(url)) for _ in range(count)]


def test_idle_connections_make_room(patient_url: str) -> None:
    url = patient_url
    with servers.process_of(url) as process, many(url, 300) as idle:
        assert is_answered(url)
        assert established(process) <= 61
        assert idle[0].recv(1) == b""  # the oldest have gone
        assert all(send_one(connection, b"") for connection in idle[-20:])
    with servers.process_of(url) as process:
        wait_for(lambda: established(process) == 0)


def test_who_comes_in_a_burst_of_idle_connections_is_answered(patient_url: str) -> None:
    with servers.process_of(patient_url) as process:
        process.suspend()
        try:
            with many(patient_url, 255), raw_request(patient_url, command()) as sender:
                process.resume()
                assert sender.recv(12) == b"HTTP/1.1 200"
        finally:
            process.resume()


def test_a_byte_at_a_time_is_no_way_to_stay(url: str) -> None:
    """Fifty at once; each is cut off although it never stops sending, and others are answered."""
    with servers.process_of(url) as process, many(url, 50) as slow:
        left = list(zip(slow, cycle(SLOW.values()), strict=False))
        for connection, (start, _) in left:
            connection.sendall(start)
        for position in count():
            if not left:
                break
            assert position < 10_000, "more bytes than any client should be allowed to send like this"
            assert is_answered(url)
            left = [each for each in left if send_one(each[0], each[1][1][position : position + 1])]
        wait_for(lambda: established(process) == 0)
    wait_for(lambda: metric(url, "serving_free_slots") == 256)


def flood(connection: socket.socket, data: bytes, most: int) -> int:
    """Bytes that could be sent before the service closed the connection."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            connection.sendall(data)
            sent += len(data)
    return sent


@pytest.mark.parametrize(
    ("start", "data"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x-trailer: " + b"y" * 8000 + b"\r\n"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x-trailer" + b"y" * 8000),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 8000),
        (b"", b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200),
        (b"", (POST + b"Content-Length: 8000\r\n\r\n" + b"z" * 8000) * 20),
    ],
    ids=["trailers", "one trailer", "chunk extension", "pipeline", "pipelined bodies"],
)
def test_what_has_no_end_is_cut_off(url: str, start: bytes, data: bytes) -> None:
    with connect(url) as connection:
        connection.sendall(start)
        assert flood(connection, data, 64 * 2**20) < 64 * 2**20
    assert is_answered(url)


def test_who_does_not_read_is_cut_off(url: str) -> None:
    paths = requests.get(f"{url}/docs", timeout=60).text
    script = next(part for part in paths.split('"') if part.endswith("bundle.js"))
    request = f"GET /{script} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with servers.process_of(url) as process:
        wait_for(lambda: established(process) == 0)
        with connect(url, 4096) as first, connect(url, 4096) as second:
            for connection in (first, second):
                connection.sendall(request * 4)
            wait_for(lambda: established(process) > 0)
            wait_for(lambda: established(process) == 0)
    assert is_answered(url)


@pytest.mark.parametrize("webs", ["1", "2"])
def test_no_descriptors_left(webs: str) -> None:
    """The service goes on, and goes on accepting, when the system gives it no more of them."""
    env = {**SETTINGS, **PATIENT, "SERVING_MAX_CONNECTIONS": "4096", "SERVING_WEB_PROCESSES": webs}
    with servers.api("tests.fake", env) as url, servers.process_of(url) as process:
        assert is_answered(url)
        for program in [process, *process.children(recursive=True)]:
            limit = program.num_fds() + 12
            program.rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
        with many(url, 200) as idle:
            wait_for(lambda: attempt(lambda: is_answered(url)))
            assert any(not send_one(connection, b"") for connection in idle)
        wait_for(lambda: attempt(lambda: is_answered(url)))
        assert process.is_running()

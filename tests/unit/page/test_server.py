"""`python -m flask_app` as a real process: bodies, connections, and a clean end."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from flask_app.__main__ import warn_of_unknown_variables
from flask_app.samples import SAMPLES
from flask_app.server import HELD_BYTES
from tests.browser.stub_api import StubApi, stub_api, until
from tests.servers import ROOT, free_port, run, running

PHOTO = SAMPLES[0].read().content
HEAD = (
    "POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    f"Content-Length: {len(PHOTO)}\r\n\r\n"
).encode()
FORM = "multipart/form-data; boundary=b"
FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="photo"; filename="egg.jpg"\r\n\r\n'
Page = tuple[int, subprocess.Popen[str]]  # its port, and its process


@pytest.fixture(scope="module")
def module_stub() -> Iterator[StubApi]:
    with stub_api() as made:
        yield made


@pytest.fixture
def stub(module_stub: StubApi) -> StubApi:
    module_stub.reset()
    return module_stub


@contextmanager
def page_before(stub: StubApi, **env: str) -> Iterator[Page]:
    port = free_port()
    env |= {"UI_PORT": str(port), "UI_API_URL": stub.url, "UI_MAX_UPLOAD_MB": "1"}
    with running(["flask_app"], f"http://127.0.0.1:{port}/healthz", env) as process:
        yield port, process


@pytest.fixture(scope="module")
def module_page(module_stub: StubApi) -> Iterator[Page]:
    with page_before(module_stub) as made:
        yield made


@pytest.fixture
def page(stub: StubApi, module_page: Page) -> Page:
    """The page that the tests share, in front of a stub that has been reset."""
    assert stub.port
    return module_page


def ask(
    port: int, body: bytes | str = PHOTO, path: str = "/classify", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "image/jpeg"} | headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/classify", "/", "/healthz", "/nothing"])
def test_another_name_for_this_machine_is_refused(page: Page, stub: StubApi, path: str) -> None:
    """Another site's name may point to 127.0.0.1; browsers then let its pages read the answers."""
    port, _ = page
    code, body = ask(port, path=path, Host="rebound.example", Accept="application/json")
    assert (code, json.loads(body)["code"]) == (421, "misdirected_request")
    assert "UI_ALLOWED_HOSTS" in json.loads(body)["detail"]
    assert not stub.asked
    assert ask(port, path=path, Host="localhost:1")[0] != 421


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


@contextmanager
def asking(port: int, stub: StubApi, *request: Any, **headers: str) -> Iterator[list[tuple[int, bytes]]]:
    """Runs the block while the API holds a request; yields where its answer will be."""
    stub.held.clear()
    answers: list[tuple[int, bytes]] = []
    thread = threading.Thread(target=lambda: answers.append(ask(port, *request, **headers)))
    thread.start()
    until(lambda: stub.inside == 1, "the request at the API")
    yield answers
    stub.held.set()
    thread.join()


@pytest.mark.parametrize(("path", "headers"), [("/classify", {}), ("/", {"Content-Type": FORM})])
def test_large_bodies_leave_no_file(
    stub: StubApi, page: Page, path: str, headers: dict[str, str]
) -> None:
    """Waitress and Werkzeug keep a body in memory: the process opens no temporary file."""
    body = (FORM_HEAD if headers else b"") + PHOTO + b"\0" * 900_000 + b"\r\n--b--\r\n"
    with asking(page[0], stub, body, path, **headers) as answers:
        folder = Path(f"/proc/{page[1].pid}/fd")
        links = list(folder.iterdir()) if folder.exists() else []
        targets = [str(link.readlink()) for link in links if int(link.name) > 2]
    assert answers[0][0] == 200
    assert not [target for target in targets if "deleted" in target]


def test_idle_connections_give_way(page: Page) -> None:
    """Opens more connections than the server accepts, and sends nothing on them."""
    with ExitStack() as stack:
        for _ in range(250):
            stack.enter_context(connect(page[0]))
        assert ask(page[0])[0] == 200


def test_halves_of_bodies_give_way(page: Page) -> None:
    """Sends more than the server holds in memory: it closes those that wait longest."""
    head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n"
    with ExitStack() as stack:
        first = stack.enter_context(connect(page[0]))
        first.sendall(head + bytes(1_900_000))
        for _ in range(HELD_BYTES // 1_900_000):
            more = stack.enter_context(connect(page[0]))
            more.sendall(head + bytes(1_900_000))
        with suppress(ConnectionResetError):
            assert first.recv(1) == b""
        more.sendall(bytes(100_000))
        assert more.recv(12) == b"HTTP/1.1 413"
        assert ask(page[0])[0] == 200


def test_a_target_that_cannot_be_read_is_answered(page: Page) -> None:
    with connect(page[0]) as browser:
        browser.sendall(b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert browser.recv(12) == b"HTTP/1.1 400"


def test_addresses_come_from_a_trusted_proxy(stub: StubApi, tmp_path: Path) -> None:
    """Visitors behind one proxy are limited each on their own."""
    env = {"UI_TRUSTED_PROXY": "127.0.0.1", "UI_FEEDBACK_DIR": str(tmp_path)}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    with page_before(stub, **env, UI_FEEDBACK_PER_MINUTE="1") as (port, _):
        visitors = ("192.0.2.1", "192.0.2.2", "192.0.2.1")
        headers = [kind | {"X-Forwarded-For": visitor} for visitor in visitors]
        answers = [ask(port, "verdict=right&token=x", "/feedback", **each) for each in headers]
    assert [status for status, _ in answers] == [400, 400, 429]


@pytest.mark.parametrize("size", [1_200_000, 3_000_000, 10**12])
def test_a_body_over_the_limit_is_refused_before_it_is_sent(page: Page, size: int) -> None:
    with connect(page[0]) as browser:
        browser.sendall(announcement(size))
        answer = read_all(browser)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"The limit is 1 MB" in answer
    assert ask(page[0])[0] == 200


def test_a_body_within_the_limit_may_be_sent(page: Page) -> None:
    with connect(page[0]) as browser:
        browser.sendall(announcement(len(PHOTO), "Connection: close"))
        answer = browser.recv(65536)
        browser.sendall(PHOTO)
        answer += read_all(browser)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


def test_a_refusal_waits_for_the_answer_before_it(stub: StubApi, page: Page) -> None:
    """Both requests are on one connection."""
    stub.held.clear()
    with connect(page[0]) as browser:
        browser.sendall(HEAD + PHOTO + announcement(2_000_000))
        until(lambda: stub.inside == 1, "the first request at the API")
        stub.held.set()
        answers = read_all(browser)
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")] == [b"", b"200", b"413"]


def announcement(size: int, *headers: str) -> bytes:
    """Returns the head of a request whose client waits before it sends the body."""
    lines = [
        "POST /classify HTTP/1.1",
        "Host: localhost",
        "Content-Type: image/jpeg",
        "Expect: 100-continue",
    ]
    return "\r\n".join([*lines, f"Content-Length: {size}", *headers, "", ""]).encode()


def read_all(browser: socket.socket) -> bytes:
    return b"".join(iter(lambda: browser.recv(65536), b""))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_waits_for_what_was_accepted(stub: StubApi, number: signal.Signals) -> None:
    with page_before(stub) as (port, process):
        with asking(port, stub) as answers:
            process.send_signal(number)
            until(lambda: refused(port), "new connections to be refused")
        assert answers[0][0] == 200
        assert process.wait(60) == 0


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_one_line_and_a_clean_end(host: str, onnx_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flask_app"],
        cwd=ROOT,
        env={**os.environ, "UI_HOST": host, "UI_PORT": "0", "UI_API_URL": onnx_url},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process:
        said = process.stderr.readline()
        assert f"page on http://{host}:" in said
        port = int(said.rpartition(":")[2])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as answer:
            assert json.load(answer)["state"] == "ready"
        process.send_signal(signal.SIGINT)
        rest = [line for line in process.stderr if "Task queue depth" not in line]  # on a busy machine
        assert rest == []
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"UI_PORT": "web", "UI_THREADS": "1"}, "UI_THREADS: "),
        ({"UI_PORT": "web"}, "UI_PORT: "),
        ({"UI_PASSWORD_FILE": "/dev/null/x"}, "UI_PASSWORD_FILE: "),
        ({"UI_FEEDBACK_DIR": "/dev/null/x"}, "/dev/null/x"),
        ({"UI_SECRETS_DIR": "{tmp_path}"}, "UI_SECRETS_DIR cannot be read"),
        ({"UI_HOST": "a..b", "UI_PORT": "5000"}, "cannot listen on UI_HOST=a..b UI_PORT=5000:"),
        ({"UI_HOST": "192.0.2.1"}, "cannot listen on UI_HOST=192.0.2.1 UI_PORT=5000:"),
    ],
)
def test_wrong_settings_end_it_at_once(tmp_path: Path, env: dict[str, str], said: str) -> None:
    (tmp_path / "ui_api_key").write_bytes(b"\xff")
    env = {name: value.format(tmp_path=tmp_path) for name, value in env.items()}
    ended = run(sys.executable, "-m", "flask_app", env=env)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "the page cannot start" in ended.stderr
    assert said in ended.stderr


def test_a_variable_that_nothing_reads_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"UI_THREAD": "UI_THREADS", "ui_api_uri": "UI_API_URL", "UI_XYZZY": ""}
    right = {"UI_MEMORY": "1g", "ui_threads": "8", "UI_SERVICE_HOST": "10.0.0.1"}
    right |= {"UI_FOOD_PORT": "tcp://10.0.0.1:80", "UI_PORT_80_TCP_PROTO": "tcp", "UI_HOST": "::1"}
    for name in (*wrong, *right):
        monkeypatch.setenv(name, right.get(name, "1"))
    warn_of_unknown_variables()
    said = {message.split()[5].strip(";"): message for message in caplog.messages}
    assert said.keys() == wrong.keys()
    assert all(nearest in said[name] for name, nearest in wrong.items())

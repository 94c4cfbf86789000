"""The page's password: what needs it, what is accepted, and what keeps the page from starting."""

import base64
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from flask.testing import FlaskClient
from pydantic import ValidationError

from flask_app.server import Server
from flask_app.settings import Settings
from tests.browser.page_app import page_app
from tests.browser.stub_api import StubApi

ALL = "0.0.0.0"  # noqa: S104 nothing listens there
PASSWORD = "pa:ss wörd 🔑"


def basic(text: str | bytes) -> dict[str, str]:
    """Returns the header with a user name and a password, which a colon separates."""
    content = text.encode() if isinstance(text, str) else text
    return {"Authorization": f"Basic {base64.b64encode(content).decode()}"}


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    """A file with the password, as an editor writes it."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n", "utf-8")
    return file


@pytest.fixture
def client(stub: StubApi, password_file: Path) -> Iterator[FlaskClient]:
    with page_app(stub, password_file=password_file) as app:
        yield app.test_client()


@pytest.mark.parametrize(
    "request_line",
    [
        *("GET /", "HEAD /", "OPTIONS /", "POST /", "POST /classify", "POST /ask", "GET /status"),
        *("GET /test", "GET /static/page.js", "GET /static/samples/soup.jpg", "POST /feedback"),
        *(
            "POST /feedback/undo",
            "GET /nothing",
            "GET /healthz/",
            "POST /healthz",
            "GET /?model=nothing",
        ),
    ],
)
def test_all_but_health_needs_it(stub: StubApi, client: FlaskClient, request_line: str) -> None:
    method, path = request_line.split()
    answer = client.open(path, method=method)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="page", charset="UTF-8"'
    assert "This page needs a password." in answer.text or method == "HEAD"
    assert "<form" not in answer.text
    assert not stub.asked
    headers = basic(f"anyone:{PASSWORD}")
    answer = client.open(path, method=method, headers=headers, buffered=True)
    assert answer.status_code != 401
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Basic"},
        {"Authorization": "Basic "},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic YTpi=x"},
        {"Authorization": f"Basic {'A' * 8192}"},
        {"Authorization": f"Bearer {PASSWORD.encode().decode('latin-1')}"},
        {"Authorization": 'Digest username="a", password="b"'},
        {"Authorization": "\xff\xfe"},
        basic("no colon"),
        basic(PASSWORD.split(":")[1]),
        basic("anyone:"),
        basic("anyone:wrong"),
        basic(f"anyone:{PASSWORD} "),
        basic(f"anyone:{PASSWORD}\n"),
        basic(f"{PASSWORD}:"),
        basic(b"anyone:" + PASSWORD.encode("utf-16")),
        basic(b"anyone:w\xf6rd"),
        basic(b"\0:\0"),
        basic("anyone:" + "x" * 8192),
    ],
)
def test_anything_else_is_refused(client: FlaskClient, headers: dict[str, str]) -> None:
    answer = client.get("/status", headers=headers)
    assert (answer.status_code, answer.get_json()["code"]) == (401, "password_required")


@pytest.mark.parametrize("content", ["x", "x\n", "x\r\n", "\ufeffx\n", "x\n\n"])
def test_the_end_of_the_line_is_not_part_of_it(stub: StubApi, tmp_path: Path, content: str) -> None:
    (tmp_path / "password").write_bytes(content.encode())
    with page_app(stub, password_file=tmp_path / "password") as app:
        assert app.test_client().get("/", headers=basic("a:x")).status_code == 200
        assert app.test_client().get("/", headers=basic("a:x\n")).status_code == 401


@pytest.mark.parametrize(
    "content", [b"", b"\n", b" \n", b"\r\n\r\n", b"a\nb\n", b"\xe9\n", b"\xff\xfea\0", None]
)
def test_a_file_without_a_password_keeps_the_page_from_starting(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "password").write_bytes(content)
    with pytest.raises(ValidationError, match="password_file"):
        Settings(password_file=tmp_path / "password")


@pytest.mark.parametrize(
    ("address", "guard", "is_open"),
    [
        *((address, {}, True) for address in (ALL, "::", "192.0.2.1", "fe80::1%eth0")),
        *((address, {}, False) for address in ("127.0.0.1", "127.8.8.8", "::1")),
        (ALL, {"password_file": None}, False),
        (ALL, {"trusted_proxy": "192.0.2.7"}, False),
    ],
)
def test_an_open_page_warns_at_start(
    stub: StubApi,
    password_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    address: str,
    guard: dict[str, str],
    is_open: bool,
) -> None:
    fields = {**guard, "password_file": password_file} if "password_file" in guard else guard
    monkeypatch.setattr(signal, "signal", Mock())
    with page_app(stub) as app:
        server = Server(app, Settings(port=0, **fields))
        listener = Mock(**{"socket.getsockname.return_value": (address, 5000)})
        monkeypatch.setattr(server, "_listeners", lambda: [listener])
        server._stopping = True
        with caplog.at_level(logging.WARNING):
            server.serve()
    assert [record.getMessage().count("UI_PASSWORD_FILE") for record in caplog.records] == [1] * is_open

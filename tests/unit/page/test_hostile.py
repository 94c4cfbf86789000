"""Hostile input, other sites, overload: a clear answer, and nothing unescaped."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.browser.page_app import JPEG, PHOTO, form, page_app
from tests.browser.stub_api import StubApi, ok, until


def test_odd_request_ids_are_replaced(stub: StubApi, client: FlaskClient) -> None:
    client.post("/classify", data=PHOTO, headers={**JPEG, "X-Request-ID": "<b>" * 99})
    assert re.fullmatch("[0-9a-f]{32}", stub.asked[0].headers["X-Request-ID"])


@pytest.mark.parametrize(
    ("data", "content_type", "status", "code"),
    [
        (b"", "image/jpeg", 400, "no_photo"),
        (b"", "", 400, "no_photo"),
        (b'{"image": ""}', "application/json", 415, "unsupported_media_type"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"x", "<script>/x", 415, "unsupported_media_type"),
        (b"no boundary here", "multipart/form-data", 400, None),
        (b"--b\r\n\r\nx", "multipart/form-data; boundary=b", 400, None),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 400, "no_photo"),
        (b"--b\r\n" * 5000, "multipart/form-data; boundary=b", 400, None),
    ],
)
def test_hostile_bodies(
    client: FlaskClient, data: bytes, content_type: str, status: int, code: str | None
) -> None:
    for path in ("/classify", "/", "/feedback", "/ask"):
        answer = client.post(path, data=data, headers={"Content-Type": content_type})
        assert 400 <= answer.status_code < 500
        if path == "/classify":
            assert answer.status_code == status
            assert code in (None, answer.get_json()["code"])


def test_hostile_names_and_labels_are_escaped(stub: StubApi, client: FlaskClient) -> None:
    stub.model["labels"] = ["<b>bold</b>"]
    stub.answers.append(ok({"<b>bold</b>": 0.9}))
    name = "<img src=x onerror=alert(1)>\"'\u202e" + "y" * 5000 + ".jpg"
    page = client.post("/", data=form((PHOTO, name)))
    assert page.status_code == 200
    assert "<img src=x" not in page.text
    assert "y" * 100 not in page.text
    assert "<b>bold" not in page.text


def encoded(content: bytes) -> dict[str, Any]:
    """Encodes a large file by hand; the test client would use a temporary file."""
    head = b'--b\r\nContent-Disposition: form-data; name="photo"; filename="egg.jpg"\r\n\r\n'
    content_type = "multipart/form-data; boundary=b"
    return {"data": head + content + b"\r\n--b--\r\n", "content_type": content_type}


def test_too_large(stub: StubApi) -> None:
    with page_app(stub, max_upload_mb=1) as app:
        client = app.test_client()
        answer = client.post("/classify", data=b"x" * 2**20 + b"x", headers=JPEG)
        assert answer.status_code == 413
        assert "1 MB" in answer.get_json()["page"]["advice"]
        page = client.post("/", **encoded(b"x" * 2**21))
        assert page.status_code == 413
        assert "The limit is 1 MB" in page.text
    assert not stub.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
def test_other_sites_cannot_post(client: FlaskClient, headers: dict[str, str]) -> None:
    for path in ("/", "/classify", "/ask", "/feedback", "/feedback/undo"):
        assert client.post(path, headers=headers).status_code == 403


def test_unknown_addresses_samples_and_methods(client: FlaskClient) -> None:
    for key in ("../../settings", "nothing", "<b>"):
        assert client.post("/", data={"sample": key}).status_code == 400
    assert client.get("/nothing").status_code == 404
    assert "Page not found." in client.get("/nothing").text
    refused = client.get("/classify")
    assert (refused.status_code, refused.get_json()["code"]) == (405, "method_not_allowed")
    assert "POST" in refused.headers["Allow"]


def test_busy_page(stub: StubApi) -> None:
    """Threads that wait for the API are bounded; the page itself still answers."""
    stub.held.clear()
    with page_app(stub, threads=4) as app, ThreadPoolExecutor() as pool:

        def ask() -> int:
            return app.test_client().post("/classify", data=PHOTO, headers=JPEG).status_code

        asked = [pool.submit(ask) for _ in range(2)]
        until(lambda: stub.inside == 2, "two requests at the API")
        answer = app.test_client().post("/classify", data=PHOTO, headers=JPEG)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert app.test_client().get("/healthz").status_code == 200
        stub.held.set()
        assert [future.result() for future in asked] == [200, 200]

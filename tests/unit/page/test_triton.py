"""The page with `UI_API_PROTOCOL=triton`, in front of a stub that speaks like Triton."""

import base64
import html
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.browser.page_app import JPEG, PHOTO, page_app
from tests.browser.stub_api import LABELS, SURE, Reply, StubApi, stub_api
from tests.triton_answers import config, failure, outputs


@pytest.fixture
def stub() -> Iterator[StubApi]:
    with stub_api() as running:
        running.usual, running.model = outputs(), config()
        yield running


@pytest.fixture
def client(stub: StubApi) -> Iterator[FlaskClient]:
    with page_app(stub, api_protocol="triton") as app:
        yield app.test_client()


def test_a_photo(stub: StubApi, client: FlaskClient) -> None:
    answer = client.post("/classify", data=PHOTO, headers={**JPEG, "X-Request-ID": "mine-1"})
    body = answer.get_json()
    assert (body["prediction"], body["probability"]) == ("Soup", 0.924)
    assert [candidate["label"] for candidate in body["top"]] == list(SURE)
    assert body["page"]["sentence"] == "Soup, 92 %"
    assert answer.headers["X-Request-ID"] == "mine-1"
    assert stub.asked[0].path == "/v2/models/food_classifier/infer"
    assert stub.asked[0].body.endswith(PHOTO)


def test_what_the_page_knows_of_the_model(stub: StubApi, client: FlaskClient) -> None:
    page = client.get("/").text
    assert all(f"<li>{label}</li>" in page for label in LABELS)
    model = client.get("/status").get_json()["model"]
    assert (model["title"], model["backend"], model["device"]) == ("food11 1", "python", "cpu")
    assert f"{stub.url}/v2/models/food_classifier/infer" in page
    assert "/predict" not in page


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (failure(400, "not a JPEG"), 400, "invalid_image"),
        (failure(503, "Exceeds maximum queue size"), 503, "overloaded"),
        (Reply(200, b"<html>"), 502, "api_garbage"),
    ],
)
def test_errors(stub: StubApi, client: FlaskClient, reply: Reply, status: int, code: str) -> None:
    stub.usual = reply
    answer = client.post("/classify", data=PHOTO, headers=JPEG)
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (status, code)
    assert body["page"]["title"]
    if isinstance(reply.body, dict) and "error" in reply.body:
        assert body["detail"] == reply.body["error"]


@pytest.mark.parametrize("status", [400, 404])
def test_a_model_that_is_not_there_is_no_bad_photo(
    stub: StubApi, client: FlaskClient, status: int
) -> None:
    stub.usual = stub.ready = failure(status, "Request for unknown model")
    answer = client.post("/classify", data=PHOTO, headers=JPEG)
    assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")
    status_of_the_page = client.get("/status").get_json()
    assert (status_of_the_page["state"], status_of_the_page["reason"]) == (
        "loading",
        "Request for unknown model",
    )


def shown(page: str, kind: str) -> str:
    """Returns one kind of the code that visitors copy."""
    return html.unescape(page.partition(f'<code class="{kind}">')[2].partition("</code>")[0])


@pytest.mark.parametrize("program", ["python", "curl"])
@pytest.mark.parametrize("protocol", ["native", "triton"])
def test_the_code_to_copy_asks_as_the_page_does(
    stub: StubApi, tmp_path: Path, protocol: str, program: str
) -> None:
    if program == "curl" and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    (tmp_path / "PHOTO").write_bytes(PHOTO)
    with page_app(stub, api_protocol=protocol, api_key="k-1") as app:
        page = app.test_client().get("/").text
    assert "k-1" not in page
    text = shown(page, program)
    command = [sys.executable, "-c", text] if program == "python" else ["bash", "-c", text]
    env = {**os.environ, "API_KEY": "k-1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "Soup" in done.stdout
    (asked,) = stub.asked
    assert asked.headers["Authorization"] == "Bearer k-1"
    if protocol == "triton":
        assert asked.path == "/v2/models/food_classifier/infer"
        assert asked.body["parameters"] == {"top_k": 5}
        (tensor,) = asked.body["inputs"]
        assert tensor.pop("data") == [base64.b64encode(PHOTO).decode()]
        assert tensor == {"name": "INPUT_IMAGE", "shape": [1, 1], "datatype": "BYTES"}
    else:
        assert asked.path == "/predict?top_k=5"
        assert (asked.body if program == "curl" else asked.photo) == PHOTO

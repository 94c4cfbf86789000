"""Routes of the page, in front of a stub API: answers for people and for the script."""

import base64
import io
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from flask_app.samples import SAMPLES
from tests.browser.page_app import JPEG, PHOTO, form
from tests.browser.stub_api import (
    LABELS,
    SURE,
    TIMES,
    UNSURE,
    Reply,
    StubApi,
    error,
    ok,
)


def test_the_page(client: FlaskClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert '<label class="button" for="photos">' in page.text
    assert all(f"<li>{label}</li>" in page.text for label in LABELS)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"


def test_the_page_without_an_api(stub: StubApi, client: FlaskClient) -> None:
    stub.down()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("content_type", ["image/jpeg", "image/heic", "application/octet-stream"])
def test_classify_passes_on(stub: StubApi, client: FlaskClient, content_type: str) -> None:
    headers = {"Content-Type": content_type, "X-Request-ID": "mine-1"}
    answer = client.post("/classify", data=PHOTO, headers=headers)
    assert answer.status_code == 200
    body = answer.get_json()
    page = body.pop("page")
    assert body == ok().body
    assert (page["sentence"], page["sure"]) == ("Soup, 92 %", True)
    assert [bar["label"] for bar in page["bars"]] == list(SURE)
    assert page["feedback_token"] is None
    assert answer.headers["Server-Timing"] == TIMES
    assert answer.headers["X-Request-ID"] == "mine-1"
    assert base64.b64decode(stub.asked[0].body["image"]) == PHOTO


def test_classify_takes_a_form(stub: StubApi, client: FlaskClient) -> None:
    data = {"image": (io.BytesIO(PHOTO), "egg.jpg")}
    assert client.post("/classify", data=data).status_code == 200
    assert base64.b64decode(stub.asked[0].body["image"]) == PHOTO


def test_thresholds_come_from_the_model(stub: StubApi, client: FlaskClient) -> None:
    stub.model["thresholds"] = {"probability": 0.95, "margin": 0.1}
    page = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]
    assert page["sentence"] == "Not sure: Soup 92 %, Rice 4 %"


@pytest.mark.parametrize("model", [{}, [], None, {"thresholds": 3, "labels": 4, "image": []}])
def test_a_strange_model_is_survived(stub: StubApi, client: FlaskClient, model: object) -> None:
    stub.model = model
    stub.answers.extend([ok(UNSURE)])
    page = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]
    assert page["sentence"] == "Not sure: Soup 41 %, Rice 37 %"
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (error(400, "invalid_image"), 400, "invalid_image"),
        (error(413, "image_too_large"), 413, "image_too_large"),
        (error(401, "unauthorized"), 401, "unauthorized"),
        (error(503, "overloaded", 4), 503, "overloaded"),
        (error(504, "deadline_exceeded"), 504, "deadline_exceeded"),
        (error(500, "internal_error"), 500, "internal_error"),
        (error(418, "never_heard_of"), 418, "never_heard_of"),
        (Reply(200, b"<html>"), 502, "api_garbage"),
    ],
)
def test_errors_of_the_api(
    stub: StubApi, client: FlaskClient, reply: Reply, status: int, code: str
) -> None:
    stub.answers.append(reply)
    answer = client.post("/classify", data=PHOTO, headers=JPEG)
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (status, code)
    assert body["page"]["title"]
    assert body["page"]["advice"]
    assert answer.headers.get("Retry-After") == reply.headers.get("Retry-After")
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_api_is_down(stub: StubApi, client: FlaskClient) -> None:
    stub.down()
    answer = client.post("/classify", data=PHOTO, headers=JPEG)
    assert (answer.status_code, answer.get_json()["code"]) == (502, "api_unreachable")
    page = client.post("/", data=form((PHOTO, "egg.jpg")))
    assert page.status_code == 502
    assert "cannot be reached" in page.text


def test_a_form_without_script(client: FlaskClient) -> None:
    page = client.post("/", data=form((PHOTO, "my egg.jpg"))).text
    assert "Soup, 92 %" in page
    assert "my egg.jpg" in page
    assert 'src="data:image/jpeg;base64,' in page
    assert '<rect width="92.4%"' in page


def test_a_form_with_several_photos(stub: StubApi, client: FlaskClient) -> None:
    stub.answers.extend([ok(UNSURE), error(400, "invalid_image")])
    page = client.post("/", data=form((PHOTO, "a.jpg"), (b"text", "b.txt"), (PHOTO, "c.jpg")))
    assert page.status_code == 200
    assert "Not sure: Soup 41 %, Rice 37 %" in page.text
    assert "This file is not a readable image." in page.text
    assert page.text.count('data-state="done"') == 2
    assert page.text.count('data-state="failed"') == 1


def test_a_form_with_too_many_photos(client: FlaskClient) -> None:
    page = client.post("/", data=form(*[(b"x", f"{i}.jpg") for i in range(25)]))
    assert page.status_code == 400
    assert "Too many photos" in page.text


def test_an_empty_form(client: FlaskClient) -> None:
    page = client.post("/", data=form((b"", "")))
    assert page.status_code == 400
    assert "No photo was received." in page.text
    assert 'role="alert"' in page.text


def test_an_empty_file(client: FlaskClient) -> None:
    page = client.post("/", data=form((b"", "empty.jpg")))
    assert page.status_code == 400
    assert "empty.jpg" in page.text


@pytest.mark.parametrize("key", [sample.key for sample in SAMPLES])
def test_samples(stub: StubApi, client: FlaskClient, key: str) -> None:
    assert client.post("/", data={"sample": key}).status_code == 200
    content = base64.b64decode(stub.asked[0].body["image"])
    assert content == (Path(__file__).parents[3] / f"flask_app/static/samples/{key}.jpg").read_bytes()
    assert len(content) < 60_000


def test_the_test_address(stub: StubApi, client: FlaskClient) -> None:
    page = client.get("/test")
    assert page.status_code == 200
    assert "<h1>Soup</h1>" in page.text
    stub.down()
    page = client.get("/test")
    assert page.status_code == 502
    assert "cannot be reached" in page.text


def test_status(stub: StubApi, client: FlaskClient) -> None:
    body = client.get("/status").get_json()
    assert body["state"] == "ready"
    assert body["model"]["title"] == "food11 1"
    assert body["model"]["labels"] == LABELS
    assert body["model"]["side"] == 256
    stub.ready = error(503, "unavailable")
    assert client.get("/status").get_json()["state"] == "loading"
    stub.down()
    assert client.get("/status").get_json()["state"] == "down"


def test_status_learns_the_model_of_an_api_that_was_down(stub: StubApi, client: FlaskClient) -> None:
    stub.down()
    assert client.get("/").status_code == 200
    stub.up()
    assert client.get("/status").get_json()["model"]["title"] == "food11 1"


def test_health_stays_good_without_the_api(stub: StubApi, client: FlaskClient) -> None:
    assert client.get("/healthz").get_json() == {"status": "ok", "api": "ready"}
    stub.down()
    answer = client.get("/healthz")
    assert (answer.status_code, answer.get_json()["api"]) == (200, "down")

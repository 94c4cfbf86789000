"""Routes of the page for photos, in front of a stub API: answers for people and for the script.

What visitors see, and forms without script, are in tests/browser.
"""

import base64
import io
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_app import words
from flask_app.samples import SAMPLES
from tests.browser.page_app import JPEG, PHOTO, form
from tests.browser.stub_api import LABELS, MODEL, SURE, TIMES, Reply, StubApi, error, ok
from tests.browser.stub_models import READER, serve


def test_the_page_and_its_headers(client: FlaskClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("content_type", ["image/jpeg", "image/heic", "application/octet-stream"])
def test_classify_passes_on(stub: StubApi, client: FlaskClient, content_type: str) -> None:
    headers = {"Content-Type": content_type, "X-Request-ID": "mine-1"}
    answer = client.post("/classify", data=PHOTO, headers=headers)
    assert answer.status_code == 200
    body = answer.get_json()
    page = body.pop("page")
    assert body == ok().body
    assert (page["sentence"], page["sure"], page["feedback_token"]) == ("Soup, 92 %", True, None)
    assert [bar["label"] for bar in page["bars"]] == list(SURE)
    assert answer.headers["Server-Timing"] == TIMES
    assert answer.headers["X-Request-ID"] == "mine-1"
    assert client.post("/classify", data={"image": (io.BytesIO(PHOTO), "egg.jpg")}).status_code == 200
    assert [asked.photo for asked in stub.asked] == [PHOTO] * 2


@pytest.mark.parametrize(
    "model",
    [
        {"thresholds": {"probability": 0.3, "margin": 0.1}},
        {},
        [],
        None,
        {"thresholds": 3, "labels": 4, "image": []},
    ],
)
def test_thresholds_come_from_the_model_and_a_strange_one_is_survived(
    stub: StubApi, client: FlaskClient, model: object
) -> None:
    stub.model = model
    stub.usual = ok({"Soup": 0.41, "Rice": 0.27})
    page = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]
    is_sure = bool(model) and model != {"thresholds": 3, "labels": 4, "image": []}
    assert page["sentence"] == ("Soup, 41 %" if is_sure else "Not sure: Soup 41 %, Rice 27 %")
    assert ("outside these classes" in page["note"]) is not is_sure
    assert client.get("/").status_code == 200


def test_several_classes_may_fit_a_photo(stub: StubApi, client: FlaskClient) -> None:
    stub.model = {**MODEL, "image": {"activation": "sigmoid"}}
    stub.usual = ok({"Soup": 0.91, "Rice": 0.87, "Egg": 0.02})
    page = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]
    assert (page["sentence"], page["sure"]) == ("Soup 91 %, Rice 87 %", True)


@pytest.mark.parametrize("model", [MODEL, READER], ids=lambda model: model["name"])
@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (error(400, "invalid_image"), 400, "invalid_image"),
        (error(401, "unauthorized"), 401, "unauthorized"),
        (error(413, "text_too_long"), 413, "text_too_long"),
        (error(500, "internal_error"), 500, "internal_error"),
        (error(503, "overloaded", 4), 503, "overloaded"),
        (error(418, "never_heard_of"), 418, "never_heard_of"),
        (Reply(400, {"error": "of v2"}), 400, "invalid_request"),
        (Reply(200, b"<html>"), 502, "api_garbage"),
        (Reply(200, {"prediction": "Soup", "probability": 0.9}), 502, "api_garbage"),
        (Reply(404, b"<html>"), 502, "api_garbage"),
        (Reply(502, b"<html>bad gateway"), 502, "api_unreachable"),
        (None, 502, "api_unreachable"),
    ],
)
def test_errors_are_said_in_words_and_nothing_is_lost(
    stub: StubApi,
    client: FlaskClient,
    model: dict[str, Any],
    reply: Reply | None,
    status: int,
    code: str,
) -> None:
    serve(stub, model)
    if reply is None:
        assert client.get("/").status_code == 200  # knows the model
        stub.down()
    else:
        stub.usual = reply
    if model is MODEL:
        answer = client.post("/classify", data=PHOTO, headers=JPEG)
        page = client.post("/", data=form((PHOTO, "my egg.jpg")))
        kept = ['src="data:image/jpeg;base64,']
    else:
        typed = {"question": "Who?", "context": "The cook is Ann Lee."}
        answer, page = (client.post(path, data=typed) for path in ("/ask", "/"))
        kept = list(typed.values())
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (status, code)
    title = words.error(code, status).title
    assert body["page"]["title"] == title
    assert body["page"]["advice"]
    assert answer.headers.get("Retry-After") == (reply and reply.headers.get("Retry-After"))
    assert answer.headers["Cache-Control"] == "no-store"
    assert page.status_code == status
    assert title in unescape(page.text)
    assert all(text in page.text for text in kept)
    assert client.get("/test").status_code == status


@pytest.mark.parametrize(
    ("files", "said"),
    [([(b"x", f"{i}.jpg") for i in range(25)], "Too many photos"), ([(b"", "empty.jpg")], "empty.jpg")],
)
def test_a_form_that_cannot_be_answered(
    client: FlaskClient, files: list[tuple[bytes, str]], said: str
) -> None:
    page = client.post("/", data=form(*files))
    assert page.status_code == 400
    assert said in page.text


@pytest.mark.parametrize("key", [sample.key for sample in SAMPLES])
def test_samples(stub: StubApi, client: FlaskClient, key: str) -> None:
    assert client.post("/", data={"sample": key}).status_code == 200
    content = base64.b64decode(stub.asked[0].body["image"])
    assert content == (Path(__file__).parents[3] / f"flask_app/static/samples/{key}.jpg").read_bytes()
    assert len(content) < 60_000


def test_status_and_health(stub: StubApi, client: FlaskClient) -> None:
    stub.down()
    assert client.get("/").status_code == 200
    stub.up()  # the model is learned as soon as the API is there
    body = client.get("/status").get_json()
    assert (body["state"], body["model"]["title"]) == ("ready", "food11 1")
    assert (body["model"]["labels"], body["model"]["side"]) == (LABELS, 256)
    assert client.get("/healthz").get_json() == {"status": "ok", "api": "ready"}
    assert "<h1>Soup, 92 %</h1>" in client.get("/test").text
    stub.ready = error(503, "unavailable")
    assert client.get("/status").get_json()["state"] == "loading"
    stub.down()
    assert client.get("/status").get_json()["state"] == "down"
    answer = client.get("/healthz")
    assert (answer.status_code, answer.get_json()["api"]) == (200, "down")

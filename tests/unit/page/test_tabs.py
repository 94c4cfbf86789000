"""The page in front of several models: a tab for each, and every request to the right model."""

from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.browser.page_app import JPEG, PHOTO, form, page_app
from tests.browser.stub_api import MODEL, StubApi, ok
from tests.browser.stub_models import FLOWERS, GRAPH, READER, SENTIMENT, feels, serve_several

MODELS = (MODEL, SENTIMENT, READER, FLOWERS, GRAPH)
NAMES = [model["name"] for model in MODELS]


def tabs(page: str) -> list[tuple[str, str]]:
    """Addresses and names of the tabs."""
    links = page.partition('id="tabs"')[2].partition("</ul>")[0].split("<a ")[1:]
    texts = [unescape(link.partition("<span>")[2].partition("</span>")[0]) for link in links]
    addresses = [link.partition('href="')[2].partition('"')[0] for link in links]
    return list(zip(addresses, texts, strict=True))


def current(page: str) -> str:
    """Name of the tab that is open."""
    return page.partition(' aria-current="page"')[0].rpartition('data-name="')[2].partition('"')[0]


def test_one_model_has_no_tabs(stub: StubApi, client: FlaskClient) -> None:
    assert tabs(client.get("/").text) == []
    serve_several(stub, SENTIMENT)
    with page_app(stub) as app:
        page = app.test_client().get("/").text
        assert tabs(page) == []
        assert 'data-query=""' in page
        assert app.test_client().get("/status").get_json()["models"] == []
        stub.usual = feels
        assert app.test_client().post("/ask", data={"text": "x"}).status_code == 200
    assert stub.asked[0].path == "/predict?top_k=3"


def test_every_model_has_a_tab(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, *MODELS)
    views = ["photos", "text", "question", "form", "tensors"]
    for name, view in zip(NAMES, views, strict=True):
        page = client.get(f"/{name}").text
        assert tabs(page) == [(f"/{each}", each) for each in NAMES]
        assert current(page) == name
        assert f'data-view="{view}"' in page
        assert f'action="/{name}"' in page
        assert 'id="say"' in page
        status = client.get(f"/status?model={name}").get_json()
        assert (status["state"], status["model"]["view"]) == ("ready", view)
        assert status["models"] == [{"name": each, "state": "ready"} for each in NAMES]
    assert current(client.get("/").text) == NAMES[0]


def test_requests_go_to_the_model_of_the_tab(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, *MODELS)
    texts = {"text": "a wonderful day", "question": "Who?", "context": "The cook is Ann Lee."}
    texts |= {"name": "rose", "features": "1", "petals": "5", "season": '"spring"', "place": "{}"}
    texts |= {"request": '{"inputs": [{"data": [1]}]}'}
    for name in NAMES[1:]:
        answer = client.post(f"/ask?model={name}", data=texts)
        assert answer.status_code == 200, answer.text
        assert stub.asked[-1].path in answer.get_json()["page"]["html"]  # in the code to copy
        assert client.post(f"/{name}", data=texts).status_code == 200
        assert client.get(f"/test?model={name}").status_code == 200
    answer = client.post("/classify?model=food11", data=PHOTO, headers=JPEG)
    assert answer.status_code == 200
    assert client.post("/food11", data=form((PHOTO, "egg.jpg"))).status_code == 200
    assert client.post("/", data=form((PHOTO, "egg.jpg"))).status_code == 200
    assert client.get("/test").status_code == 200
    assert "/predict/food11?top_k=5" in client.get("/").text
    paths = ["/predict/sentiment?top_k=3", "/predict/reader?top_k=5", "/predict/flowers"]
    paths += ["/v2/models/sums/infer"]
    assert [asked.path for asked in stub.asked[:12]] == [path for path in paths for _ in range(3)]
    assert {asked.path for asked in stub.asked[12:]} == {"/predict/food11?top_k=5"}


@pytest.mark.parametrize("name", ["nothing", "..", "sentiment%2f..", "<b>", "x" * 5000, "sums/infer"])
def test_unknown_models(stub: StubApi, client: FlaskClient, name: str) -> None:
    serve_several(stub, *MODELS)
    assert client.get(f"/{name}").status_code in (404, 308)
    assert client.post(f"/{name}", data={"text": "x"}).status_code in (404, 308)
    for path in ("/ask", "/classify"):
        answer = client.post(path, query_string={"model": name}, data={"text": "x"})
        assert (answer.status_code, answer.get_json()["code"]) == (404, "not_found")
    assert client.get("/status", query_string={"model": name}).status_code == 404
    assert not stub.asked


def test_models_named_like_addresses_of_the_page(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, MODEL, {**SENTIMENT, "name": "test"}, {**SENTIMENT, "name": "status"})
    page = client.get("/").text
    assert tabs(page)[1:] == [("/?model=test", "test"), ("/?model=status", "status")]
    page = client.get("/?model=test").text
    assert current(page) == "test"
    assert 'action="/?model=test"' in page
    assert "work together" in client.get("/test").text
    assert client.get("/status").get_json()["state"] == "ready"


def test_a_model_that_warms_up(stub: StubApi, client: FlaskClient) -> None:
    states = serve_several(stub, MODEL, {**READER, "title": "Ask <me>"})
    states["reader"] = "loading"
    page = client.get("/reader").text
    assert tabs(page)[1] == ("/reader", "reader")
    assert " (loading)</span>" in page
    assert '<h1 id="heading">Ask &lt;me&gt;</h1>' in page
    assert "This model is still warming up." in page
    assert '<noscript><meta http-equiv="refresh"' in page
    status = client.get("/status?model=reader").get_json()
    assert (status["state"], status["model"]["view"]) == ("loading", "waiting")
    assert f'data-shape="{status["model"]["shape"]}"' in page
    answer = client.post("/ask?model=reader", data={"question": "Who?", "context": "Ann."})
    assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")
    assert client.post("/reader", data={"question": "Who?"}).status_code == 503
    assert client.get("/status").get_json()["state"] == "ready"  # of the default model
    assert not stub.asked
    states["reader"] = "ready"
    status = client.get("/status?model=reader").get_json()
    assert (status["state"], status["model"]["view"]) == ("ready", "question")
    assert 'data-view="question"' in client.get("/reader").text


def test_a_model_that_has_failed(stub: StubApi, client: FlaskClient) -> None:
    states = serve_several(stub, MODEL, SENTIMENT, READER)
    assert client.get("/sentiment").status_code == 200
    states.update(sentiment="unavailable", reader="unavailable")
    status = client.get("/status?model=sentiment").get_json()
    assert (status["state"], status["reason"]) == ("unavailable", "sentiment <unavailable>")
    assert 'data-view="text"' in client.get("/sentiment").text  # it was described before
    page = client.get("/reader").text
    assert "not available. The service says: reader &lt;unavailable&gt;" in page
    assert " (not available)</span>" in page
    answer = client.post("/ask?model=sentiment", data={"text": "x"})
    assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")


def test_the_service_is_down(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, *MODELS)
    stub.down()
    assert client.get("/sentiment").status_code == 502  # nothing is known of any model
    assert client.get("/status?model=sentiment").get_json()["code"] == "api_unreachable"
    stub.up()
    assert client.get("/status").get_json()["state"] == "ready"
    assert client.get("/sentiment").status_code == 200
    stub.down()
    page = client.get("/sentiment")
    assert (page.status_code, current(page.text)) == (200, "sentiment")
    assert client.get("/status?model=sentiment").get_json()["state"] == "down"


@pytest.mark.parametrize(
    "listed", ["x", 3, [1, None, [], {}], [{"name": 3, "state": "ready"}], [{"name": "a", "state": "?"}]]
)
def test_a_strange_list_is_survived(stub: StubApi, client: FlaskClient, listed: Any) -> None:
    stub.model = {**MODEL, "models": listed}
    assert tabs(client.get("/").text) == []
    assert client.get("/status").get_json()["state"] == "ready"


def test_hostile_names_are_escaped(stub: StubApi, client: FlaskClient) -> None:
    name = '"><b>&model=x'
    rows = [{"name": each, "state": "ready", "title": "", "reason": ""} for each in ("food11", name)]
    stub.model = {**MODEL, "models": rows}
    page = client.get("/", query_string={"model": name}).text
    assert "<b>" not in page
    assert tabs(page)[1][1] == name


def test_feedback_knows_the_labels_of_its_model(stub: StubApi, tmp_path: Any) -> None:
    rooms = {**MODEL, "name": "rooms", "labels": ["Kitchen", "Hall"]}
    serve_several(stub, MODEL, rooms)
    stub.usual = ok({"Hall": 0.9, "Kitchen": 0.1})
    with page_app(stub, feedback_dir=tmp_path) as app:
        client = app.test_client()
        assert 'action="/feedback?model=rooms"' in client.get("/rooms").text
        page = client.post("/classify?model=rooms", data=PHOTO, headers=JPEG).get_json()["page"]
        feedback = {"token": page["feedback_token"], "verdict": "wrong", "corrected": "Kitchen"}
        assert client.post("/feedback", data=feedback).status_code == 400
        assert client.post("/feedback?model=rooms", data=feedback).status_code == 200
    assert '"model": "rooms 1"' in (tmp_path / "feedback.jsonl").read_text()

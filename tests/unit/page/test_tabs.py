"""The page in front of several models: every request to the right one, whatever its name.

How tabs look and open, also of models that warm up or fail, is in tests/browser/test_tabs.py.
"""

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
    links = page.partition('id="tabs"')[2].partition("</ul>")[0].split("<a ")[1:]
    texts = [unescape(link.partition("<span>")[2].partition("</span>")[0]) for link in links]
    addresses = [link.partition('href="')[2].partition('"')[0] for link in links]
    return list(zip(addresses, texts, strict=True))


def current(page: str) -> str:
    return page.partition(' aria-current="page"')[0].rpartition('data-name="')[2].partition('"')[0]


def test_one_model_has_no_tabs(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, SENTIMENT)
    stub.usual = feels
    page = client.get("/").text
    assert tabs(page) == []
    assert 'data-query=""' in page
    assert client.get("/status").get_json()["models"] == []
    assert client.post("/ask", data={"text": "x"}).status_code == 200
    assert stub.asked[0].path == "/predict?top_k=3"


def test_requests_go_to_the_model_of_the_tab(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, *MODELS)
    texts = {"text": "a wonderful day", "question": "Who?", "context": "The cook is Ann Lee."}
    texts |= {"name": "rose", "features": "1", "petals": "5", "season": '"spring"', "place": "{}"}
    texts |= {"request": '{"inputs": [{"data": [1]}]}'}
    for name in NAMES:
        page = client.get(f"/{name}").text
        assert tabs(page) == [(f"./{each['name']}", each["title"] or each["name"]) for each in MODELS]
        assert current(page) == name
        assert f'action="./{name}#results"' in page
        status = client.get(f"/status?model={name}").get_json()
        assert (status["state"], len(status["models"])) == ("ready", 5)
        assert client.get(f"/test?model={name}").status_code == 200
        path = f"/ask?model={name}" if name != "food11" else f"/classify?model={name}"
        data: Any = texts if name != "food11" else PHOTO
        answer = client.post(path, data=data, headers=JPEG if name == "food11" else {})
        assert answer.status_code == 200, answer.text
        assert client.post(f"/{name}", data=texts | form((PHOTO, "egg.jpg"))).status_code == 200
        code = page if name == "food11" else answer.get_json()["page"]["html"]
        assert stub.asked[-1].path in code  # to copy
    paths = ["/predict/food11?top_k=5", "/predict/sentiment?top_k=3", "/predict/reader?top_k=5"]
    paths += ["/predict/flowers", "/v2/models/sums/infer"]
    assert [asked.path for asked in stub.asked] == [path for path in paths for _ in range(3)]
    assert current(client.get("/").text) == NAMES[0]


def test_models_of_the_same_title_are_told_apart(stub: StubApi, client: FlaskClient) -> None:
    serve_several(stub, MODEL, {**MODEL, "name": "food12"}, {**SENTIMENT, "title": "A <b>"})
    names = [name for _, name in tabs(client.get("/").text)]
    assert names == ["food11", "food12", "A <b>"]


def test_only_the_models_of_the_page_have_samples(stub: StubApi, client: FlaskClient) -> None:
    """A photo model without samples is tested with its own example."""
    example = {"image": "eHg="}
    serve_several(stub, MODEL, {**MODEL, "name": "roofs", "example": example}, SENTIMENT)
    for name, has_samples in (("food11", True), ("roofs", False)):
        page = client.get(f"/{name}").text
        hidden = page.partition('<form class="samples of-samples"')[2].partition(">")[0]
        assert hidden.endswith(" hidden") is not has_samples
        assert client.get(f"/status?model={name}").get_json()["model"]["samples"] is has_samples
        assert ("soup.jpg" in client.get(f"/test?model={name}").text) is has_samples
    assert stub.asked[-1].body == example
    assert "A funny, warm and wonderful film." in client.get("/sentiment").text


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
    page = client.get("/?model=test").text
    assert tabs(page)[1:] == [("./?model=test", "test"), ("./?model=status", "status")]
    assert current(page) == "test"
    assert 'action="./?model=test#results"' in page
    assert "work together" in client.get("/test").text
    assert client.get("/status").get_json()["state"] == "ready"


def test_a_model_that_is_not_ready_is_not_asked(stub: StubApi, client: FlaskClient) -> None:
    states = serve_several(stub, MODEL, {**READER, "title": "Ask <me>"})
    for state in ("loading", "unavailable"):
        states["reader"] = state
        status = client.get("/status?model=reader").get_json()
        assert (status["state"], status["model"]["view"]) == (state, "waiting")
        page = client.get("/reader").text
        assert '<h1 id="heading">Ask &lt;me&gt;</h1>' in page
        assert "reader &lt;unavailable&gt;" in page or state == "loading"  # the reason
        for path in ("/ask?model=reader", "/reader"):
            assert client.post(path, data={"question": "Who?", "context": "Ann."}).status_code == 503
    assert client.get("/status").get_json()["state"] == "ready"  # of the default model
    assert not stub.asked


@pytest.mark.parametrize("models", [(SENTIMENT,), (MODEL, SENTIMENT)])
def test_a_model_that_is_asleep_is_asked(
    stub: StubApi, client: FlaskClient, models: tuple[dict[str, Any], ...]
) -> None:
    states = serve_several(stub, *models)
    states["sentiment"] = "asleep"
    address = "/status?model=sentiment" if len(models) > 1 else "/status"
    status = client.get(address).get_json()
    assert (status["state"], status["reason"]) == ("asleep", "Sentiment <asleep>.")
    assert ("(asleep)" in client.get("/").text) == (len(models) > 1)
    if len(models) > 1:
        assert client.post("/ask?model=sentiment", data={"text": "x"}).status_code == 200
    states["sentiment"] = "ready"
    assert client.get(address).get_json()["state"] == "ready"


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
        assert 'action="./feedback?model=rooms"' in client.get("/rooms").text
        page = client.post("/classify?model=rooms", data=PHOTO, headers=JPEG).get_json()["page"]
        feedback = {"token": page["feedback_token"], "verdict": "wrong", "corrected": "Kitchen"}
        assert client.post("/feedback", data=feedback).status_code == 400
        assert client.post("/feedback?model=rooms", data=feedback).status_code == 200
    assert '"model": "rooms 1"' in (tmp_path / "feedback.jsonl").read_text()

"""The page in front of models that are no classifiers of photos: what it offers, asks and shows."""

import io
import json
import os
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_app.answers import pieces
from tests.browser.page_app import page_app
from tests.browser.stub_api import Reply, StubApi, error
from tests.browser.stub_models import FLOWERS, GRAPH, PIXEL, READER, SENTIMENT, serve

FLOWER = {"name": "rose", "features": "1, 2", "petals": "5", "season": '"spring"', "place": "{}"}
ASKED = {
    "sentiment": {"text": "a wonderful day"},
    "reader": {"question": "Who?", "context": "The cook is Ann Lee."},
    "flowers": FLOWER,
    "sums": {"request": '{"inputs": [{"data": [1, 2, 3]}]}'},
}
MODELS = [SENTIMENT, READER, FLOWERS, GRAPH]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_every_model_has_its_page(stub: StubApi, client: FlaskClient, model: dict[str, Any]) -> None:
    serve(stub, model)
    page = client.get("/")
    assert page.status_code == 200
    fields = [f'name="{name}"' for name in ASKED[model["name"]]]
    assert all(field in page.text for field in fields), fields
    assert "photo" not in page.text.partition("<form")[0].lower()
    assert " style=" not in page.text
    status = client.get("/status").get_json()["model"]
    assert status["view"] in {"text", "question", "form", "tensors"}
    assert f'data-shape="{status["shape"]}"' in page.text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_the_page_says_what_model_json_says(
    stub: StubApi, client: FlaskClient, model: dict[str, Any]
) -> None:
    serve(stub, {**model, "title": "What <is> this?", "description": "A & B."})
    page = client.get("/").text
    assert '<h1 id="heading">What &lt;is&gt; this?</h1>' in page
    assert "A &amp; B." in page
    assert "<title>What &lt;is&gt; this?</title>" in page


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_the_script_and_a_plain_form_ask_the_same(
    stub: StubApi, client: FlaskClient, model: dict[str, Any]
) -> None:
    serve(stub, model)
    texts = ASKED[model["name"]]
    headers = {"X-Request-ID": "mine-1"}
    answer = client.post("/ask", data=texts, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["X-Request-ID"] == "mine-1"
    sentence = answer.get_json()["page"]["sentence"]
    page = client.post("/", data=texts)
    assert page.status_code == 200
    assert f'<h3 class="card-sentence">{sentence}' in unescape(page.text)
    asked = stub.asked
    assert asked[0].body == asked[1].body
    assert (asked[0].path, asked[0].headers["X-Request-ID"]) == (asked[1].path, "mine-1")
    typed = next(iter(texts.values()))
    assert typed in unescape(page.text)  # it stays in the form


def test_what_is_asked(stub: StubApi) -> None:
    wanted = [
        ("/predict?top_k=3", {"text": "a wonderful day"}),
        (
            "/predict?top_k=5",
            {"question": "Who?", "context": "The cook is Ann Lee.", "allow_no_answer": False},
        ),
        (
            "/predict",
            {
                "name": "rose",
                "features": [1, 2],
                "petals": 5,
                "season": "spring",
                "wild": False,
                "photo": "eHg=",
                "place": {},
            },
        ),
        ("/v2/models/sums/infer", {"inputs": [{"data": [1, 2, 3]}]}),
    ]
    for model, (path, body) in zip(MODELS, wanted, strict=True):
        serve(stub, model)
        with page_app(stub) as app:
            assert app.test_client().post("/ask", data=ASKED[model["name"]]).status_code == 200
        assert (stub.asked[-1].path, stub.asked[-1].body) == (path, body)


def test_texts(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    page = client.post("/ask", data={"text": "a wonderful day"}).get_json()["page"]
    assert (page["sentence"], page["sure"], page["note"]) == ("Positive, 97 %", True, "")
    assert page["html"].count('<li class="bar">') == 3
    page = client.post("/ask", data={"text": "a day"}).get_json()["page"]
    assert (page["sentence"], page["sure"]) == ("Not sure: Neutral 44 %, Positive 36 %", False)
    assert page["note"]


def test_a_text_that_was_cut(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    body = {"prediction": "Positive", "probability": 0.9}
    stub.usual = Reply(200, body, {"X-Input-Truncated": "true"})
    answer = client.post("/ask", data={"text": "a wonderful day"})
    assert answer.get_json()["page"]["note"].startswith("The text was too long.")
    assert answer.headers["X-Input-Truncated"] == "true"


def test_lines_without_script(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    stub.answers.extend([error(413, "text_too_long")])
    page = client.post("/", data={"text": "x" * 99 + "\r\n\r\n  a wonderful day \r\nlate"})
    assert page.status_code == 200
    assert [asked.body for asked in stub.asked] == [
        {"text": text} for text in ("x" * 99, "a wonderful day", "late")
    ]
    assert page.text.count('data-state="done"') == 2
    assert "This text is too long." in page.text
    assert "Stub says text_too_long." in page.text


def test_classes_that_do_not_exclude_each_other(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, {**SENTIMENT, "text": {"activation": "sigmoid"}})
    top = [{"label": name, "probability": p} for name, p in (("a", 0.9), ("b", 0.6), ("c", 0.1))]
    stub.usual = Reply(200, {"prediction": "a", "probability": 0.9, "top": top})
    page = client.post("/ask", data={"text": "x"}).get_json()["page"]
    assert (page["sentence"], page["sure"]) == ("a 90 %, b 60 %", True)
    stub.usual = Reply(200, {"prediction": "c", "probability": 0.1, "top": top[2:]})
    page = client.post("/ask", data={"text": "x"}).get_json()["page"]
    assert page["sentence"] == "None of these; closest: c 10 %"
    assert "classes, of which none, one or several may fit:" in client.get("/").text


def test_the_answer_is_marked_by_code_points(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, READER)
    context = "im Caf\u00e9 \U0001f468\u200d\U0001f373 e\u0301 <b>kocht Ann Lee, seit 1999."
    texts = {"question": "Who?", "context": context}
    page = client.post("/ask", data=texts).get_json()["page"]
    assert page["sentence"] == "Ann Lee, 87 %"
    marked = '<mark class="best">Ann Lee</mark>, seit <mark class="other">1999</mark>.'
    assert f"&lt;b&gt;kocht {marked}" in page["html"]
    page = client.post("/ask", data=texts | {"question": "I doubt it"}).get_json()["page"]
    assert (page["sentence"], page["sure"]) == ("Not sure: Ann Lee 31 %", False)
    page = client.post("/ask", data=texts | {"question": "nothing"}).get_json()["page"]
    assert (page["sentence"], page["sure"]) == ("The text does not say.", True)
    assert "<mark" not in page["html"]


def test_scores_that_are_sums(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, READER)
    stub.usual = Reply(200, {"answer": "Ann", "score": 1.25, "start": 12, "end": 15})
    page = client.post("/ask", data=ASKED["reader"]).get_json()["page"]
    assert page["sentence"] == "Ann, 100 %"


def test_candidates_that_overlap() -> None:
    spans = [{"start": 4, "end": 7}, {"start": 2, "end": 5}, {"start": 6, "end": 9}]
    cut = [(piece.text, piece.kind) for piece in pieces("0123456789", spans)]
    assert cut == [("01", ""), ("23", "other"), ("456", "best"), ("78", "other"), ("9", "")]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (READER, {"answer": "Ann", "score": 0.9, "start": 3, "end": 99}),
        (READER, {"answer": "Ann", "score": 0.9, "start": -1, "end": 1}),
        (READER, {"answer": "Ann", "score": 0.9, "start": 3, "end": float("inf")}),
        (READER, {"answer": "Ann"}),
        (READER, []),
        (READER, None),
        (SENTIMENT, {"prediction": "Positive"}),
        (SENTIMENT, {"top": [{"label": "Positive", "probability": "much"}]}),
        (SENTIMENT, "Positive"),
    ],
)
def test_answers_that_make_no_sense(
    stub: StubApi, client: FlaskClient, model: dict[str, Any], body: object
) -> None:
    serve(stub, model)
    stub.usual = Reply(200, body)
    answer = client.post("/ask", data=ASKED[model["name"]])
    assert (answer.status_code, answer.get_json()["code"]) == (502, "api_garbage")


def test_an_answer_as_a_table(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, FLOWERS)
    answer = client.post("/ask", data={**FLOWER, "photo": (io.BytesIO(b"jpeg"), "a.jpg")})
    assert stub.asked[0].body["photo"] == "anBlZw=="
    assert answer.get_json()["answer"]["petals"] == 5
    html = answer.get_json()["page"]["html"]
    assert answer.get_json()["page"]["sentence"] == "Label: Rosa <rugosa>"
    assert '<th scope="row">Probability</th><td>0.875' in html
    assert "Rosa &lt;rugosa&gt;" in html
    assert f'<img src="data:image/png;base64,{PIXEL}"' in html
    assert '<th scope="col">Label</th><th scope="col">Probability</th>' in html
    assert "Rosa canina" in html


@pytest.mark.parametrize(
    "body",
    [
        {"picture": "caf\u00e9"},
        {"a": None, "b": True, "c": [], "d": [1, "x"], "e": [[1], None], "f": [{"g": 1}, {}]},
        {"<script>": {"<script>": "<script>"}, "deep": {"er": {"and": ["<script>"]}}},
        [1.5, 2],
        "<script>",
        0,
        None,
    ],
)
def test_answers_of_every_shape(stub: StubApi, client: FlaskClient, body: Any) -> None:
    serve(stub, FLOWERS)
    stub.usual = Reply(200, body)
    answer = client.post("/ask", data=FLOWER)
    assert answer.status_code == 200
    assert answer.get_json()["answer"] == body
    assert "<script>" not in answer.get_json()["page"]["html"]


def test_tensors_begin_with_an_example(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, GRAPH)
    form = client.get("/").text.partition("<textarea")[2].partition(">\n")[2].partition("</textarea>")[0]
    example = json.loads(unescape(form))
    assert example == {
        "inputs": [{"name": "numbers", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]
    }
    stub.usual = Reply(400, {"error": "numbers: 2 numbers for the shape [1, 3]"})
    answer = client.post("/ask", data={"request": unescape(form)})
    assert answer.status_code == 400
    assert answer.get_json()["page"]["advice"] == "Numbers: 2 numbers for the shape [1, 3]."


@pytest.mark.parametrize("metadata", [[], {"inputs": 3}, {"inputs": [{}]}, {"inputs": [{"shape": "x"}]}])
def test_strange_metadata_is_survived(stub: StubApi, client: FlaskClient, metadata: Any) -> None:
    serve(stub, GRAPH)
    stub.metadata = metadata
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("reply", "title", "advice"),
    [
        (error(400, "invalid_text"), "This text cannot be read.", "Stub says invalid_text."),
        (error(413, "text_too_long"), "This text is too long.", "Stub says text_too_long."),
        (
            error(422, "invalid_request"),
            "The request doesn't match the model's input format.",
            "Stub says invalid_request.",
        ),
        (error(400, "never_heard_of"), "The request was not accepted.", "Stub says never_heard_of."),
        (error(503, "overloaded", 4), "The model is busy.", "Try again in a moment."),
        (error(500, "internal_error"), "Something went wrong on the server.", "If this continues"),
        (Reply(200, b"<html>"), "The model returned an invalid response.", "Try again. If this"),
    ],
)
@pytest.mark.parametrize("model", [SENTIMENT, READER], ids=lambda model: model["name"])
def test_errors_are_said_in_words_and_nothing_typed_is_lost(
    stub: StubApi, client: FlaskClient, model: dict[str, Any], reply: Reply, title: str, advice: str
) -> None:
    serve(stub, model)
    stub.usual = reply
    texts = ASKED[model["name"]]
    answer = client.post("/ask", data=texts)
    said = answer.get_json()["page"]
    assert (said["title"], said["advice"][: len(advice)]) == (title, advice)
    assert answer.headers.get("Retry-After") == reply.headers.get("Retry-After")
    page = client.post("/", data=texts)
    assert page.status_code == answer.status_code
    assert f"<strong>{title}</strong>" in unescape(page.text)
    assert all(text in page.text for text in texts.values())


def test_a_form_that_cannot_be_sent(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, FLOWERS)
    answer = client.post("/ask", data=FLOWER | {"petals": "many"})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "invalid_form")
    assert answer.get_json()["page"]["advice"] == "Petals: “many” is not a whole number."
    page = client.post("/", data=FLOWER | {"petals": "many"})
    assert page.status_code == 400
    assert 'value="many"' in page.text
    assert not stub.asked


@pytest.mark.parametrize("text", ["", " \r\n\t\r\n", "x\n" * 25])
def test_too_few_and_too_many_lines(stub: StubApi, client: FlaskClient, text: str) -> None:
    serve(stub, SENTIMENT)
    assert client.post("/", data={"text": text}).status_code == 400
    assert not stub.asked


def test_a_large_text_is_left_to_the_service(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    assert client.post("/ask", data={"text": "x" * 2_000_000}).status_code == 200
    assert len(stub.asked[0].body["text"]) == 2_000_000


def test_the_service_is_down(stub: StubApi, client: FlaskClient) -> None:
    stub.down()
    answer = client.post("/ask", data={"text": "x"})
    assert (answer.status_code, answer.get_json()["code"]) == (502, "api_unreachable")


def test_the_model_is_asked_for_again_when_the_service_comes_back(
    stub: StubApi, client: FlaskClient
) -> None:
    serve(stub, SENTIMENT)
    stub.down()
    assert 'data-view="photos"' in client.get("/").text
    stub.up()
    assert client.get("/status").get_json()["model"]["view"] == "text"
    assert 'data-view="text"' in client.get("/").text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_the_test_address(stub: StubApi, client: FlaskClient, model: dict[str, Any]) -> None:
    serve(stub, model)
    page = client.get("/test")
    assert page.status_code == 200
    assert "The page, the API and the model work together." in page.text
    assert stub.asked[0].body.keys() == (model["example"] or {"inputs": 0}).keys()


def test_a_model_without_an_example_cannot_be_tested(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, {**FLOWERS, "example": None})
    page = client.get("/test")
    assert page.status_code == 400
    assert "This model has no example request." in page.text


def shown(html: str, kind: str) -> str:
    """Returns one kind of the code that visitors copy."""
    return unescape(html.partition(f'<code class="{kind}">')[2].partition("</code>")[0])


@pytest.mark.parametrize("program", ["python", "curl"])
@pytest.mark.parametrize("text", ['It\'s a "wonderful" $day, \\o/', "w" * 5000], ids=["short", "long"])
def test_the_code_to_copy_asks_as_the_page_does(
    stub: StubApi, tmp_path: Path, text: str, program: str
) -> None:
    if program == "curl" and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    serve(stub, SENTIMENT)
    with page_app(stub, api_key="k-1") as app:
        page = app.test_client().post("/ask", data={"text": text}).get_json()["page"]
    code = shown(page["html"], program)
    command = [sys.executable, "-c", code] if program == "python" else ["bash", "-c", code]
    (tmp_path / "request.json").write_text(json.dumps({"text": text}))
    env = {**os.environ, "API_KEY": "k-1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    by_page, by_code = stub.asked
    assert (by_code.path, by_code.body) == (by_page.path, by_page.body)
    assert by_code.headers["Authorization"] == "Bearer k-1"

"""The page in front of models that are no classifiers of photos: what it asks, and what it makes of
answers. How it looks and what visitors can do is in tests/browser.
"""

import re
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_app.answers import mark, pieces
from tests.browser.stub_api import Reply, StubApi, error
from tests.browser.stub_models import (
    FLOWERS,
    GRAPH,
    INTENTS,
    MEANINGS,
    READER,
    SEARCH,
    SENTIMENT,
    TAGGER,
    serve,
)

FLOWER = {"name": "rose", "features": "1, 2", "petals": "5", "season": '"spring"', "place": "{}"}
FILLED = {
    "sentiment": {"text": "a wonderful day"},
    "reader": {"question": "Who?", "context": "The cook is Ann Lee."},
    "flowers": FLOWER,
    "sums": {"request": '{"inputs": [{"data": [1, 2, 3]}]}'},
    "meanings": {"text": "a cat", "dimensions": "20", "prompt_name": '"query"'},
    "search": {"query": "Who cooks?", "texts": "Ann cooks", "raw_scores": "false"},
    "tagger": {"text": "Ann lives in Rome.", "aggregation_strategy": '"simple"'},
    "intents": {"text": "The soup was cold.", "candidate_labels": "praise, complaint\nask"},
}
SENT: dict[str, tuple[str, dict[str, Any]]] = {
    "sentiment": ("/predict?top_k=3", FILLED["sentiment"]),
    "reader": ("/predict?top_k=5", {**FILLED["reader"], "allow_no_answer": False}),
    "flowers": (
        "/predict",
        {
            **{"name": "rose", "features": [1, 2], "petals": 5, "season": "spring"},
            **{"wild": False, "photo": "eHg=", "place": {}},
        },
    ),
    "sums": ("/v2/models/sums/infer", {"inputs": [{"data": [1, 2, 3]}]}),
    "meanings": ("/predict", {"text": ["a cat"], "dimensions": 20, "prompt_name": "query"}),
    "search": ("/predict", {"query": "Who cooks?", "texts": ["Ann cooks"], "raw_scores": False}),
    "tagger": ("/predict", {"text": "Ann lives in Rome.", "aggregation_strategy": "simple"}),
    "intents": (
        "/predict",
        {
            **{"text": "The soup was cold.", "multi_label": False},
            "candidate_labels": ["praise", "complaint", "ask"],
        },
    ),
}
VIEWS = {"sentiment": "text", "reader": "question", "flowers": "form", "sums": "tensors"}
VIEWS |= {"meanings": "embedding", "search": "ranking", "tagger": "entities", "intents": "zero-shot"}
MODELS = [SENTIMENT, READER, FLOWERS, GRAPH, MEANINGS, SEARCH, TAGGER, INTENTS]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_a_view_for_every_model(stub: StubApi, client: FlaskClient, model: dict[str, Any]) -> None:
    """The script and a plain form ask the same; what was typed stays, and a test asks the example."""
    name = model["name"]
    serve(stub, {**model, "title": "What <is> this?", "description": "A & B."})
    page = client.get("/").text
    assert '<h1 id="heading">What &lt;is&gt; this?</h1>' in page
    assert "A &amp; B." in page
    assert " style=" not in page
    status = client.get("/status").get_json()["model"]
    assert status["view"] == VIEWS[name]
    assert f'data-shape="{status["shape"]}"' in page

    answer = client.post("/ask", data=FILLED[name], headers={"X-Request-ID": "mine-1"})
    assert (answer.status_code, answer.headers["X-Request-ID"]) == (200, "mine-1")
    page = unescape(client.post("/", data=FILLED[name]).text)
    assert f'<h3 class="card-sentence">{answer.get_json()["page"]["sentence"]}' in page
    assert all(text in page for text in FILLED[name].values())
    assert [(asked.path, asked.body) for asked in stub.asked] == [SENT[name]] * 2
    assert stub.asked[0].headers["X-Request-ID"] == "mine-1"

    assert "The page, the API and the model work together." in client.get("/test").text
    assert stub.asked[-1].body.keys() == (model["example"] or {"inputs": 0}).keys()


def test_lines_without_script(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    stub.answers.extend([error(413, "text_too_long")])
    page = client.post("/", data={"text": "x" * 99 + "\r\n\r\n  a wonderful day \r\nlate"})
    assert page.status_code == 200
    texts = ["x" * 99, "a wonderful day", "late"]
    assert [asked.body for asked in stub.asked] == [{"text": text} for text in texts]
    assert page.text.count('data-state="done"') == 2
    assert "Stub says text_too_long." in page.text


@pytest.mark.parametrize("model", [SENTIMENT, MEANINGS], ids=lambda model: model["name"])
@pytest.mark.parametrize("text", ["", " \r\n\t\r\n", "x\n" * 25])
def test_too_few_and_too_many_lines(
    stub: StubApi, client: FlaskClient, model: dict[str, Any], text: str
) -> None:
    serve(stub, model)
    assert client.post("/", data={"text": text}).status_code == 400
    if model is MEANINGS:  # lines of the others are asked one by one
        assert client.post("/ask", data={"text": text}).status_code == 400
    assert not stub.asked


def test_the_similarity_of_texts(stub: StubApi, client: FlaskClient) -> None:
    """Cosines of any vectors, those of zeros too; the JSON shows the first numbers."""
    serve(stub, MEANINGS)
    vectors = [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [-4.0, 3.0], [-3.0, -4.0], [4.0, 3.0]]
    stub.usual = Reply(200, [{"embedding": each * 20} for each in vectors])
    page = client.post("/ask", data={"text": "a\n<b>\nc\nd\ne\nf"}).get_json()["page"]
    assert page["sentence"] == "Texts 1 and 3 are the closest: 1.00"
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", page["html"])
    numbers = [re.findall(r">([\u22120-9.]+)</td>", row) for row in rows]
    assert numbers[0] == ["1.00", "0.00", "1.00", "0.00", "\u22121.00", "0.96"]
    assert [list(column) for column in zip(*numbers, strict=True)] == numbers
    assert "&lt;b&gt;" in rows[1]
    pairs = [unescape(pair) for pair in re.findall(r"bar-label\">(.*?)<", page["html"])]
    assert pairs[:2] == ["“a” and “c”", "“a” and “f”"]
    assert len(pairs) == 5
    assert '[ 3.0, 4.0, 3.0, 4.0, 3.0, "..." ]' in unescape(page["html"])


def test_texts_are_sorted_by_their_scores(stub: StubApi, client: FlaskClient) -> None:
    """Bars have the scores' length, raw ones that of their sigmoid; a text that was cut is named."""
    serve(stub, SEARCH)
    typed = {"query": "Who?", "texts": "a\n\n<b>\n c"}
    for raw, scores, widths in (
        ("", [2.0, 0.004, -800.0], ["88.08", "50.1", "0.0"]),  # the model's scores may be raw
        ("true", [2.0, 0.004, -800.0], ["88.08", "50.1", "0.0"]),
        ("", [1.0, 0.004, 0.0], ["100.0", "0.4", "0.0"]),
    ):
        ranks = zip((2, 0, 1), scores, strict=True)
        ranking = [{"index": index, "score": score} for index, score in ranks]
        stub.usual = Reply(200, {"ranking": ranking}, {"X-Input-Truncated": "true"})
        page = client.post("/ask", data={**typed, "raw_scores": raw}).get_json()["page"]
        assert page["sentence"] == f"Text 3 fits best: {scores[0]:.2f}"
        assert page["note"].startswith("The text was too long.")
        assert re.findall(r"bar-label\">(.*?)<", page["html"]) == [" c", "a", "&lt;b&gt;"]
        assert re.findall(r"rect width=\"(.*?)%", page["html"]) == widths
    assert stub.asked[0].body == {"query": "Who?", "texts": ["a", "<b>", " c"]}


def marks(page: dict[str, Any]) -> list[tuple[str, ...]]:
    """Tint, title, text and label of each marked part of a text."""
    mark = r'<mark class="(\S+)" title="(.*?)">(.*?)<span class="tag"> (.*?)<'
    return [tuple(map(unescape, found)) for found in re.findall(mark, page["html"], re.DOTALL)]


def test_entities_are_marked(stub: StubApi, client: FlaskClient) -> None:
    """Offsets are code points. A label has its tint, whether tokens are joined or not."""
    serve(stub, TAGGER)
    typed = {
        "text": "\U0001f600 <Ann>\r\nin \U0001f1eb\U0001f1f7 Rome",
        "aggregation_strategy": '"simple"',
    }
    page = client.post("/ask", data=typed).get_json()["page"]
    assert page["sentence"] == "2 entities"
    assert marks(page) == [("tint-1", "PER 98 %", name, "PER") for name in ("Ann", "Rome")]
    assert "\U0001f600 &lt;<mark" in page["html"]
    tints = {}
    for strategy, prefix in (("simple", ""), ("none", "B-")):
        typed = {"text": "Ann, in Rome with Bo", "aggregation_strategy": f'"{strategy}"'}
        page = client.post("/ask", data=typed).get_json()["page"]
        tints[strategy] = [tint for tint, *_ in marks(page)]
        assert page["sentence"] == "3 entities"
        assert [label for *_, label in marks(page)] == [
            f"{prefix}{each}" for each in ("PER", "LOC", "PER")
        ]
        assert re.findall(r">([\w-]+)</mark> (\d)", page["html"]) == [
            (f"{prefix}PER", "2"),
            (f"{prefix}LOC", "1"),
        ]
    assert tints["simple"] == tints["none"]
    assert len(set(tints["none"])) == 2
    page = client.post("/ask", data={"text": "nobody", "aggregation_strategy": '"simple"'}).get_json()
    assert page["page"]["sentence"] == "No entities found"


def test_spans_that_overlap() -> None:
    """Several tokens may be one character, and a label may be any text."""
    spans = [("a-b", 3, 5), ("<i>", 4, 8), ("a-b", 3, 5), ("", 9, 9)]
    entities = [{"entity": name, "score": 1, "start": start, "end": end} for name, start, end in spans]
    cut = mark("0123456789", entities, ["a-b"])
    parts = [(piece.text, piece.label, piece.kind) for piece in cut]
    assert parts == [
        *(("012", "", ""), ("34", "a-b", "tint-0"), ("567", "<i>", "tint-1"), ("89", "", ""))
    ]
    candidates = [{"start": 4, "end": 7}, {"start": 2, "end": 5}, {"start": 6, "end": 9}]
    found = [(piece.text, piece.kind) for piece in pieces("0123456789", candidates)]
    assert found == [("01", ""), ("23", "other"), ("456", "best"), ("78", "other"), ("9", "")]


SIGMOID = {**SENTIMENT, "text": {"activation": "sigmoid"}}
COUNT = {**SENTIMENT, "task": "token-count", "labels": [], "limits": {}}
TOP = [{"label": name, "probability": p} for name, p in (("a", 0.9), ("b", 0.6), ("c", 0.1))]
SEVERAL = {"candidate_labels": "ask, praise", "multi_label": "yes"}


@pytest.mark.parametrize(
    ("model", "body", "typed", "said"),
    [
        (SIGMOID, {"prediction": "a", "probability": 0.9, "top": TOP}, {}, ("a 90 %, b 60 %", True)),
        (
            SIGMOID,
            {"prediction": "c", "probability": 0.1, "top": TOP[2:]},
            *({}, ("None of these; closest: c 10 %", True)),
        ),
        (READER, {"answer": "Ann", "score": 1.25, "start": 12, "end": 15}, {}, ("Ann, 100 %", True)),
        (
            READER,
            {"answer": "Ann", "score": 0.31, "start": 12, "end": 15},
            *({}, ("Not sure: Ann 31 %", False)),
        ),
        (COUNT, {"tokens": 3, "words": ["a", "b"]}, {}, ("Tokens: 3", True)),
        (INTENTS, None, {"candidate_labels": "ask, praise"}, ("ask, 67 %", True)),
        (INTENTS, None, SEVERAL, ("ask 100 %, praise 50 %", True)),
        (INTENTS, None, {"candidate_labels": "praise"}, ("praise 100 %", True)),
        (INTENTS, None, {"candidate_labels": "a\n\n bb ,ccc"}, ("a, 57 %", True)),
        (
            INTENTS,
            {"labels": ["a", "b"], "scores": [0.4, 0.3]},
            *({"candidate_labels": "a, b"}, ("Not sure: a 40 %, b 30 %", False)),
        ),
    ],
)
def test_what_an_answer_says(
    stub: StubApi,
    client: FlaskClient,
    model: dict[str, Any],
    body: object,
    typed: dict[str, str],
    said: tuple[str, bool],
) -> None:
    serve(stub, {**model, "task": SENTIMENT["task"] if model is COUNT else model["task"]})
    stub.model = model
    if body:
        stub.usual = Reply(200, body, {"X-Input-Truncated": "true"})
    answer = client.post("/ask", data=FILLED[model["name"]] | typed)
    page = answer.get_json()["page"]
    assert (page["sentence"], page["sure"]) == said
    if model is SIGMOID:
        assert "The text was too long." in page["note"]
    assert answer.headers.get("X-Input-Truncated") == ("true" if body else None)
    text = client.get("/").text
    assert ("classes, of which none, one or several may fit:" in text) == (model is SIGMOID)
    assert ('data-view="form"' in text) == (model is COUNT)


def test_labels_are_needed(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, INTENTS)
    answer = client.post("/ask", data={"text": "x", "candidate_labels": " ,\n"})
    advice = answer.get_json()["page"]["advice"]
    assert (answer.status_code, advice) == (400, "Labels: fill in this field.")


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (READER, {"answer": "Ann", "score": 0.9, "start": 3, "end": 99}),
        (READER, {"answer": "Ann", "score": 0.9, "start": -1, "end": 1}),
        (READER, {"answer": "Ann", "score": 0.9, "start": 3, "end": float("inf")}),
        (READER, {"answer": "Ann"}),
        (READER, []),
        (READER, None),
        (MEANINGS, [{"embedding": [1.0, 2.0]}, {"embedding": [1.0]}]),
        (MEANINGS, [{"embedding": []}]),
        (MEANINGS, [{"embedding": [float("nan"), 1.0]}]),
        (MEANINGS, [{"embedding": ["one"]}]),
        (MEANINGS, {"vector": [1.0]}),
        (MEANINGS, "AAAA"),
        (SEARCH, {"ranking": []}),
        (SEARCH, {"ranking": [{"index": 1, "score": 0.5}]}),
        (SEARCH, {"ranking": [{"index": -1, "score": 0.5}]}),
        (SEARCH, {"ranking": [{"index": 0, "score": "much"}]}),
        (SEARCH, {"ranking": [{"index": 0, "score": float("nan")}]}),
        (SEARCH, {"ranking": {"index": 0}}),
        (TAGGER, {"entities": [{"entity": "PER", "score": 0.5, "start": 0, "end": 19}]}),
        (TAGGER, {"entities": [{"entity": "PER", "score": float("nan"), "start": 0, "end": 2}]}),
        (TAGGER, {"entities": [{"score": 0.5, "start": 0, "end": 2}]}),
        (TAGGER, {"entities": None}),
        (TAGGER, []),
        (INTENTS, {"labels": [], "scores": []}),
        (INTENTS, {"labels": ["ask"], "scores": [0.1, 0.2]}),
        (INTENTS, {"labels": ["ask"], "scores": ["much"]}),
        (INTENTS, {"prediction": "entailment", "probability": 0.5}),
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
    answer = client.post("/ask", data=FILLED[model["name"]])
    assert (answer.status_code, answer.get_json()["code"]) == (502, "api_garbage")


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


@pytest.mark.parametrize("metadata", [[], {"inputs": 3}, {"inputs": [{}]}, {"inputs": [{"shape": "x"}]}])
def test_strange_metadata_is_survived(stub: StubApi, client: FlaskClient, metadata: Any) -> None:
    serve(stub, GRAPH)
    stub.metadata = metadata
    assert client.get("/").status_code == 200


def test_a_large_text_is_left_to_the_service(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, SENTIMENT)
    assert client.post("/ask", data={"text": "x" * 2_000_000}).status_code == 200
    assert len(stub.asked[0].body["text"]) == 2_000_000


def test_a_model_without_an_example_cannot_be_tested(stub: StubApi, client: FlaskClient) -> None:
    serve(stub, {**FLOWERS, "example": None})
    page = client.get("/test")
    assert page.status_code == 400
    assert "This model has no example request." in page.text

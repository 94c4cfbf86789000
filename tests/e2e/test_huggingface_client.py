"""Hugging Face's Inference API, as `huggingface_hub.InferenceClient` calls it; hostile bodies."""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import pictures, text_service

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()
TEXT = "the soup was wonderful and warm"
OWN = ("/models/{}", "/predict/{}")
"""Paths with the name of a model."""

Json = Any


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model of every task; the default one classifies texts."""
    models = "feelings,topics,dishes,questions,judge,words,food11"
    with text_service.running(tmp_path_factory.mktemp("models"), models) as url:
        yield url


def post(url: str, content: Json) -> Json:
    """Returns a good answer to JSON, or to the bytes of a body."""
    body = {"data": content} if isinstance(content, bytes) else {"json": content}
    response = requests.post(url, timeout=60, **body)
    assert response.status_code == 200, response.text
    return response.json()


def best(url: str, name: str, **fields: Json) -> list[tuple[str, float]]:
    return [
        (each["label"], each["probability"]) for each in post(f"{url}/predict/{name}", fields)["top"]
    ]


def pairs(answer: Json) -> list[tuple[str, float]]:
    """Returns the classes that the client has read."""
    return [(each["label"], each["score"]) for each in answer]


@pytest.mark.parametrize("path", ["/", *OWN])
def test_text_classification(url: str, path: str) -> None:
    client = InferenceClient(url + path.format("feelings"))
    expected = best(url, "feelings", text=TEXT, top_k=3)
    assert pairs(client.text_classification(TEXT)) == expected
    assert pairs(client.text_classification(TEXT, top_k=2, function_to_apply="softmax")) == expected[:2]
    assert pairs(client.text_classification(TEXT, top_k=99)) == expected


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize(
    "options", [{}, {"multi_label": True}, {"hypothesis_template": "It is {}.", "multi_label": False}]
)
def test_zero_shot_classification(url: str, path: str, options: Json) -> None:
    labels = ["warm", "awful", "the table"]
    found = InferenceClient(url + path.format("topics")).zero_shot_classification(
        TEXT, labels, **options
    )
    native = post(f"{url}/predict/topics", {"text": TEXT, "candidate_labels": labels, **options})
    assert pairs(found) == [*zip(native["labels"], native["scores"], strict=True)]


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"aggregation_strategy": "none"}, {"aggregation_strategy": "max", "stride": 2}),
        {"ignore_labels": ["O", "DISH"]},
    ],
)
def test_token_classification(url: str, path: str, options: Json) -> None:
    found = InferenceClient(url + path.format("dishes")).token_classification(TEXT, **options)
    fields = {"aggregation_strategy": "simple", **options}
    native = post(f"{url}/predict/dishes", {"text": TEXT, **fields})["entities"]
    assert [{name: entity[name] for name in native[0]} for entity in found] == native


@pytest.mark.parametrize("path", OWN)
def test_question_answering(url: str, path: str) -> None:
    question, client = "what was it?", InferenceClient(url + path.format("questions"))
    fields = {"question": question, "context": TEXT}
    native = post(f"{url}/predict/questions", {**fields, "top_k": 3})["top"]
    assert client.question_answering(question, TEXT) == native[0]
    assert client.question_answering(question, TEXT, top_k=3) == native
    empty = client.question_answering(question, TEXT, top_k=20, handle_impossible_answer=True)
    assert "" in [each["answer"] for each in empty]


@pytest.mark.parametrize("path", OWN)
def test_features_and_similarity(url: str, path: str) -> None:
    client = InferenceClient(url + path.format("words"))
    native = [row["embedding"] for row in post(f"{url}/predict/words", {"text": [TEXT, "the table"]})]
    assert client.feature_extraction(TEXT)[0] == pytest.approx(np.array(native[0], "f4"))
    plain = post(f"{url}/predict/{text_service.ALIAS}", {"text": TEXT, "normalize": False})["embedding"]
    assert client.feature_extraction(TEXT, normalize=False)[0] == pytest.approx(np.array(plain, "f4"))
    for more in ({"parameters": {"normalize": False}}, {"normalize": False, "parameters": {}}):
        assert post(url + path.format("words"), {"inputs": [TEXT], **more}) == [plain]
    assert client.feature_extraction(TEXT * 99, truncation_direction="left").shape == (1, 4)
    cosines = client.sentence_similarity(TEXT, other_sentences=[TEXT, "the table"])
    assert cosines == pytest.approx([1, float(np.dot(*native))], abs=1e-5)
    sentences = {"source_sentence": TEXT, "sentences": [TEXT, "the table"]}  # as the client for Node
    for address, named in ((url + path.format("words"), {}), (f"{url}/", {"model": "words"})):
        assert post(address, {"inputs": sentences, **named}) == pytest.approx(cosines, abs=1e-6)


@pytest.mark.parametrize("path", ["/", *OWN])
def test_image_classification(url: str, path: str, tmp_path: Path) -> None:
    client = InferenceClient(url + path.format("food11"))
    expected = best(url, "food11", image=ENCODED, top_k=5)
    (file := tmp_path / "photo.jpg").write_bytes(PHOTO)
    if path.startswith("/predict"):  # the same bytes are the native API's
        assert post(url + path.format("food11"), PHOTO)["prediction"] == expected[0][0]
    else:
        for photo in (PHOTO, file, str(file)):
            assert pairs(client.image_classification(photo)) == expected
    if path != "/":
        assert pairs(client.image_classification(PHOTO, top_k=2)) == expected[:2]


def test_several_inputs(url: str) -> None:
    texts = [TEXT, "awful and dull"]
    expected: Json = [post(f"{url}/models/feelings", {"inputs": text})[0] for text in texts]
    assert post(f"{url}/models/feelings", {"inputs": texts}) == expected
    pair = {"text": TEXT, "text_pair": texts[1]}
    assert pairs(post(f"{url}/models/feelings", {"inputs": pair})[0]) == best(
        url, "feelings", **pair, top_k=3
    )
    for name in ("dishes", "food11"):
        given = [ENCODED, ENCODED] if name == "food11" else texts
        answers: Json = [post(f"{url}/models/{name}", {"inputs": each}) for each in given]
        assert post(f"{url}/models/{name}", {"inputs": given}) == answers
    parameters = {"candidate_labels": ["warm", "dull"]}
    both = post(f"{url}/models/topics", {"inputs": texts, "parameters": parameters})
    assert [len(each) for each in both] == [2, 2]
    assert pairs(post(f"{url}/models/topics", {"inputs": TEXT})[0]) == best(
        url, "topics", text=TEXT, top_k=3
    )


def test_whose_a_body_without_a_name_is(url: str) -> None:
    flat = post(f"{url}/", {"inputs": TEXT})
    assert post(f"{url}/", {"inputs": TEXT, "parameters": {}}) == [flat]
    assert post(f"{url}/", {"query": "soup", "texts": [TEXT], "model": "judge"})[0]["index"] == 0
    expected = post(f"{url}/models/dishes", {"inputs": TEXT})
    for more in ({}, {"parameters": None}, {"parameters": {}, "options": {"wait_for_model": True}}):
        assert post(f"{url}/", {"inputs": TEXT, "model": "dishes", **more}) == expected


@pytest.mark.parametrize(
    ("name", "inputs", "parameters", "words"),
    [
        ("feelings", TEXT, {"function_to_apply": "none"}, "function_to_apply must be softmax"),
        ("feelings", TEXT, {"top_k": 0}, "top_k must be at least 1"),
        ("feelings", TEXT, {"return_all_scores": True}, "return_all_scores"),
        ("feelings", 1, {}, "Expected `str`, got `int`"),
        ("feelings", None, {}, "Expected `str`, got `null`"),
        ("feelings", [{"text": TEXT}], {}, "Expected `str`"),
        ("feelings", TEXT, [], "parameters"),
        ("questions", TEXT, {}, "missing required field `context`"),
        ("questions", {"question": "a", "context": TEXT}, {"max_answer_len": 9}, "max_answer_len"),
        ("words", {"source_sentence": TEXT}, {}, "sentences"),
        ("food11", "bm90IGFuIGltYWdl", {}, "image"),
        ("food11", "%", {}, "base64"),
        ("judge", TEXT, {}, "the model judge is not for"),
        ("nobody", TEXT, {}, "there is no model 'nobody'"),
    ],
)
def test_what_is_refused_in_words(
    url: str, name: str, inputs: Json, parameters: Json, words: str
) -> None:
    body = {"inputs": inputs, "parameters": parameters}
    response = requests.post(f"{url}/models/{name}", json=body, timeout=60)
    assert 400 <= response.status_code < 500
    assert words in response.json()["error"]


def test_the_client_says_what_is_wrong(url: str) -> None:
    with pytest.raises(HfHubHTTPError, match="top_k must be at least 1"):
        InferenceClient(f"{url}/models/feelings").text_classification(TEXT, top_k=-1)
    with pytest.raises(HfHubHTTPError, match="not a JPEG"):
        InferenceClient(f"{url}/").image_classification(b"no image")


# hostile bodies

SENTENCES = {"source_sentence": TEXT, "sentences": ["dull"]}
MANY = {"candidate_labels": ["a"], "multi_label": True, "hypothesis_template": "{}"}
EMBED = {"inputs": ["soup"], "truncate": True, "truncation_direction": "Left", "normalize": False}
PAIRS = {"query": "soup", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}
ONE_LABEL = {"function_to_apply": "softmax", "top_k": 1}
ASKED = {"question": "a", "context": TEXT}
BODIES: dict[str, list[tuple[str, Json]]] = {
    "openai": [
        ("/v1/embeddings", {"input": ["a"], "dimensions": 2, "encoding_format": "base64"}),
        ("/embeddings", {"input": [[1, 2]], "model": "words"}),
        ("/openai/deployments/words/embeddings", {"input": ["a"], "model": "judge"}),
    ],
    "tei": [
        ("/embed", EMBED),
        ("/similarity", {"inputs": SENTENCES, "parameters": {"prompt_name": None}}),
        ("/rerank", {"query": "soup", "texts": ["dull"], "raw_scores": True, "return_text": True}),
        ("/predict", {"inputs": [["soup"], ["a", "b"]], "raw_scores": False}),
        ("/tokenize", {"inputs": ["soup"], "add_special_tokens": False, "prompt_name": None}),
        ("/decode", {"ids": [[1, 2]], "skip_special_tokens": True}),
        ("/invocations", {"inputs": "soup", "dimensions": 2, "model": "words"}),
    ],
    "rerank": [
        ("/v1/rerank", PAIRS),
        ("/v2/rerank", {"query": "soup", "documents": ["a"], "model": "judge"}),
        ("/invocations", {"text_pairs": [["a", "b"]], "model": "judge"}),
        ("/score", {"text_1": ["soup"], "text_2": ["a", "b"], "queries": None, "documents": "b"}),
    ],
    "ollama": [
        ("/api/embed", {"input": ["a"], "model": "words:latest", "truncate": True, "dimensions": 2}),
        ("/api/embeddings", {"prompt": "a", "name": "words", "options": {}}),
        ("/api/show", {"model": "words", "name": "words"}),
    ],
    "weaviate": [
        ("/vectors", {"text": "a", "config": {"task_type": "query", "dimensions": 2}}),
        ("/vectors", {"texts": ["a", "b"], "config": {"pooling_strategy": "cls"}, "model": "words"}),
    ],
    "huggingface": [
        ("/", {"inputs": TEXT, "parameters": {"top_k": 2}, "model": "feelings"}),
        ("/", {"inputs": SENTENCES, "parameters": {}, "model": "words"}),
        ("/", {"inputs": TEXT, "model": "dishes"}),
        ("/models/feelings", {"inputs": [TEXT], "parameters": ONE_LABEL}),
        ("/models/topics", {"inputs": TEXT, "parameters": MANY}),
        (
            "/predict/dishes",
            {"inputs": TEXT, "parameters": {"aggregation_strategy": "max", "stride": 1}},
        ),
        (
            "/models/questions",
            {"inputs": {"question": "a", "context": TEXT}, "parameters": {"top_k": 2}},
        ),
        ("/models/words", {"inputs": [TEXT], "dimensions": 2, "parameters": {"normalize": True}}),
        ("/models/food11", {"inputs": ENCODED, "parameters": {"top_k": 2}}),
    ],
}
"""Protocol -> paths, each with a good body."""

VALUES = [
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1e999", b"NaN", b"-Infinity", b"9" * 5000, b"2147483648"),
    *(b'""', b'" "', b'"a"', b'"\\u0000"', b'"\\ud800"', b'"\xff"', b'"\\', b'"%s"' % (b"a " * 150_000)),
    *(b"[]", b"[null]", b"[1]", b'["a", 1]', b'[[["a"]]]', b"[[], []]", b"[" * 9999 + b"]" * 9999),
    *(b"{}", b'{"text": 1}', b'{"text": "a"}', b'{"a":' * 9999 + b"1" + b"}" * 9999),
    *(b"[%s1]" % (b"1," * 10**6), b'[%s""]' % (b'"",' * 10**6), b'["a",' * 999 + b"1" + b"]" * 999),
]
"""JSON, and what is not quite."""


MORE = [b"", b', "": 1', b', "inputs": 1', b', "parameters": []', b', "model": [], "model": "x"', b", ,"]


@st.composite
def hostile(draw: st.DrawFn, good: Json) -> bytes:
    """Returns JSON in which some values are others."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(VALUES))
    if not isinstance(good, dict):
        return json.dumps(good).encode()
    members = [b'"%s": %s' % (name.encode(), draw(hostile(value))) for name, value in good.items()]
    return b"{%s%s}" % (b", ".join(members), draw(st.sampled_from(MORE)))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BODIES)
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_other_bodies_get_an_answer_or_an_error_of_the_client(
    url: str, protocol: str, data: st.DataObject
) -> None:
    path, good = data.draw(st.sampled_from(BODIES[protocol]))
    body = data.draw(hostile(good))
    body = body[: -data.draw(st.sampled_from([0, 0, 0, 1, 9])) or None]
    content, is_packed = data.draw(
        st.sampled_from([(body, False), (gzip.compress(body, 1), True), (body, True)])
    )
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    response = requests.post(url + path, data=content, headers=headers, timeout=60)
    assert 200 <= response.status_code < 500, (path, body[:300], response.text[:300])
    response.json()

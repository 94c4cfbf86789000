"""Containers as Amazon SageMaker and Google Vertex AI call them: `/ping`, `/invocations`, AIP_...."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from smallplates.errors import ConfigurationError
from smallplates.settings import Settings
from smallplates.web.dialects import cloud
from tests import graphs, pictures, servers, text_service

TEXT, TEXTS = "the soup was wonderful", ["the soup was wonderful", "awful and dull"]
PREDICT, HEALTH = "/v1/endpoints/7/deployedModels/8:predict", "/healthy"
VERTEX = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": HEALTH}
Json = Any


def post(url: str, content: Json = None, data: bytes | None = None, kind: str = "") -> requests.Response:
    body = json.dumps(content).encode() if data is None else data
    headers = {"Content-Type": kind} if kind else {}
    return requests.post(url, data=body, headers=headers, timeout=60)


def answer(url: str, content: Json = None, **more: Any) -> Json:
    response = post(url, content, **more)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A classifier; others are served beside it, and no other protocol."""
    folder, models = tmp_path_factory.mktemp("texts"), "feelings,words,judge"
    with text_service.running(folder, models, SERVING_PROTOCOLS="cloud", **VERTEX) as url:
        yield url


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All protocols, with Vertex AI's requests at `/predict`."""
    folder = tmp_path_factory.mktemp("images")
    route = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/ping"}
    with text_service.running(folder, "food11,words,judge", **route) as url:
        yield url


def started(made: Path) -> Iterator[str]:
    with servers.api("fastapi_onnx", {"SERVING_MODEL_DIR": str(made), **servers.UNMEASURED}) as url:
        yield url


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from started(graphs.saved(graphs.two_by_two(), tmp_path_factory.mktemp("graph") / "sums"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python class."""
    folder = tmp_path_factory.mktemp("own")
    described = {"name": "own", "version": "1", "task": "tests.fake.python_task:Obedient"}
    (folder / "model.json").write_text(json.dumps(described))
    yield from started(folder)


@pytest.mark.parametrize("path", ["/ping", HEALTH])
def test_health(texts: str, path: str) -> None:
    assert requests.get(texts + path, timeout=60).status_code == 200


@pytest.mark.parametrize("path", ["/invocations", PREDICT])
@pytest.mark.parametrize("kind", ["", "application/json", "application/octet-stream", "text/csv"])
def test_any_content_type(texts: str, path: str, kind: str) -> None:
    first = answer(f"{texts}/predict", {"text": TEXT})
    assert answer(texts + path, {"text": TEXT}, kind=kind) == first
    assert answer(texts + path, data=TEXT.encode(), kind=kind) == first
    assert answer(texts + path, {"text": TEXTS}, kind=kind)[0] == first
    assert answer(texts + path, {"instances": [TEXT]}, kind=kind) == {"predictions": [first]}


def test_instances_of_texts(texts: str) -> None:
    several = answer(f"{texts}/predict?top_k=2", {"text": TEXTS})
    rows = [TEXTS[0], {"text": TEXTS[1]}]
    for top_k in (2, 2.0):  # Vertex AI's clients have only floats
        found = answer(texts + PREDICT, {"instances": rows, "parameters": {"top_k": top_k}})
        assert found == {"predictions": several}
    assert answer(texts + PREDICT, {"instances": TEXTS, "parameters": None})["predictions"]
    pair = {"text": TEXT, "text_pair": "dull"}
    same = answer(texts + PREDICT, {"instances": [TEXT], "parameters": {"text_pair": "dull"}})
    assert same["predictions"] == [answer(f"{texts}/predict", pair)]


def test_the_bodies_of_hugging_faces_containers(texts: str) -> None:
    labels = answer(f"{texts}/invocations", {"inputs": TEXT, "parameters": {"top_k": 1}})
    assert labels[0][0]["label"] == answer(f"{texts}/predict", {"text": TEXT})["prediction"]
    pairs = {"query": "soup", "texts": TEXTS}
    ranks = answer(f"{texts}/invocations", {**pairs, "model": "judge"})
    assert ranks == answer(f"{texts}/predict/judge", pairs)["ranking"]
    (vector,) = answer(f"{texts}/invocations", {"inputs": TEXT, "model": "words"})
    assert vector == pytest.approx(answer(f"{texts}/predict/words", {"text": TEXT})["embedding"])


def test_the_pairs_of_langchains_cross_encoder(texts: str) -> None:
    pairs = [("soup", text) for text in (*TEXTS, "soup " * 100)]
    scores = answer(f"{texts}/invocations", {"text_pairs": pairs})["scores"]
    asked = {"query": "soup", "texts": [text for _, text in pairs], "truncate": True}
    ranks = answer(f"{texts}/predict/judge", asked)["ranking"]
    assert {rank["index"]: rank["score"] for rank in ranks} == pytest.approx(dict(enumerate(scores)))


def test_images(images: str) -> None:
    data = pictures.jpeg()
    encoded = base64.b64encode(data).decode()
    first = answer(f"{images}/predict", data=data, kind="image/jpeg")
    for kind in ("image/jpeg", "application/x-image", ""):
        assert answer(f"{images}/invocations", data=data, kind=kind) == first
    rows = [{"b64": encoded}, {"image": encoded}, encoded]
    for path in ("/invocations", "/predict"):
        found = answer(images + path, {"instances": rows}, kind="application/json")
        assert found == {"predictions": [first] * 3}
    assert answer(f"{images}/predict", {"image": encoded}) == first
    assert len(answer(f"{images}/invocations", {"inputs": "soup"})[0]) == text_service.DIMENSIONS


def test_a_graph_that_takes_tensors(graph: str) -> None:
    named, rows = f"{graph}/v1/models/sums:predict", [[1, 2], [3, 4]]
    for content in ({"instances": [{"a": x, "b": x} for x in rows]}, {"inputs": {"a": rows, "b": rows}}):
        assert answer(f"{graph}/invocations", content) == answer(named, content)
    refused = post(f"{graph}/invocations", {"instances": [1]})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")


def test_a_python_class(own: str) -> None:
    one = answer(f"{own}/predict", {"number": 1})
    assert answer(f"{own}/invocations", {"number": 1}) == one
    more = {"instances": [{"number": 1}], "parameters": {"padding": "a"}}
    assert answer(f"{own}/invocations", more) == {"predictions": [one]}
    for wrong in ([1], [{"number": "a"}]):
        assert post(f"{own}/invocations", {**more, "instances": wrong}).status_code == 422


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ({"instances": []}, 422, "SERVING_MAX_REQUEST_ITEMS"),
        ({"instances": TEXT}, 422, "instances"),
        ({"instances": None}, 422, "instances"),
        ({"instances": [""]}, 400, "empty"),
        ({"instances": [1]}, 422, "element 0"),
        ({"instances": [TEXT, {"words": TEXT}]}, 422, "element 1"),
        ({"instances": [{"b64": "c291cA=="}]}, 422, "unknown field"),
        ({"instances": [{"text": TEXTS}]}, 422, "several instances"),
        ({"instances": [TEXTS]}, 422, "several instances"),
        ({"instances": [{}]}, 422, "text"),
        ({"instances": [TEXT], "parameters": {"topk": 3}}, 422, "top_k"),
        ({"instances": [TEXT], "parameters": {"top_k": 9}}, 422, "from 1 to 3"),
        ({"instances": [TEXT], "parameters": {"top_k": 1.5}}, 422, "top_k"),
        ({"instances": [TEXT], "parameters": []}, 422, "parameters"),
        ({"instances": [{"text": TEXT, "top_k": 1}, TEXT]}, 422, "in parameters"),
        ({"instances": [0] * 300_000}, 422, "elements"),
        ({"instances": ["a"] * 5000}, 422, "SERVING_MAX_REQUEST_ITEMS"),
        ({"inputs": 3}, 422, ""),
        ({"text": 3}, 422, "text"),
        ({"words": TEXT}, 422, "text"),
        ({"text_pairs": []}, 422, "SERVING_MAX_REQUEST_ITEMS"),
        ({"text_pairs": [["a", "b", "c"]]}, 422, "text_pairs"),
        ({"text_pairs": [["a", ""], ["", "b"]]}, 400, "empty"),
        ({"text_pairs": [["a", "b"]], "model": "words"}, 424, "ranking"),
    ],
)
@pytest.mark.parametrize("path", ["/invocations", PREDICT])
def test_what_is_refused(texts: str, path: str, content: Json, status: int, words: str) -> None:
    response = post(texts + path, content)
    assert (response.status_code, set(response.json())) == (status, {"error", "error_type"})
    assert words in response.json()["error"], response.text


@pytest.mark.parametrize("body", [b"", b"{", b'{"instances": [', b"\xff", b'{"instances": ["\\ud800"]}'])
def test_bodies_that_cannot_be_read(texts: str, body: bytes) -> None:
    assert post(f"{texts}/invocations", data=body).status_code == 400


@pytest.mark.parametrize("path", ["predict", "/{a}"])
def test_a_variable_that_is_no_path(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("AIP_PREDICT_ROUTE", path)
    with pytest.raises(ConfigurationError, match="AIP_PREDICT_ROUTE must be a path"):
        cloud.paths("/invocations", "AIP_PREDICT_ROUTE")


def test_the_port_of_vertex_ai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVING_PORT", raising=False)
    monkeypatch.setenv("AIP_HTTP_PORT", "8081")
    assert Settings().port == 8081
    assert Settings(port=8082).port == 8082
    monkeypatch.setenv("SERVING_PORT", "8083")
    assert Settings().port == 8083

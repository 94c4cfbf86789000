"""An export of a text classifier, over every protocol."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import smallplates.client
from tests import exports, servers

NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Base URL, and host and port of its gRPC."""
    folder = tmp_path_factory.mktemp("models") / "sentiment"
    exports.saved(folder, exports.word_piece(), {}, names=NAMES)
    port = servers.free_port()
    env = {
        "SERVING_MODEL_DIR": str(folder),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_GRPC_PORT": str(port),
        "SERVING_INSTANCES": "1",
    }
    with servers.api("fastapi_onnx", env) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def url(service: tuple[str, str]) -> str:
    """Its base URL."""
    return service[0]


def post(url: str, path: str, content: Any, **options: Any) -> requests.Response:
    """Posts JSON."""
    return requests.post(f"{url}{path}", json=content, timeout=20, **options)


def post_text(url: str, path: str, body: bytes, content_type: str | None) -> requests.Response:
    """Posts a text as it is."""
    headers = {"Content-Type": content_type} if content_type else {}
    return requests.post(f"{url}{path}", data=body, headers=headers, timeout=20)


# native


def test_json(url: str) -> None:
    answer = post(url, "/predict", {"text": "The soup was wonderful"})
    assert answer.status_code == 200, answer.text
    assert sorted(answer.json()) == ["prediction", "probability"]
    assert answer.json()["prediction"] == "POSITIVE"
    assert "infer;dur=" in answer.headers["Server-Timing"]
    top = post(url, "/predict?top_k=3", {"text": "awful"}).json()["top"]
    assert [candidate["label"] for candidate in top] == ["NEGATIVE", "NEUTRAL", "POSITIVE"]
    assert sum(candidate["probability"] for candidate in top) == pytest.approx(1)
    assert post(url, "/predict?top_k=4", {"text": "awful"}).status_code == 422


def test_a_list_is_answered_in_its_order(url: str) -> None:
    words = ["warm", "awful", "a table, with [bread]", "wonderful"]
    answers = post(url, "/predict", {"text": words}).json()
    expected = ["POSITIVE", "NEGATIVE", "NEUTRAL", "POSITIVE"]
    assert [answer["prediction"] for answer in answers] == expected
    assert post(url, "/predict", {"text": ["warm"]}).json() == answers[:1]
    pairs = {"text": ["warm", "warm"], "text_pair": ["awful", "wonderful"]}
    (first, second) = post(url, "/predict?top_k=2", pairs).json()
    assert (first["prediction"], second["prediction"]) == ("NEGATIVE", "POSITIVE")
    assert len(first["top"]) == 2
    longer = " ".join(["warm"] * 5_000)  # over what the event loop parses
    assert post(url, "/predict", {"text": ["warm", longer]}).json()["detail"].startswith("element 1: ")


def test_a_pair(url: str) -> None:
    pair = {"text": "warm", "text_pair": "awful"}  # the second text counts more
    assert post(url, "/predict", pair).json()["prediction"] == "NEGATIVE"
    alone = {"text": "warm", "text_pair": None}
    assert post(url, "/predict", alone).json()["prediction"] == "POSITIVE"


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; charset=utf-8", None])
def test_the_text_as_the_body(url: str, kind: str | None) -> None:
    answer = post_text(url, "/predict", "Ein warm \u00e9 \U0001f600".encode(), kind)
    assert answer.json()["prediction"] == "POSITIVE"


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"", "text/plain", 400, "invalid_text"),
        (b" \n", "text/plain", 400, "invalid_text"),
        (b"warm \xff", "text/plain", 400, "invalid_text"),
        (b"\xed\xa0\x80", "text/plain", 400, "invalid_text"),
        (b"warm " * 100, "text/plain", 413, "text_too_long"),
        (b"warm " * 10_000, "text/plain", 413, "text_too_long"),
        (b"a" * 1_000_000, "text/plain", 413, "text_too_long"),
        (b"warm", "text/html", 415, "unsupported_media_type"),
        (b"warm", "image/jpeg", 415, "unsupported_media_type"),
        (b"{}", "application/json", 422, "invalid_request"),
        (b"[]", "application/json", 422, "invalid_request"),
        (b'{"text": []}', "application/json", 422, "invalid_request"),
        (b'{"text": ["a", 1]}', "application/json", 422, "invalid_request"),
        (b'{"text": [["a"]]}', "application/json", 422, "invalid_request"),
        (b'{"text": ["a"], "text_pair": "b"}', "application/json", 422, "invalid_request"),
        (b'{"text": ["a", "b"], "text_pair": ["b"]}', "application/json", 422, "invalid_request"),
        (b'{"text": ["a", " "]}', "application/json", 400, "invalid_text"),
        (b'{"text": [%s"a"]}' % (b'"a",' * 10_000), "application/json", 422, "invalid_request"),
        (b'{"text": [%s"a"]}' % (b'"a",' * 1_000_000), "application/json", 422, "invalid_request"),
        (b'{"text": 1}', "application/json", 422, "invalid_request"),
        (b'{"text": ""}', "application/json", 400, "invalid_text"),
        (b'{"text": "a', "application/json", 400, "invalid_json"),
        (b'{"text": "a\xff"}', "application/json", 400, "invalid_json"),
        (b'{"text": "a\\ud83d"}', "application/json", 400, "invalid_text"),
        (b'{"text": "\\udfff"}', "application/json", 400, "invalid_text"),
        (b'{"text": "\\uD83D\\uDE00\\uDE00"}', "application/json", 400, "invalid_text"),
        (b'{"text": "\\ud83d\\ude00', "application/json", 400, "invalid_json"),
        (b'{"text": "\\u200b"}', "application/json", 400, "invalid_text"),
        (b'{"text": ["warm", "\\u0000"]}', "application/json", 400, "invalid_text"),
    ],
)
def test_what_is_no_text(url: str, body: bytes, kind: str, status: int, code: str) -> None:
    answer = post_text(url, "/predict", body, kind)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_texts_of_all_lengths_at_once(url: str) -> None:
    words = ["awful", "bread", "wonderful"]
    texts = [" ".join([words[n % 3]] * (1 + n % 40)) for n in range(120)]
    with ThreadPoolExecutor(16) as pool:
        contents = list(pool.map(lambda text: post(url, "/predict", {"text": text}).json(), texts))
    assert [content["prediction"] for content in contents] == exports.LABELS * 40


def test_the_model_is_described(url: str) -> None:
    described = requests.get(f"{url}/model", timeout=20).json()
    assert (described["name"], described["task"]) == ("sentiment", "text-classification")
    assert described["labels"] == exports.LABELS
    assert described["text"] == {
        "max_tokens": 64,
        "pad_token_id": 0,
        "truncation_side": "right",
        "activation": "softmax",
    }
    limits = {"request_bytes": 20 * 2**20, "text_bytes": 256 * 1024, "tokens": 64}
    assert described["limits"] == limits
    assert post(url, "/predict", described["example"]).status_code == 200
    document = requests.get(f"{url}/openapi.json", timeout=20).json()
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert {"application/json", "text/plain", "application/octet-stream"} == set(content)
    assert post(url, "/predict", content["application/json"]["example"]).status_code == 200
    path = "/v2/models/{model}/infer"
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert post(url, path.format(model="sentiment"), body["example"]).status_code == 200


def test_the_client(url: str) -> None:
    with smallplates.client.Client(url) as client:
        assert client.classify_text("warm", "awful").label == "NEGATIVE"
        assert [score.label for score in client.classify_text("awful", top_k=3).top] == exports.LABELS
    command = [sys.executable, "-m", "smallplates", "ask", "--url", url, "--text", "warm", "--text", " "]
    ended = subprocess.run(command, cwd=servers.ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[:15]) == (1, "warm: POSITIVE ")
    assert ended.stderr.startswith(" : the text is empty (400 invalid_text")


# v2


@pytest.fixture(params=["http", "http json", "grpc"])
def ask(request: pytest.FixtureRequest, service: tuple[str, str]) -> Iterator[Any]:
    """Asks a model with arrays by name; returns all outputs by name."""
    module: Any = tritonclient.grpc if request.param == "grpc" else tritonclient.http
    address = service[1] if request.param == "grpc" else service[0].removeprefix("http://")
    more = {"binary_data": False} if request.param == "http json" else {}
    with module.InferenceServerClient(address) as client:

        def infer(model: str, **arrays: Any) -> dict[str, Any]:
            inputs = []
            for name, array in arrays.items():
                kind = "BYTES" if array.dtype == object else "INT64"
                inputs.append(module.InferInput(name, array.shape, kind))
                inputs[-1].set_data_from_numpy(array, **more)
            answer = client.infer(model, inputs)
            names = ["logits"] if model.endswith("tensor") else ["LABEL", "PROBABILITY"]
            return {name: answer.as_numpy(name) for name in names}

        yield infer


def texts(*values: str | bytes) -> Any:
    """BYTES [N, 1]."""
    return np.array([[value] for value in values], object)


def test_tritons_clients_send_texts(ask: Any) -> None:
    outputs = ask("sentiment", TEXT=texts("warm", "awful", "some bread"))
    assert outputs["LABEL"].tolist() == [[b"POSITIVE"], [b"NEGATIVE"], [b"NEUTRAL"]]
    assert outputs["PROBABILITY"].dtype == np.float32
    outputs = ask("sentiment", TEXT_PAIR=texts("awful"), TEXT=texts("warm"))
    assert outputs["LABEL"].tolist() == [[b"NEGATIVE"]]
    assert ask("sentiment", TEXT=np.array(["warm"], object))["LABEL"].tolist() == [b"POSITIVE"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"TEXT": texts(" ")}, "the text is empty"),
        ({"TEXT": texts("warm " * 90)}, "the text has 92 tokens; at most 64 are accepted"),
        ({"TEXT": texts("warm", "warm " * 90)}, "element 1: the text has 92 tokens"),
        ({"TEXT_PAIR": texts("warm")}, "TEXT"),
        ({"TEXT": texts("warm"), "TEXT_PAIR": texts("a", "b")}, "different numbers"),
        ({"IMAGE": texts("warm")}, "no input 'IMAGE'"),
    ],
)
def test_what_tritons_clients_may_not_send(ask: Any, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(InferenceServerException, match=words):
        ask("sentiment", **arrays)


def test_bytes_that_are_no_text(service: tuple[str, str]) -> None:
    with tritonclient.grpc.InferenceServerClient(service[1]) as client:
        tensor = tritonclient.grpc.InferInput("TEXT", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"\xff"], object))
        with pytest.raises(InferenceServerException, match="not UTF-8"):
            client.infer("sentiment", [tensor])


def test_tensors_are_the_graphs_own(ask: Any) -> None:
    encoding = exports.word_piece().encode("warm", "awful")
    values = (encoding.ids, encoding.attention_mask, encoding.type_ids)
    arrays = {name: np.array([row]) for name, row in zip(NAMES, values, strict=True)}
    (logits,) = ask("sentiment_tensor", **arrays)["logits"]
    assert logits.tolist() == pytest.approx([24, 0, 2.4])
    with pytest.raises(InferenceServerException, match="1 to 64 are accepted"):
        ask("sentiment_tensor", **{name: np.ones((1, 65), int) for name in NAMES})


def test_the_metadata(url: str) -> None:
    metadata = requests.get(f"{url}/v2/models/sentiment", timeout=20).json()
    inputs = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata["inputs"]]
    assert inputs == [("TEXT", "BYTES", [-1, 1]), ("TEXT_PAIR", "BYTES", [-1, 1])]
    outputs = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata["outputs"]]
    assert outputs == [("LABEL", "BYTES", [-1, 1]), ("PROBABILITY", "FP32", [-1, 1])]
    metadata = requests.get(f"{url}/v2/models/sentiment_tensor", timeout=20).json()
    assert [(tensor["name"], tensor["shape"]) for tensor in metadata["inputs"]] == [
        (name, [-1, -1]) for name in NAMES
    ]


def test_a_text_as_the_body_of_v2(url: str) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    path = f"{url}/v2/models/sentiment/infer"
    answer = requests.post(path, data=b"warm soup", headers=headers, timeout=20)
    assert answer.status_code == 200
    assert b"POSITIVE" in answer.content


# TensorFlow Serving


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ({"instances": ["warm", "awful, [1, 2, 3], really"]}, ["POSITIVE", "NEGATIVE"]),
        ({"instances": [{"b64": "d2FybQ=="}]}, ["POSITIVE"]),
        ({"instances": [{"TEXT": "warm"}, {"TEXT": {"b64": "YXdmdWw="}}]}, ["POSITIVE", "NEGATIVE"]),
        ({"instances": [{"TEXT": "warm", "TEXT_PAIR": "awful"}]}, ["NEGATIVE"]),
    ],
)
def test_tensorflow_servings_rows(url: str, content: dict[str, Any], labels: list[str]) -> None:
    answer = post(url, "/v1/models/sentiment:predict", content)
    assert answer.status_code == 200, answer.text
    assert [row["LABEL"] for row in answer.json()["predictions"]] == labels


def test_tensorflow_servings_columns(url: str) -> None:
    for inputs in (["warm", "awful"], {"TEXT": ["warm", "awful"]}):
        outputs = post(url, "/v1/models/sentiment:predict", {"inputs": inputs}).json()["outputs"]
        assert outputs["LABEL"] == ["POSITIVE", "NEGATIVE"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"instances": [1]}, "does not match the schema"),
        ({"instances": [{"TEXT_PAIR": "warm"}]}, "TEXT is missing"),
        ({"instances": [{"b64": "d2FybQ==", "TEXT_PAIR": "warm"}]}, "TEXT is missing"),
        ({"instances": [{"TEXT": "a", "b64": "d2FybQ=="}]}, "b64 is an alias for TEXT"),
        ({"instances": [{"b64": "?"}]}, "TEXT is not valid base64"),
        ({"instances": [{"b64": "/w=="}]}, "not UTF-8"),
        ({"instances": [""]}, "empty"),
    ],
)
def test_rows_that_are_no_texts(url: str, content: dict[str, Any], words: str) -> None:
    answer = post(url, "/v1/models/sentiment:predict", content)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


# TorchServe


def test_torchserves_clients_send_texts(url: str) -> None:
    path = "/predictions/sentiment"
    answers = [
        post_text(url, path, b"warm soup", None),
        post_text(url, path, b"warm soup", "application/x-www-form-urlencoded"),
        post(url, path, {"text": "warm soup"}),
        requests.post(f"{url}{path}", files={"data": b"warm soup"}, timeout=20),
    ]
    for answer in answers:
        content = answer.json()
        assert next(iter(content)) == "POSITIVE"
        assert sorted(content) == exports.LABELS
    assert post_text(url, path, b"\xff", None).json()["code"] == 400
    assert post_text(url, path, b"warm " * 90, None).json()["code"] == 413


# at start


def test_long_texts_are_truncated_where_that_is_set(tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "models" / "short", exports.byte_level(), {"pad_token_id": 1})
    env = {"SERVING_MODEL_DIR": str(folder), "SERVING_LOG_LEVEL": "error", "SERVING_INSTANCES": "1"}
    with servers.api("fastapi_onnx", {**env, "SERVING_LONG_TEXT": "truncate"}) as url:
        answer = post(url, "/predict", {"text": "warm " * 80 + "awful " * 500})
        assert (answer.status_code, answer.json()["prediction"]) == (200, "POSITIVE")
        assert answer.headers["X-Input-Truncated"] == "true"
        assert "X-Input-Truncated" in post(url, "/predict", {"text": ["warm", "warm " * 80]}).headers
        assert "X-Input-Truncated" not in post(url, "/predict", {"text": "warm " * 20}).headers


@pytest.mark.parametrize("web_processes", ["1", "2", "auto"])
def test_a_tokeniser_that_cannot_be_read_is_named(tmp_path: Path, web_processes: str) -> None:
    folder = exports.saved(tmp_path / "broken", exports.word_piece(), {})
    (folder / "tokenizer.json").write_text("{}")
    env = {"SERVING_MODEL_DIR": str(folder), "SERVING_WEB_PROCESSES": web_processes, "SERVING_PORT": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "smallplates.service", "fastapi_onnx"],
        cwd=servers.ROOT,
        env={**os.environ, **env, "SERVING_INSTANCES": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "tokenizer.json cannot be read as a tokeniser" in ended.stderr
    assert "Traceback" not in ended.stderr

"""An export for question answering, over every protocol."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import smallplates.client
from smallplates.client.tcp import TcpClient
from tests import exports, servers

QUESTION = "what was cold"
CONTEXT = "Été \U0001f600: the warm soup"
ASKED = {"question": QUESTION, "context": CONTEXT}
START, END = 11, 20
LONG = "bread " * 5000


class Service(NamedTuple):
    """Where it is asked."""

    url: str
    grpc: str
    tcp_port: int


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service; a window has 64 tokens, and one request may have 16 windows."""
    folder = tmp_path_factory.mktemp("models") / "reader"
    names = ("input_ids", "attention_mask", "token_type_ids")
    exports.asked(folder, exports.word_piece(), {}, names=names)
    ports = servers.free_port(), servers.free_port()
    env = {
        "SERVING_MODEL_DIR": str(folder),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_GRPC_PORT": str(ports[0]),
        "SERVING_TCP_PORT": str(ports[1]),
        "SERVING_INSTANCES": "1",
        "SERVING_QUEUE_SIZE": "32",
    }
    with servers.api("fastapi_onnx", env) as url:
        yield Service(url, f"127.0.0.1:{ports[0]}", ports[1])


@pytest.fixture(scope="module")
def url(service: Service) -> str:
    """Its base URL."""
    return service.url


def post(url: str, path: str, content: Any) -> requests.Response:
    """Posts JSON."""
    return requests.post(f"{url}{path}", json=content, timeout=20)


# native


def test_json(url: str) -> None:
    answer = post(url, "/predict", ASKED)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    score = content.pop("score")
    assert content == {"answer": "warm soup", "start": START, "end": END}
    assert 0.9 < score <= 1
    assert CONTEXT[START:END] == "warm soup"
    assert "infer;dur=" in answer.headers["Server-Timing"]


def test_the_best_answers(url: str) -> None:
    content = post(url, "/predict?top_k=3", ASKED).json()
    assert content["top"][0] == {name: content[name] for name in ("answer", "score", "start", "end")}
    assert len(content["top"]) == 3
    assert len(post(url, "/predict?top_k=20", ASKED).json()["top"]) > 3
    assert post(url, "/predict?top_k=21", ASKED).status_code == 422


def test_no_answer(url: str) -> None:
    asked = {"question": QUESTION, "context": "a table"}
    assert post(url, "/predict", asked).json()["answer"]
    assert post(url, "/predict", {**asked, "allow_no_answer": None}).json()["answer"]
    content = post(url, "/predict", {**asked, "allow_no_answer": True}).json()
    assert (content["answer"], content["start"], content["end"]) == ("", 0, 0)


def test_several_windows(url: str) -> None:
    for before in (20, 60, 120, 250):
        context = "bread " * before + "warm soup and bread"
        content = post(url, "/predict", {"question": QUESTION, "context": context}).json()
        assert (content["answer"], content["start"]) == ("warm soup", 6 * before)


def test_contexts_of_all_lengths_at_once(url: str) -> None:
    def ask(number: int) -> tuple[int, str, int]:
        context = "bread " * number + "warm soup"
        answer = post(url, "/predict", {"question": QUESTION, "context": context})
        content = answer.json()
        return answer.status_code, content["answer"], content["start"] - 6 * number

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, range(100))) == {(200, "warm soup", 0)}


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"question": QUESTION}, 422, "invalid_request"),
        ({"context": CONTEXT}, 422, "invalid_request"),
        ({**ASKED, "question": None}, 422, "invalid_request"),
        ({**ASKED, "context": [CONTEXT]}, 422, "invalid_request"),
        ({**ASKED, "allow_no_answer": "yes"}, 422, "invalid_request"),
        ([], 422, "invalid_request"),
        ({**ASKED, "question": ""}, 400, "invalid_text"),
        ({**ASKED, "context": "\t "}, 400, "invalid_text"),
        ({**ASKED, "context": "\0"}, 400, "invalid_text"),
        ({**ASKED, "context": "soup \ud83d"}, 400, "invalid_text"),
        ({**ASKED, "question": "bread " * 70}, 413, "text_too_long"),
        ({"question": "bread " * 40, "context": "soup " * 60}, 413, "text_too_long"),
        ({**ASKED, "context": LONG}, 413, "text_too_long"),
        ({**ASKED, "context": "e" + "\u0301" * 1_000_000}, 413, "text_too_long"),
        ({**ASKED, "context": "a" * 10_000_000}, 413, "text_too_long"),
    ],
    ids=range(15),
)
def test_what_is_refused(url: str, asked: Any, status: int, code: str) -> None:
    answer = post(url, "/predict", asked)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text[:300]


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"warm soup", "text/plain", 415, "unsupported_media_type"),
        (b"", None, 400, "invalid_json"),
        (b'{"question": "a", "context": "\xff"}', "application/json", 400, "invalid_json"),
        (b'{"question": "a", "context": "b', "application/json", 400, "invalid_json"),
    ],
)
def test_bodies_that_are_refused(
    url: str, body: bytes, kind: str | None, status: int, code: str
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = requests.post(f"{url}/predict", data=body, headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_context_of_one_window_whose_words_are_endless(url: str) -> None:
    context = "a" * 200_000 + " warm soup"
    content = post(url, "/predict?top_k=20", {"question": QUESTION, "context": context}).json()
    assert (content["answer"], content["start"]) == ("warm soup", 200_001)


def test_the_model_is_described(url: str) -> None:
    described = requests.get(f"{url}/model", timeout=20).json()
    assert (described["name"], described["task"]) == ("reader", "question-answering")
    assert described["labels"] == []
    assert described["text"]["max_tokens"] == 64
    document = requests.get(f"{url}/openapi.json", timeout=20).json()
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/json"]
    answer = post(url, "/predict", content["application/json"]["example"])
    assert answer.json()["answer"] == "wonderful"
    path = "/v2/models/{model}/infer"
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    assert post(url, path.format(model="reader"), body["example"]).status_code == 200


# v2


@pytest.fixture(params=["http", "http json", "grpc"])
def ask(request: pytest.FixtureRequest, service: Service) -> Iterator[Any]:
    """Asks a model with arrays by name; returns all outputs by name."""
    module: Any = tritonclient.grpc if request.param == "grpc" else tritonclient.http
    address = service.grpc if request.param == "grpc" else service.url.removeprefix("http://")
    more = {"binary_data": False} if request.param == "http json" else {}
    kinds = {"O": "BYTES", "b": "BOOL", "i": "INT64"}
    with module.InferenceServerClient(address) as client:

        def infer(model: str, top_k: int = 1, **arrays: Any) -> dict[str, Any]:
            inputs = []
            for name, array in arrays.items():
                inputs.append(module.InferInput(name, array.shape, kinds[array.dtype.kind]))
                inputs[-1].set_data_from_numpy(array, **more)
            parameters = {"top_k": top_k} if top_k > 1 else None
            answer = client.infer(model, inputs, parameters=parameters)
            names = ["ANSWER", "SCORE", "START", "END"]
            if model.endswith("tensor"):
                names = ["start_logits", "end_logits"]
            return {name: answer.as_numpy(name) for name in names}

        yield infer


def texts(*values: str) -> Any:
    """BYTES [N, 1]."""
    return np.array([[value] for value in values], object)


def test_tritons_clients_ask(ask: Any) -> None:
    answer = ask("reader", CONTEXT=texts(CONTEXT), QUESTION=texts(QUESTION))
    assert answer["ANSWER"].tolist() == [[b"warm soup"]]
    assert (answer["START"].tolist(), answer["END"].tolist()) == ([[START]], [[END]])
    assert (answer["SCORE"].dtype, answer["START"].dtype) == (np.float32, np.int64)
    arrays = {"CONTEXT": np.array([CONTEXT], object), "QUESTION": np.array([QUESTION], object)}
    assert ask("reader", **arrays)["ANSWER"].tolist() == [b"warm soup"]


def test_tritons_clients_ask_several_questions(ask: Any) -> None:
    contexts = texts(CONTEXT, "bread " * 100 + "warm soup", "a table")
    arrays = {"QUESTION": texts(*[QUESTION] * 3), "CONTEXT": contexts}
    several = ask("reader", **arrays, ALLOW_NO_ANSWER=np.array([[False], [True], [True]]))
    assert several["ANSWER"].tolist() == [[b"warm soup"], [b"warm soup"], [b""]]
    assert several["START"].tolist() == [[START], [600], [0]]
    several = ask("reader", 2, **arrays)
    assert several["ANSWER"].shape == several["END"].shape == (3, 2)
    with pytest.raises(InferenceServerException, match="different numbers of ANSWER"):
        ask("reader", 20, **arrays)
    many = {"QUESTION": texts(*[QUESTION] * 9), "CONTEXT": texts(*["bread " * 300 + "warm soup"] * 9)}
    assert ask("reader", **many)["ANSWER"].tolist() == [[b"warm soup"]] * 9  # windows for 128 slots


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"QUESTION": texts(" "), "CONTEXT": texts("a")}, "the question is empty"),
        ({"QUESTION": texts("a"), "CONTEXT": texts(LONG)}, "windows of 64 tokens; at most 64"),
        ({"QUESTION": texts("a")}, "CONTEXT"),
        ({"QUESTION": texts("a"), "CONTEXT": texts("a", "b")}, "different numbers"),
    ],
    ids=range(4),
)
def test_what_tritons_clients_may_not_send(ask: Any, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(InferenceServerException, match=words):
        ask("reader", **arrays)


def test_tensors_are_the_graphs_own(ask: Any) -> None:
    encoding = exports.word_piece().encode("a", "warm soup")
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    arrays = {name: np.array([getattr(encoding, of)]) for name, of in names.items()}
    logits = ask("reader_tensor", **arrays)
    assert logits["start_logits"][0, -3:].tolist() == [9, 2, 0]
    assert logits["end_logits"][0, -3:].tolist() == [2, 9, 0]


def test_the_metadata(url: str) -> None:
    metadata = requests.get(f"{url}/v2/models/reader", timeout=20).json()
    inputs = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata["inputs"]]
    assert inputs == [
        ("QUESTION", "BYTES", [-1, 1]),
        ("CONTEXT", "BYTES", [-1, 1]),
        ("ALLOW_NO_ANSWER", "BOOL", [-1, 1]),
    ]
    assert [(tensor["name"], tensor["datatype"]) for tensor in metadata["outputs"]] == [
        ("ANSWER", "BYTES"),
        ("SCORE", "FP32"),
        ("START", "INT64"),
        ("END", "INT64"),
    ]


# others


def test_tensorflow_servings_rows_and_columns(url: str) -> None:
    path = "/v1/models/reader:predict"
    row = {"QUESTION": QUESTION, "CONTEXT": CONTEXT, "ALLOW_NO_ANSWER": True}
    answer = post(url, path, {"instances": [row, {**row, "CONTEXT": "a table"}]})
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["predictions"]
    assert (first["ANSWER"], first["START"], first["END"]) == ("warm soup", START, END)
    assert second["ANSWER"] == ""
    columns = {"QUESTION": [QUESTION], "CONTEXT": [CONTEXT]}
    outputs = post(url, path, {"inputs": columns}).json()["outputs"]
    assert outputs["ANSWER"] == ["warm soup"]
    refused = post(url, path, {"instances": ["warm soup"]})
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "name the inputs: QUESTION, CONTEXT, ALLOW_NO_ANSWER",
    )


def test_torchserve_answers_as_predict_does(url: str) -> None:
    answer = post(url, "/predictions/reader", ASKED)
    assert answer.status_code == 200, answer.text
    assert answer.json() == post(url, "/predict", ASKED).json()
    assert post(url, "/predictions/reader", {"question": QUESTION}).json()["code"] == 400
    assert post(url, "/predictions/reader", {**ASKED, "context": LONG}).json()["code"] == 413


def test_tcp_takes_json(service: Service) -> None:
    with TcpClient("127.0.0.1", service.tcp_port) as client:
        answer = client.predict(json.dumps(ASKED).encode(), top_k=2)
        assert (answer.content["start"], answer.content["end"]) == (START, END)
        assert len(answer.content["top"]) == 2
        answer = client.predict(b"warm soup")
    assert (answer.status, answer.content["code"]) == (400, "invalid_json")


def test_the_client(service: Service, tmp_path: Path) -> None:
    with smallplates.client.Client(service.url) as client:
        result = client.answer(QUESTION, CONTEXT, top_k=2)
        assert (result.start, result.end, result.answer) == (START, END, CONTEXT[START:END])
        assert len(result.top) == 2
        nothing = client.answer(QUESTION, CONTEXT, allow_no_answer=True, top_k=20)
        assert "" in [span.answer for span in nothing.top]
    (tmp_path / "context.txt").write_text(CONTEXT, encoding="utf-8")
    command = [sys.executable, "-m", "smallplates", "ask", "--url", service.url, "--question", QUESTION]
    ended = subprocess.run(
        [*command, "--context-file", str(tmp_path / "context.txt")],
        cwd=servers.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.startswith(f"{QUESTION}: {CONTEXT[START:END]} "), ended


# at start


def test_a_network_without_a_number_for_each_token_is_refused(tmp_path: Path) -> None:
    config = {"architectures": ["BertForQuestionAnswering"]}
    folder = exports.saved(tmp_path / "classes", exports.word_piece(), config)
    ended = subprocess.run(
        [sys.executable, "-m", "smallplates.service", "fastapi_onnx"],
        cwd=servers.ROOT,
        env={**os.environ, "SERVING_MODEL_DIR": str(folder), "SERVING_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "classes cannot be served: the graph needs an output start_logits" in ended.stderr
    assert "Traceback" not in ended.stderr

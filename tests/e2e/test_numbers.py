"""Numbers at the edges of their types, over every protocol: all their digits, or a 4xx."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
from onnx import TensorProto, numpy_helper
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from smallplates.tasks.python import check
from tests import graphs, servers
from tests.e2e.test_any_model import post, started


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A service of `tests.fake.python_task:Numbers`: base URL, and host and port of its gRPC."""
    folder = tmp_path_factory.mktemp("models") / "numbers"
    folder.mkdir()
    content = {"name": "numbers", "version": "1", "task": "tests.fake.python_task:Numbers"}
    (folder / "model.json").write_text(json.dumps(content))
    yield from started(folder)


@pytest.fixture(scope="module")
def url(numbers: tuple[str, str]) -> str:
    """Its base URL."""
    return numbers[0]


def infer(url: str, model: str = "numbers", **inputs: tuple[str, list[int], Any]) -> requests.Response:
    """Posts inputs of the Open Inference Protocol: datatype, shape and data of each."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    return post(url, f"/v2/models/{model}/infer", {"inputs": tensors})


def outputs(answer: requests.Response) -> dict[str, Any]:
    """The data of the outputs, by name."""
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1, 2**64, 2**70, 10**300])
def test_a_large_integer_keeps_its_digits(url: str, count: int) -> None:
    for path in ("/predict", "/predictions/numbers"):
        assert json.loads(post(url, path, {"count": count, "counts": [count]}).text) == {
            "exact": 0.0,
            "point": [],
            "count": count,
            "counts": [count],
        }


def test_an_answer_beyond_its_datatype_is_a_400_that_says_where_to_ask(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("models") / "squares"
    folder.mkdir()
    content = {"name": "squares", "version": "1", "task": "tests.fake.python_task:Squares"}
    (folder / "model.json").write_text(json.dumps(content))
    for url, grpc in started(folder):
        assert outputs(infer(url, "squares", NUMBER=("INT64", [1], [3]))) == {"SQUARE": [9], "ALL": [9]}
        refused = infer(url, "squares", NUMBER=("INT64", [1], [2**40]))
        assert refused.status_code == 400
        assert "SQUARE is outside the range of INT64" in refused.json()["error"]
        assert "POST /predict" in refused.json()["error"]
        rows = post(url, "/v1/models/squares:predict", {"instances": [{"NUMBER": 2**40}]})
        assert json.loads(rows.text) == {"predictions": [{"SQUARE": 2**80, "ALL": [2**80]}]}
        with tritonclient.grpc.InferenceServerClient(grpc) as client:
            number = tritonclient.grpc.InferInput("NUMBER", [1], "INT64")
            number.set_data_from_numpy(np.array([2**40]))
            with pytest.raises(
                InferenceServerException, match=r"INVALID_ARGUMENT.*outside the range of INT64"
            ):
                client.infer("squares", [number])


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "Infinity", "1e999", "-1e400", "9" * 400])
def test_what_is_not_a_json_number_is_refused(url: str, text: str) -> None:
    body = f'{{"point": [{text}, 0]}}'
    for path in ("/predict", "/predictions/numbers"):
        headers = {"Content-Type": "application/json"}
        answer = requests.post(f"{url}{path}", data=body, headers=headers, timeout=20)
        assert answer.status_code == 400, answer.text
        assert "not JSON" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/numbers:predict", {"instances": [{}]}),
        ("/v1/models/numbers:predict", {"instances": [{}, {}]}),
        ("/v1/models/numbers:predict", {"instances": [{}, {"COUNT": 1}]}),
        ("/v1/models/numbers:predict", {"instances": []}),
        ("/v1/models/numbers:predict", {"inputs": {}}),
        ("/v2/models/numbers/infer", {"inputs": []}),
    ],
)
def test_a_request_whose_inputs_are_left_out_is_the_clients_error(
    url: str, path: str, body: dict[str, Any]
) -> None:
    answer = post(url, path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


def test_text_that_only_looks_like_a_large_number_is_taken(url: str) -> None:
    answer = post(url, "/predict", {"other": "1e999 " + "9" * 400, "count": 1})
    assert answer.json()["count"] == 1


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_an_answer_that_is_not_finite_is_the_servers_error(numbers: tuple[str, str], kind: str) -> None:
    url, grpc = numbers
    assert post(url, "/predict", {"not_finite": kind}).json()["code"] == "internal_error"
    assert infer(url, NOT_FINITE=("BYTES", [1], [kind])).status_code == 500
    with tritonclient.grpc.InferenceServerClient(grpc) as client:
        tensor = tritonclient.grpc.InferInput("NOT_FINITE", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([kind], object))
        with pytest.raises(InferenceServerException, match="INTERNAL"):
            client.infer("numbers", [tensor])


def test_check_refuses_an_answer_that_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the backend would set for good
    for kind, status in (("", 0), ("inf", 1)):
        request = json.dumps({"not_finite": kind})
        assert check.run("tests.fake.python_task:Numbers", None, request) == status
    assert "not finite" in capsys.readouterr().err


def test_a_float_of_a_python_task_has_64_bits_everywhere(numbers: tuple[str, str]) -> None:
    url, grpc = numbers
    exact = 16777217 + 2**-20
    assert outputs(infer(url, EXACT=("FP64", [1], [exact]), POINT=("FP64", [1, 2], [exact, 1])))[
        "POINT"
    ] == [exact, 1]
    rows = post(url, "/v1/models/numbers:predict", {"instances": [{"EXACT": exact}]})
    assert rows.json()["predictions"][0]["EXACT"] == exact
    with tritonclient.grpc.InferenceServerClient(grpc) as client:
        number = tritonclient.grpc.InferInput("EXACT", [1], "FP64")
        number.set_data_from_numpy(np.array([exact]))
        assert client.infer("numbers", [number]).as_numpy("EXACT").tolist() == [exact]
        number.set_data_from_numpy(np.array([np.nan]))
        with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*exact is not finite"):
            client.infer("numbers", [number])


def test_an_empty_list_is_a_list(url: str) -> None:
    lists = outputs(infer(url, COUNTS=("INT64", [1, 0], []), POINT=("FP64", [1, 0], [])))
    assert (lists["COUNTS"], lists["POINT"]) == ([], [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_every_path_takes_compressed_bodies(url: str, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    body = pack(b'{"count": 5}')
    answer = requests.post(f"{url}/predict", data=body, headers=headers, timeout=20)
    assert answer.json()["count"] == 5
    bomb = pack(b" " * 2_000_000)
    answer = requests.post(f"{url}/predict", data=bomb, headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    answer = requests.post(f"{url}/predict", data=b"{}", headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_body")
    headers["Content-Encoding"] = "br"
    answer = requests.post(f"{url}/predict", data=b"{}", headers=headers, timeout=20)
    assert answer.status_code == 415


def test_half_a_character_is_named(url: str) -> None:
    headers = {"Content-Type": "application/json"}
    content = (
        b'{"inputs": [{"name": "NOT_FINITE", "datatype": "BYTES", "shape": [1], "data": ["\\ud800"]}]}'
    )
    answer = requests.post(f"{url}/v2/models/numbers/infer", data=content, headers=headers, timeout=20)
    assert answer.status_code == 400
    assert "contains an unpaired UTF-16 surrogate" in answer.json()["error"]


def test_another_form_of_the_path_is_no_redirect(url: str) -> None:
    for path in ("/predict/", "/model/", "//evil.example/predict/"):
        answer = requests.post(
            f"{url}{path}", json={}, headers={"Host": "evil.example"}, allow_redirects=False, timeout=20
        )
        assert answer.status_code == 404
        assert "Location" not in answer.headers


# graphs


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A service of a graph that doubles `x` FP32 [N, n, m], and adds 1 to `i` UINT8 [N, n, m]."""
    axes = ["N", "n", "m"]
    nodes = [graphs.node("Add", "x x", "y"), graphs.node("Add", "i i", "j")]
    inputs = [graphs.value("x", axes=axes), graphs.value("i", TensorProto.UINT8, axes)]
    outs = [graphs.value("y", axes=axes), graphs.value("j", TensorProto.UINT8, axes)]
    folder = tmp_path_factory.mktemp("models")
    graphs.saved(graphs.model(nodes, inputs, outs), folder)
    (folder / "model.onnx").rename(folder / "twice.onnx")
    yield from started(folder / "twice.onnx")


@pytest.mark.parametrize("shape", [[1, -2, -2], [1, -1, -4], [1, 0, -5], [-1, 2, 2], [1, 2**62, 2**62]])
@pytest.mark.parametrize("raw", [True, False])
def test_sizes_below_zero_are_the_clients_error(
    graph: tuple[str, str], shape: list[int], raw: bool
) -> None:
    with tritonclient.grpc.InferenceServerClient(graph[1]) as client:
        message = service_pb2.ModelInferRequest(model_name="twice")
        for name, datatype in (("x", "FP32"), ("i", "UINT8")):
            tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
            if raw:
                message.raw_input_contents.append(bytes(16 if name == "x" else 4))
            elif name == "x":
                tensor.contents.fp32_contents.extend([0.0] * 4)
            else:
                tensor.contents.uint_contents.extend([0] * 4)
        with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
            client._client_stub.ModelInfer(message)
        assert "1 to 512 are accepted" in str(caught.value) or "1 to 4096 inputs" in str(caught.value)


@pytest.mark.parametrize("shape", [[1, 0, 2], [1, 2, 0], [0, 1, 1]])
def test_an_axis_of_size_zero_is_named(graph: tuple[str, str], shape: list[int]) -> None:
    answer = infer(graph[0], "twice", x=("FP32", shape, []), i=("UINT8", shape, []))
    assert answer.status_code == 400
    assert "x has the size 0 along " in answer.text or "1 to 4096 inputs" in answer.text


@pytest.mark.parametrize(
    ("x", "i", "words"),
    [
        (1e39, 0, "x has a number outside the range of FP32"),
        (0, 256, "i has a number outside the range of UINT8"),
    ],
)
def test_a_number_beyond_its_type_names_the_input(
    graph: tuple[str, str], x: float, i: int, words: str
) -> None:
    answer = infer(graph[0], "twice", x=("FP32", [1, 1, 1], [x]), i=("UINT8", [1, 1, 1], [i]))
    assert (answer.status_code, answer.json()["error"]) == (400, words)
    rows = {"instances": [{"x": [[x]], "i": [[i]]}]}
    answer = post(graph[0], "/v1/models/twice:predict", rows)
    assert (answer.status_code, answer.json()["error"]) == (400, words)


def test_every_documented_example_answers_200(graph: tuple[str, str], url: str, onnx_url: str) -> None:
    for base in (graph[0], url, onnx_url):
        document = requests.get(f"{base}/openapi.json", timeout=20).json()
        paths = document["paths"]
        assert {"/v2/models/{model}/infer", "/v1/models/{model}:predict", "/v2/repository/index"} <= set(
            paths
        )
        assert ("/predictions/{model}" in paths) is ("/predict" in paths) is (base != graph[0])
        for path, operations in paths.items():
            for method, operation in operations.items():
                named = path
                for parameter in operation.get("parameters", ()):
                    if parameter["in"] == "path":
                        (example,) = parameter["examples"].values()
                        named = named.replace(f"{{{parameter['name']}}}", example["value"])
                content = operation.get("requestBody", {}).get("content", {})
                body = content.get("application/json", {}).get("example")
                assert body is not None or method == "get" or path == "/v2/repository/index"
                answer = requests.request(method, f"{base}{named}", json=body, timeout=20)
                assert answer.status_code == 200, (named, answer.text)


def test_a_fault_of_a_client_is_a_line_at_info(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(10, dtype=np.float32), "weights")
    made = graphs.model(
        [graphs.node("Gather", "weights tokens", "y")],
        [graphs.value("tokens", TensorProto.INT64, ["N"])],
        [graphs.value("y", axes=["N"])],
        [weights],
    )
    graphs.saved(made, tmp_path / "tokens")
    env = {"SERVING_MODEL_DIR": str(tmp_path / "tokens"), "SERVING_DEVICE": "cpu"}
    with servers.api("fastapi_onnx", env, tmp_path / "log") as url:
        answer = infer(url, "tokens", tokens=("INT64", [1], [99]))
        assert answer.status_code == 400
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (line,) = [line for line in lines if line["event"] == "an item cannot be computed"]
    assert line["level"] == "info"
    assert "99" in line["reason"] or "range" in line["reason"] or "bounds" in line["reason"]
    assert not [line for line in lines if line["level"] in ("warning", "error")]

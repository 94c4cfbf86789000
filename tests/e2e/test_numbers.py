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

from smallplates.cli import task_check as check
from tests import graphs, servers
from tests.e2e.tasks import Service


def infer(
    service: Service, model: str = "numbers", **inputs: tuple[str, list[int], Any]
) -> requests.Response:
    """Posts inputs of the Open Inference Protocol: datatype, shape and data of each."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    return service.post(f"/v2/models/{model}/infer", {"inputs": tensors})


def outputs(answer: requests.Response) -> dict[str, Any]:
    """The data of the outputs, by name."""
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1, 2**64, 2**70, 10**300])
def test_a_large_integer_keeps_its_digits(tasks: Service, count: int) -> None:
    for path in ("/predict/numbers", "/predictions/numbers"):
        assert json.loads(tasks.post(path, {"count": count, "counts": [count]}).text) == {
            "exact": 0.0,
            "point": [],
            "count": count,
            "counts": [count],
        }


def test_an_answer_beyond_its_datatype_is_a_400_that_says_where_to_ask(tasks: Service) -> None:
    assert outputs(infer(tasks, "squares", NUMBER=("INT64", [1], [3]))) == {"SQUARE": [9], "ALL": [9]}
    refused = infer(tasks, "squares", NUMBER=("INT64", [1], [2**40]))
    assert refused.status_code == 400
    assert "SQUARE is outside the range of INT64" in refused.json()["error"]
    assert "POST /predict" in refused.json()["error"]
    rows = tasks.post("/v1/models/squares:predict", {"instances": [{"NUMBER": 2**40}]})
    assert json.loads(rows.text) == {"predictions": [{"SQUARE": 2**80, "ALL": [2**80]}]}
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*range of INT64"):
        tasks.triton("grpc", "squares", {"NUMBER": np.array([2**40])})


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "Infinity", "1e999", "-1e400", "9" * 400])
def test_what_is_not_a_json_number_is_refused(tasks: Service, text: str) -> None:
    body = f'{{"point": [{text}, 0]}}'.encode()
    for path in ("/predict/numbers", "/predictions/numbers"):
        answer = tasks.post(path, body, "application/json")
        assert (answer.status_code, "not JSON" in answer.text) == (400, True), answer.text


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
    tasks: Service, path: str, body: dict[str, Any]
) -> None:
    answer = tasks.post(path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


def test_text_that_only_looks_like_a_large_number_is_taken(tasks: Service) -> None:
    answer = tasks.post("/predict/numbers", {"other": "1e999 " + "9" * 400, "count": 1})
    assert answer.json()["count"] == 1


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_an_answer_that_is_not_finite_is_the_servers_error(tasks: Service, kind: str) -> None:
    answer = tasks.post("/predict/numbers", {"not_finite": kind})
    assert answer.json()["code"] == "internal_error"
    assert infer(tasks, NOT_FINITE=("BYTES", [1], [kind])).status_code == 500
    with pytest.raises(InferenceServerException, match="INTERNAL"):
        tasks.triton("grpc", "numbers", {"NOT_FINITE": np.array([kind], object)})


def test_check_refuses_an_answer_that_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the backend would set for good
    for kind, status in (("", 0), ("inf", 1)):
        request = json.dumps({"not_finite": kind})
        assert check.run("tests.fake.python_task:Numbers", None, request) == status
    assert "not finite" in capsys.readouterr().err


def test_a_float_of_a_python_task_has_64_bits_everywhere(tasks: Service) -> None:
    exact = 16777217 + 2**-20
    lists = outputs(infer(tasks, EXACT=("FP64", [1], [exact]), POINT=("FP64", [1, 2], [exact, 1])))
    assert lists["POINT"] == [exact, 1]
    rows = tasks.post("/v1/models/numbers:predict", {"instances": [{"EXACT": exact}]})
    assert rows.json()["predictions"][0]["EXACT"] == exact
    answer = tasks.triton("grpc", "numbers", {"EXACT": np.array([exact])})
    assert answer["EXACT"].tolist() == [exact]
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*exact is not finite"):
        tasks.triton("grpc", "numbers", {"EXACT": np.array([np.nan])})


def test_an_empty_list_is_a_list(tasks: Service) -> None:
    lists = outputs(infer(tasks, COUNTS=("INT64", [1, 0], []), POINT=("FP64", [1, 0], [])))
    assert (lists["COUNTS"], lists["POINT"]) == ([], [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bodies(tasks: Service, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress

    def answer(body: bytes, encoding: str = encoding) -> requests.Response:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        return requests.post(f"{tasks.url}/predict/numbers", data=body, headers=headers, timeout=20)

    assert answer(pack(b'{"count": 5}')).json()["count"] == 5
    for body, status, code in (
        (pack(b" " * 21_000_000), 413, "payload_too_large"),
        (b"{}", 400, "invalid_body"),
    ):
        assert (answer(body).status_code, answer(body).json()["code"]) == (status, code)
    assert answer(b"{}", "br").status_code == 415


def test_half_a_character_is_named(tasks: Service) -> None:
    refused = infer(tasks, NOT_FINITE=("BYTES", [1], ["\ud800"]))
    assert (refused.status_code, "surrogate" in refused.json()["error"]) == (400, True)


def test_another_form_of_the_path_is_no_redirect(tasks: Service) -> None:
    for path in ("/predict/", "/model/", "//evil.example/predict/"):
        answer = requests.post(
            f"{tasks.url}{path}",
            json={},
            headers={"Host": "evil.example"},
            allow_redirects=False,
            timeout=20,
        )
        assert (answer.status_code, "Location" in answer.headers) == (404, False)


# graphs


@pytest.mark.parametrize("shape", [[1, -2, -2], [1, -1, -4], [1, 0, -5], [-1, 2, 2], [1, 2**62, 2**62]])
@pytest.mark.parametrize("raw", [True, False])
def test_sizes_below_zero_are_the_clients_error(tasks: Service, shape: list[int], raw: bool) -> None:
    with tritonclient.grpc.InferenceServerClient(tasks.grpc) as client:
        message = service_pb2.ModelInferRequest(model_name="twice")
        for name, datatype in (("x", "FP32"), ("i", "UINT8")):
            tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
            if raw:
                message.raw_input_contents.append(bytes(16 if name == "x" else 4))
            elif name == "x":
                tensor.contents.fp32_contents.extend([0.0] * 4)
            else:
                tensor.contents.uint_contents.extend([0] * 4)
        with pytest.raises(Exception, match="INVALID_ARGUMENT"):
            client._client_stub.ModelInfer(message)


@pytest.mark.parametrize("shape", [[1, 0, 2], [1, 2, 0], [0, 1, 1]])
def test_an_axis_of_size_zero_is_named(tasks: Service, shape: list[int]) -> None:
    answer = infer(tasks, "twice", x=("FP32", shape, []), i=("UINT8", shape, []))
    assert answer.status_code == 400
    assert f"x must have the shape [N, -1, -1] or [-1, -1], not {shape}" in answer.text or not shape[0]


@pytest.mark.parametrize(
    ("x", "i", "words"),
    [
        (1e39, 0, "x has a number outside the range of FP32"),
        (0, 256, "i has a number outside the range of UINT8"),
    ],
)
def test_a_number_beyond_its_type_names_the_input(tasks: Service, x: float, i: int, words: str) -> None:
    rows = {"instances": [{"x": [[x]], "i": [[i]]}]}
    for answer in (
        infer(tasks, "twice", x=("FP32", [1, 1, 1], [x]), i=("UINT8", [1, 1, 1], [i])),
        tasks.post("/v1/models/twice:predict", rows),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, words)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """A service of a graph that looks `tokens` INT64 [N] up in ten numbers, and its log."""
    weights = numpy_helper.from_array(np.arange(10, dtype=np.float32), "weights")
    nodes = [graphs.node("Gather", "weights tokens", "y")]
    inputs = [graphs.value("tokens", TensorProto.INT64, ["N"])]
    graph = graphs.model(nodes, inputs, [graphs.value("y", axes=["N"])], [weights])
    folder = tmp_path_factory.mktemp("models") / "tokens"
    env = {"SERVING_MODEL_DIR": str(graphs.saved(graph, folder)), "SERVING_DEVICE": "cpu"}
    with servers.api("fastapi_onnx", env | servers.UNMEASURED, folder / "log") as url:
        yield Service(url, ""), folder / "log"


def test_every_documented_example_answers_200(alone: tuple[Service, Path], onnx_url: str) -> None:
    for service, predicts in ((alone[0], False), (Service(onnx_url, ""), True)):
        paths = service.get("/openapi.json")["paths"]
        documented = {"/v2/models/{model}/infer", "/v1/models/{model}:predict", "/v2/repository/index"}
        assert documented <= set(paths)
        assert ("/predictions/{model}" in paths) is ("/predict" in paths) is predicts
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
                answer = requests.request(method, f"{service.url}{named}", json=body, timeout=20)
                refused = named == "/info" and "no model is served" in answer.text  # of texts
                assert answer.status_code == 200 or refused, (named, answer.text)


def test_a_fault_of_a_client_is_a_line_at_info(alone: tuple[Service, Path]) -> None:
    service, log = alone
    assert infer(service, "tokens", tokens=("INT64", [1], [99])).status_code == 400

    def lines() -> list[dict[str, str]]:
        found = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in found if line["event"] == "an item cannot be computed"]

    servers.wait_for(lambda: len(lines()) == 1)
    assert lines()[0]["level"] == "info"
    assert any(word in lines()[0]["reason"] for word in ("99", "range", "bounds"))
    assert '"error"' not in log.read_text()

"""Models that are no image classifiers, over every protocol: Python of one's own, and ONNX graphs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests import graphs, servers


def started(folder: Path) -> Iterator[tuple[str, str]]:
    """A service of the model in a folder: base URL, and host and port of its gRPC."""
    port = servers.free_port()
    env = {
        "SERVING_MODEL_DIR": str(folder),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_GRPC_PORT": str(port),
        "SERVING_INSTANCES": "1",
        "SERVING_MAX_BODY_BYTES": "1000000",
    }
    with servers.api("fastapi_onnx", env) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def python_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A service of `tests.fake.python_task`."""
    folder = tmp_path_factory.mktemp("models") / "own"
    folder.mkdir()
    content = {"name": "own", "version": "1", "task": "tests.fake.python_task:Obedient", "files": {}}
    (folder / "model.json").write_text(json.dumps(content))
    yield from started(folder)


@pytest.fixture(scope="module")
def graph_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A service of a folder with nothing but a graph of two inputs and two outputs."""
    folder = tmp_path_factory.mktemp("models") / "sums"
    yield from started(graphs.saved(graphs.two_by_two(), folder))


@pytest.fixture(scope="module")
def python_url(python_service: tuple[str, str]) -> str:
    """Its base URL."""
    return python_service[0]


@pytest.fixture(scope="module")
def graph_url(graph_service: tuple[str, str]) -> str:
    """Its base URL."""
    return graph_service[0]


def post(url: str, path: str, content: Any, **options: Any) -> requests.Response:
    """Posts JSON."""
    return requests.post(f"{url}{path}", json=content, timeout=20, **options)


# Python of one's own


def test_json_goes_in_and_out(python_url: str) -> None:
    answer = post(python_url, "/predict", {"number": 7, "length": 3})
    assert answer.json() == {"number": 7, "text": "1 cpuxxx"}
    assert "infer;dur=" in answer.headers["Server-Timing"]


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b'{"number": 7, "does": "refuse"}', 400, "invalid_input", "7 is refused"),
        (b'{"number": 7, "does": "refuse late"}', 400, "invalid_input", "7 is refused late"),
        (b'{"number": 7, "does": "fail"}', 500, "internal_error", "internal error"),
        (b'{"number": "x"}', 422, "invalid_request", "number: "),
        (b"[]", 422, "invalid_request", ""),
        (b"{", 400, "invalid_json", ""),
        (b"", 400, "invalid_json", "empty"),
        (b"   ", 400, "invalid_json", ""),
        (b"\xff\xfe", 400, "invalid_json", ""),
        (b'{"number": 1, "padding": "' + b"x" * 1_000_000 + b'"}', 413, "payload_too_large", ""),
    ],
)
def test_what_is_wrong_is_said(python_url: str, body: bytes, status: int, code: str, words: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{python_url}/predict", data=body, headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert words in answer.json()["detail"]
    assert "secret" not in answer.text


def test_other_bodies_and_parameters_are_refused(python_url: str) -> None:
    answer = requests.post(
        f"{python_url}/predict", data=b"x", headers={"Content-Type": "image/jpeg"}, timeout=20
    )
    assert answer.status_code == 415
    assert "send application/json, not" in answer.json()["detail"]
    assert post(python_url, "/predict?top_k=2", {"number": 1}).status_code == 422


def test_a_crash_costs_one_request(python_url: str) -> None:
    answer = post(python_url, "/predict", {"number": 7, "does": "crash"})
    assert (answer.status_code, answer.json()["code"]) == (500, "worker_crashed")
    assert post(python_url, "/predict", {"number": 8}).json()["number"] == 8


def test_the_model_is_described(python_url: str) -> None:
    described = requests.get(f"{python_url}/model", timeout=20).json()
    assert (described["task"], described["labels"], described["image"]) == (
        "tests.fake.python_task:Obedient",
        [],
        None,
    )
    assert list(described["request_schema"]["properties"])[:2] == ["number", "does"]
    assert list(described["answer_schema"]["properties"]) == ["number", "text"]
    assert described["limits"] == {"request_bytes": 1_000_000}
    assert post(python_url, "/predict", described["example"]).status_code == 200
    document = requests.get(f"{python_url}/openapi.json", timeout=20).json()
    operation = document["paths"]["/predict"]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    schema = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
    assert schema["required"] == ["number"]
    assert post(python_url, "/predict", body["example"]).status_code == 200
    path = "/v2/models/{model}/infer"
    operation = document["paths"][path]["post"]
    name = operation["parameters"][0]["examples"]["this model"]["value"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert post(python_url, path.format(model=name), example).status_code == 200


def test_tritons_clients_send_fields(python_service: tuple[str, str]) -> None:
    url, grpc = python_service
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        metadata = client.get_model_metadata("own")
        assert {
            tensor["name"]: (tensor["datatype"], tensor["shape"]) for tensor in metadata["inputs"]
        } == {
            "NUMBER": ("INT64", [-1, 1]),
            "DOES": ("BYTES", [-1, 1]),
            "HELD": ("BOOL", [-1, 1]),
            "PADDING": ("BYTES", [-1, 1]),
            "LENGTH": ("INT64", [-1, 1]),
        }
        number = tritonclient.http.InferInput("NUMBER", [2, 1], "INT64")
        number.set_data_from_numpy(np.array([[3], [4]]))
        padding = tritonclient.http.InferInput("PADDING", [2, 1], "BYTES")
        padding.set_data_from_numpy(np.array([["é"], ["b,c"]], object), binary_data=False)
        answer = client.infer("own", [number, padding])
        assert answer.as_numpy("NUMBER").tolist() == [[3], [4]]
        assert answer.as_numpy("TEXT").tolist() == [[b"1 cpu"], [b"1 cpu"]]
        does = tritonclient.http.InferInput("DOES", [1], "BYTES")
        does.set_data_from_numpy(np.array(["refuse"], object))
        refused = tritonclient.http.InferInput("NUMBER", [1], "INT64")
        refused.set_data_from_numpy(np.array([5]))
        with pytest.raises(InferenceServerException, match="5 is refused"):
            client.infer("own", [refused, does])
        with pytest.raises(InferenceServerException, match="NUMBER"):
            client.infer("own", [does])
    with tritonclient.grpc.InferenceServerClient(grpc) as other:
        by_grpc = tritonclient.grpc.InferInput("NUMBER", [1, 1], "INT64")
        by_grpc.set_data_from_numpy(np.array([[9]]))
        assert other.infer("own", [by_grpc]).as_numpy("NUMBER").tolist() == [[9]]
        with pytest.raises(InferenceServerException, match="there is no model"):
            other.infer("own_tensor", [by_grpc])


def test_numbers_come_in_every_documented_shape(python_url: str) -> None:
    for shape in ([2], [2, 1]):
        number = {"name": "NUMBER", "datatype": "INT64", "shape": shape, "data": [3, 4]}
        answer = post(python_url, "/v2/models/own/infer", {"inputs": [number]})
        assert answer.json()["outputs"][0] == {**number, "name": "NUMBER"}
    number = {"name": "NUMBER", "datatype": "INT64", "shape": [1], "data": [3]}
    wanted = {"name": "NUMBER", "parameters": {"classification": 1}}
    answer = post(python_url, "/v2/models/own/infer", {"inputs": [number], "outputs": [wanted]})
    assert (answer.status_code, answer.json()["error"]) == (400, "NUMBER has no classes")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"instances": [{"NUMBER": 1}, {"NUMBER": 2}]},
            {"predictions": [{"NUMBER": 1, "TEXT": "1 cpu"}, {"NUMBER": 2, "TEXT": "1 cpu"}]},
        ),
        (
            {"inputs": {"NUMBER": [1, 2], "PADDING": ["a", "b"]}},
            {"outputs": {"NUMBER": [1, 2], "TEXT": ["1 cpu", "1 cpu"]}},
        ),
    ],
)
def test_tensorflow_servings_rows_and_columns(
    python_url: str, content: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = post(python_url, "/v1/models/own:predict", content)
    assert answer.json() == expected


@pytest.mark.parametrize(
    "content",
    [
        {"instances": []},
        {"instances": [1]},
        {"instances": [{"NUMBER": 1}, {"NUMBER": 1, "LENGTH": 2}]},
        {"instances": [{"LENGTH": 1}]},
        {"instances": [{"NUMBER": "x"}]},
        {"instances": [{"NUMBER": 2**70}]},
        {"instances": [{"NUMBER": 1, "OTHER": 2}]},
        {"inputs": {"NUMBER": [1, 2], "LENGTH": [1]}},
        {"inputs": {"NUMBER": []}},
    ],
)
def test_rows_that_are_no_requests(python_url: str, content: dict[str, Any]) -> None:
    answer = post(python_url, "/v1/models/own:predict", content)
    assert answer.status_code == 400, answer.text


def test_torchserves_client_sends_json(python_url: str) -> None:
    assert post(python_url, "/predictions/own", {"number": 3}).json() == {"number": 3, "text": "1 cpu"}
    assert post(python_url, "/predictions/own", {"number": "x"}).status_code == 400


# ONNX graphs


@pytest.fixture(params=["http", "http json", "grpc"])
def ask(request: pytest.FixtureRequest, graph_service: tuple[str, str]) -> Iterator[Any]:
    """Asks the graph with arrays by name; returns all outputs by name."""
    module: Any = tritonclient.grpc if request.param == "grpc" else tritonclient.http
    url = graph_service[1] if request.param == "grpc" else graph_service[0].removeprefix("http://")
    more = {"binary_data": False} if request.param == "http json" else {}
    with module.InferenceServerClient(url) as client:

        def infer(**arrays: Any) -> dict[str, Any]:
            inputs = []
            for name, array in arrays.items():
                datatype = {"f": "FP32", "i": "INT64", "b": "BOOL"}[array.dtype.kind]
                inputs.append(module.InferInput(name, array.shape, datatype))
                inputs[-1].set_data_from_numpy(array, **more)
            answer = client.infer("sums", inputs)
            return {name: answer.as_numpy(name) for name in ("sum", "more")}

        yield infer


@pytest.mark.parametrize("rows", [1, 5])
def test_a_graph_answers_under_its_own_names(ask: Any, rows: int) -> None:
    a = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) - 1
    b = np.full((rows, 2), 2)
    outputs = ask(b=b, a=a)
    assert outputs["sum"].tolist() == (a + b).tolist()
    assert outputs["more"].dtype == bool
    assert outputs["more"].tolist() == (a > b).tolist()


def test_one_item_may_come_without_the_batch_axis(ask: Any) -> None:
    outputs = ask(a=np.array([1, 2], np.float32), b=np.array([3, 1]))
    assert outputs["sum"].tolist() == [4, 3]
    assert outputs["more"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros((1, 3), np.float32), "b": np.zeros((1, 2), int)}, "must have the shape"),
        ({"a": np.zeros((1, 2), np.float32), "b": np.zeros((2, 2), int)}, "different numbers"),
        ({"a": np.zeros((1, 2), int), "b": np.zeros((1, 2), int)}, "must be FP32"),
        ({"a": np.zeros((1, 2), np.float32)}, "takes a, b"),
        ({"a": np.zeros((1, 2), np.float32), "c": np.zeros((1, 2), int)}, "no input 'c'"),
    ],
)
def test_tensors_that_do_not_fit(ask: Any, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(InferenceServerException, match=words):
        ask(**arrays)


def test_a_graph_has_no_other_requests(graph_url: str) -> None:
    answer = post(graph_url, "/predict", {"image": "AAAA"})
    assert (answer.status_code, answer.json()["code"]) == (501, "not_supported")
    assert post(graph_url, "/predictions/sums", {"image": "AAAA"}).status_code == 400
    described = requests.get(f"{graph_url}/model", timeout=20).json()
    assert (described["name"], described["task"]) == ("sums", "tensor")
    assert (described["request_schema"], described["example"]) == (None, None)
    assert requests.get(f"{graph_url}/openapi.json", timeout=20).status_code == 200


@pytest.fixture(scope="module")
def varying_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of a graph whose sizes vary: the places that are not zero, three at most."""
    folder = tmp_path_factory.mktemp("models") / "places"
    graphs.saved(graphs.nonzero(), folder, "1")
    content = {"name": "places", "version": "1", "task": "tensor", "limits": {"found": 3, "n": 4}}
    (folder / "model.json").write_text(json.dumps(content))
    for url, _ in started(folder):
        yield url


@pytest.mark.parametrize(
    ("shape", "data", "status", "expected"),
    [
        ([1, 4], [0, 1, 0, 1], 200, [0, 0, 1, 3]),
        ([1, 1], [0], 200, []),
        ([2, 1], [1, 1], 200, [0, 0, 0, 0]),
        ([2, 2], [0, 1, 1, 1], 400, "places differs in size between items"),
        ([1, 5], [0] * 5, 400, "has the size 5 along n; 1 to 4 are accepted"),
        ([1, 0], [], 400, ""),
        ([1, 2**31 - 1], [0], 400, ""),
        ([1, 4], [1, 1, 1, 1], 400, "cannot compute this input"),
    ],
)
def test_sizes_that_vary_have_bounds(
    varying_url: str, shape: list[int], data: list[float], status: int, expected: Any
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    answer = post(varying_url, "/v2/models/places/infer", {"inputs": [tensor]})
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["outputs"][0]["data"] == expected
    else:
        assert expected in answer.json()["error"]


def test_a_graphs_rows(graph_url: str) -> None:
    rows = [{"a": [1, 2], "b": [3, 1]}, {"a": [0.5, 0], "b": [0, 0]}]
    answer = post(graph_url, "/v1/models/sums:predict", {"instances": rows})
    assert answer.json() == {
        "predictions": [
            {"sum": [4, 3], "more": [False, True]},
            {"sum": [0.5, 0], "more": [True, False]},
        ]
    }
    refused = post(graph_url, "/v1/models/sums:predict", {"instances": [{"a": [1, 2]}]})
    assert (refused.status_code, refused.json()["error"]) == (400, "b is missing")

"""Graphs without a batch axis over every protocol: a request is one item of the graph's full shapes."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
from numpy.typing import NDArray
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from tests import graphs
from tests.conftest import started
from tests.e2e.tasks import Service
from tests.graphs import model, node, value

X, W, S = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32), np.float32(0.5)


@contextmanager
def served(folder: Path) -> Iterator[Service]:
    with started("fastapi_onnx", SERVING_MODEL_DIR=str(folder), SERVING_INSTANCES="1") as addresses:
        yield Service(*addresses)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Of `y` = x * w + s and its sum, with x [2, 3], w [3] and s []."""
    made = model(
        [node("Mul", "x w", "p"), node("Add", "p s", "y"), node("ReduceSum", "y", "total", keepdims=0)],
        [value("x", axes=[2, 3]), value("w", axes=[3]), value("s", axes=[])],
        [value("y", axes=[2, 3]), value("total", axes=[])],
    )
    with served(graphs.saved(made, tmp_path_factory.mktemp("models") / "line")) as service:
        yield service


@pytest.mark.parametrize("kind", ["http", "json", "grpc"])
def test_tensors_have_the_graphs_own_shapes(service: Service, kind: str) -> None:
    outputs = service.triton(kind, "line", {"x": X, "w": W, "s": np.asarray(S)})
    assert np.array_equal(outputs["y"], X * W + S)
    assert outputs["total"].shape == ()
    assert outputs["total"] == 18
    with pytest.raises(
        InferenceServerException, match=r"x must have the shape \[2, 3\], not \[1, 2, 3\]"
    ):
        service.triton(kind, "line", {"x": X[np.newaxis], "w": W, "s": np.asarray(S)})
    with pytest.raises(InferenceServerException, match=r"s must have the shape \[\], not \[1\]"):
        service.triton(kind, "line", {"x": X, "w": W, "s": W[:1]})


def test_only_outputs_in_json_must_be_finite(service: Service) -> None:
    """The sum of the large numbers is infinite."""
    large = np.full_like(X, 3e38)
    tensors: dict[str, NDArray[np.float32]] = {"x": large, "w": W, "s": np.zeros((), np.float32)}
    inputs = [
        {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in tensors.items()
    ]
    path, y = "/v2/models/line/infer", {"name": "y"}
    binary = {"name": "total", "parameters": {"binary_data": True}}
    for outputs in ([y], [y, binary]):
        answer = service.post(path, {"inputs": inputs, "outputs": outputs})
        head = answer.headers.get("Inference-Header-Content-Length")
        first = json.loads(answer.content[: int(head) if head else None])["outputs"][0]
        assert (answer.status_code, first["name"]) == (200, "y")
        assert np.array_equal(np.float32(first["data"]), large.ravel())
    refused = service.post(path, {"inputs": inputs})
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "the total of element 0 is not finite",
    )


def test_requests_are_computed_one_at_a_time(service: Service) -> None:
    def ask(number: int) -> float:
        scalar = np.asarray(np.float32(number))
        return float(service.triton("http", "line", {"x": X, "w": W, "s": scalar})["total"])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(32))) == [15 + 6 * number for number in range(32)]
    statistics = service.get("/v2/models/line/stats")
    assert [entry["batch_size"] for entry in statistics["model_stats"][0]["batch_stats"]] == [1]


def test_metadata_say_that_there_is_no_batch(service: Service) -> None:
    shapes = {"x": [2, 3], "w": [3], "s": []}
    metadata = service.get("/v2/models/line")
    assert {tensor["name"]: tensor["shape"] for tensor in metadata["inputs"]} == shapes
    config = service.get("/v2/models/line/config")
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)
    with tritonclient.grpc.InferenceServerClient(service.grpc) as client:
        described = client.get_model_metadata("line").inputs
        assert {tensor.name: list(tensor.shape) for tensor in described} == shapes
        assert client.get_model_config("line").config.max_batch_size == 0
    signature = service.get("/v1/models/line/metadata")["metadata"]
    inputs = signature["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert [size["size"] for size in inputs["x"]["tensor_shape"]["dim"]] == ["2", "3"]
    described = service.get("/model")
    assert (described["batched"], described["max_batch_size"]) == (False, 1)
    assert described["batch_note"].startswith("the inputs do not share their first axis: 2 in x")


def test_tensorflow_serving_takes_columns_and_no_rows(service: Service) -> None:
    def post(content: Any) -> requests.Response:
        return service.post("/v1/models/line:predict", content)

    columns = {"x": X.tolist(), "w": W.tolist(), "s": 0.5}
    assert post({"inputs": columns}).json() == {"outputs": {"y": (X + 0.5).tolist(), "total": 18}}
    refused = post({"instances": [columns]})
    assert (refused.status_code, "inputs" in refused.json()["error"]) == (400, True)
    wrongs: list[dict[str, Any]] = [
        {"s": [0.5]}, {"s": "a"}, {"x": [X.tolist()]}, {"x": [1, 2, 3]}, {"w": 1}, {"w": []},
    ]  # fmt: skip
    for wrong in wrongs:
        assert post({"inputs": {**columns, **wrong}}).status_code == 400


def test_the_documents_examples_are_answered(service: Service) -> None:
    paths = service.check_examples()
    assert {"/v2/models/{model}/infer", "/v1/models/{model}:predict"} <= paths
    assert not paths & {"/predict", "/predictions/{model}"}  # which need a task


def test_a_graph_over_a_stream_takes_and_returns_its_state(tmp_path: Path) -> None:
    """Like silero's detector of speech: an open state [2, N, 128] and a scalar; items below 250 fail."""
    made = model(
        [
            node("ReduceMean", "input one", "output", keepdims=1),
            node("Gather", "input late", "last", axis=1),
            node("Cast", "sr", "rate", to=TensorProto.FLOAT),
            node("Mul", "state rate", "scaled"),
            node("Add", "scaled last", "sum"),
            node("Shape", "sum", "shape"),
            node("Abs", "shape", "unknown"),  # to onnx, like the shape of the branches of an If
            node("Reshape", "sum unknown", "stateN"),
        ],
        [
            value("input", axes=[None, None]),
            value("state", axes=[2, None, 128]),
            value("sr", TensorProto.INT64, []),
        ],
        [value("output", axes=[None, 1]), value("stateN", axes=[None, None, None])],
        graphs.tensors(one=[1], late=[249]),
    )
    with served(graphs.saved(made, tmp_path / "speech")) as service:
        for count, kind in ((1, "http"), (3, "json"), (256, "grpc")):
            sound = np.random.default_rng(count).random((count, 512), np.float32)
            state = np.random.default_rng(count).random((2, count, 128), np.float32)
            inputs = {"input": sound, "state": state, "sr": np.array(16000)}
            outputs = service.triton(kind, "speech", inputs)
            assert np.allclose(outputs["output"], sound.mean(axis=1, keepdims=True))
            assert np.allclose(outputs["stateN"], state * 16000 + sound[:, 249:250])

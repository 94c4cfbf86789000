"""Requests of MLServer's clients: a graph with their names, labels of versions."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
from onnx import TensorProto

from tests import graphs
from tests.conftest import started
from tests.graphs import node, value

ROWS = np.array([[0.1, 0.2, 0.7], [2.0, 1.0, -1.0]])
DESCRIPTION = {
    "name": "iris",
    "version": "1",
    "version_labels": {"v0.1.0": "1", "v0.2.0": "2"},
    "task": "tensor",
    "names": {"X": "predict", "label": "predict", "probabilities": "predict_proba"},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A classifier of FP64 [3] under MLServer's names: base URL, and host and port of its gRPC."""
    nodes = [node("Softmax", "X", "probabilities"), node("ArgMax", "X", "label", axis=1, keepdims=0)]
    outputs = [
        value("label", TensorProto.INT64, ["N"]),
        value("probabilities", TensorProto.DOUBLE, ["N", 3]),
    ]
    graph = graphs.model(nodes, [value("X", TensorProto.DOUBLE, ["N", 3])], outputs)
    folder = graphs.saved(graph, tmp_path_factory.mktemp("models") / "iris", "1")
    (folder / "model.json").write_text(json.dumps(DESCRIPTION))
    with started("fastapi_onnx", SERVING_MODEL_DIR=str(folder), SERVING_INSTANCES="1") as addresses:
        yield addresses


def infer(url: str, path: str = "/v2/models/iris/infer", **changes: Any) -> requests.Response:
    """Posts what `mlserver.codecs.NumpyRequestCodec` makes of the rows, with changes to the input."""
    hints = {"parameters": {"content_type": "np"}}
    data = {"shape": [2, 3], "datatype": "FP64", "data": ROWS.ravel().tolist()}
    tensor = {"name": "predict", **data, **hints, **changes}
    return requests.post(f"{url}{path}", json={"inputs": [tensor], **hints}, timeout=30)


@pytest.mark.parametrize("path", ["", "/versions/1", "/versions/v0.1.0"])
def test_a_graph_answers_under_the_names_of_model_json(service: tuple[str, str], path: str) -> None:
    answer = infer(service[0], f"/v2/models/iris{path}/infer").json()
    predict, proba = answer["outputs"]
    assert (answer["model_version"], predict["name"], proba["name"]) == ("1", "predict", "predict_proba")
    assert (predict["shape"], predict["data"]) == ([2], [2, 0])
    expected = np.exp(ROWS) / np.exp(ROWS).sum(1, keepdims=True)
    np.testing.assert_allclose(proba["data"], expected.ravel())
    described = requests.get(f"{service[0]}/v2/models/iris{path}", timeout=10).json()
    assert [tensor["name"] for tensor in described["inputs"]] == ["predict"]
    assert requests.get(f"{service[0]}/v2/models/iris{path}/ready", timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("path", "changes", "status", "words"),
    [
        ("/versions/v0.2.0", {}, 404, "version 'v0.2.0' of iris is not served; version 1 is"),
        ("/versions/v0.3.0", {}, 404, "version 'v0.3.0' of iris is not served; version 1 is"),
        ("", {"name": "X"}, 400, "iris has no input 'X'; its inputs are predict"),
        ("", {"datatype": "INT64", "data": [1] * 6}, 400, "predict must be FP64, not 'INT64'"),
    ],
)
def test_what_is_refused(
    service: tuple[str, str], path: str, changes: dict[str, Any], status: int, words: str
) -> None:
    refused = infer(service[0], f"/v2/models/iris{path}/infer", **changes)
    assert (refused.status_code, refused.json()) == (status, {"error": words})


def test_other_protocols_know_the_labels_and_the_names(service: tuple[str, str]) -> None:
    rows = {"instances": [{"predict": row} for row in ROWS.tolist()]}
    path = f"{service[0]}/v1/models/iris/versions/v0.1.0:predict"
    predictions = requests.post(path, json=rows, timeout=30).json()["predictions"]
    assert [row["predict"] for row in predictions] == [2, 0]
    for version, status in {"v0.1.0": 200, "1.0": 200, "1": 200, "v0.2.0": 404, "2.0": 404}.items():
        described = requests.get(f"{service[0]}/models/iris/{version}", timeout=10)
        assert described.status_code == status, version

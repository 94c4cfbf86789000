"""A task that another package adds, as one file and one row: every protocol serves it.

CONTRIBUTING.md promises that nothing else needs to change.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
from onnx import TensorProto, numpy_helper
from typer.testing import CliRunner

from flask_app.app import create_app
from flask_app.settings import Settings as PageSettings
from smallplates.cli import ask
from smallplates.client import Client
from smallplates.client.tcp import TcpClient
from smallplates.models.task_kinds import KINDS
from tests import exports, graphs, servers
from tests.fake.token_count import ROW
from tools import tables

WORDS = exports.word_piece()
TEXTS = ("warm", "the soup was wonderful and warm", "the bread on the table")
COUNTS = [len(WORDS.encode(text).ids) for text in TEXTS]


def install(folder: Path) -> None:
    """Writes what pip writes for a package that has the row as an entry point."""
    written = folder / "token_count-1.dist-info"
    written.mkdir()
    (written / "METADATA").write_text("Metadata-Version: 2.1\nName: token-count\nVersion: 1\n")
    row = "token-count = tests.fake.token_count:ROW"
    (written / "entry_points.txt").write_text(f"[smallplates.tasks]\n{row}\n")


def export(folder: Path) -> Path:
    """A network whose `states` [tokens, 2] are 1 and 0 for each token."""
    exports.files(folder, WORDS, {"architectures": ["BertForTokenCount"]})
    last = numpy_helper.from_array(np.array([-1]), "last")
    nodes = [
        graphs.node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT),
        graphs.node("Unsqueeze", "mask last", "ones"),
        graphs.node("Sub", "ones ones", "zeros"),
        graphs.node("Concat", "ones zeros", "states", axis=2),
    ]
    axes = ("batch_size", "sequence_length")
    inputs = [graphs.value(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")]
    states = graphs.value("states", axes=(*axes, 2))
    return graphs.saved(graphs.model(nodes, inputs, [states], [last]), folder)


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    """Those of gRPC and TCP."""
    return servers.free_port(), servers.free_port()


@pytest.fixture(scope="module")
def url(ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("packages")
    install(folder)
    settings = {
        "PYTHONPATH": str(folder),
        "SERVING_MODEL_DIR": str(export(folder / "counter")),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_INSTANCES": "1",
        "SERVING_WEB_PROCESSES": "2",
        "SERVING_GRPC_PORT": str(ports[0]),
        "SERVING_TCP_PORT": str(ports[1]),
    }
    with servers.api("fastapi_onnx", settings) as url:
        yield url


def post(url: str, content: Any) -> Any:
    answer = requests.post(url, json=content, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post_text(url: str, text: str) -> Any:
    headers = {"Content-Type": "text/plain"}
    return requests.post(url, data=text.encode(), headers=headers, timeout=20).json()


def test_its_own_request(url: str) -> None:
    assert [post(f"{url}/predict", {"text": text}) for text in TEXTS] == [
        {"tokens": count} for count in COUNTS
    ]
    assert post(f"{url}/predict", {"text": list(TEXTS)}) == [{"tokens": count} for count in COUNTS]
    assert post_text(f"{url}/predict", TEXTS[0]) == {"tokens": COUNTS[0]}
    too_long = requests.post(f"{url}/predict", json={"text": "warm " * 99}, timeout=20)
    assert (too_long.status_code, too_long.json()["code"]) == (413, "text_too_long")


def test_it_describes_itself(url: str) -> None:
    described = requests.get(f"{url}/model", timeout=20).json()
    assert (described["task"], described["limits"]["tokens"]) == ("token-count", 64)
    assert post(f"{url}/predict", described["example"]) == {"tokens": 4}
    paths = requests.get(f"{url}/openapi.json", timeout=20).json()["paths"]
    content = paths["/predict"]["post"]["requestBody"]["content"]
    assert content["application/json"]["example"] == {"text": "warm bread"}


def test_v2(url: str) -> None:
    model = f"{url}/v2/models/counter"
    metadata = requests.get(model, timeout=20).json()
    assert metadata["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    assert metadata["outputs"] == [{"name": "TOKENS", "datatype": "INT64", "shape": [-1, 1]}]
    column = {"name": "TEXT", "datatype": "BYTES", "shape": [3, 1], "data": TEXTS}
    answer = post(f"{model}/infer", {"inputs": [column]})
    assert answer["outputs"][0]["data"] == COUNTS


@pytest.mark.usefixtures("url")
def test_grpc(ports: tuple[int, int]) -> None:
    column = tritonclient.grpc.InferInput("TEXT", [3, 1], "BYTES")
    column.set_data_from_numpy(np.array([[text] for text in TEXTS], np.object_))
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports[0]}") as client:
        answer = client.infer("counter", [column])
    assert answer.as_numpy("TOKENS").ravel().tolist() == COUNTS


@pytest.mark.usefixtures("url")
def test_tcp(ports: tuple[int, int]) -> None:
    with TcpClient("127.0.0.1", ports[1]) as client:
        answer = client.predict(TEXTS[1].encode())
    assert (answer.status, answer.content["tokens"]) == (200, COUNTS[1])


def test_its_tensors(url: str) -> None:
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [2, 5, 3]}
    mask = {**ids, "name": "attention_mask", "data": [1, 1, 1]}
    answer = post(f"{url}/v2/models/counter_tensor/infer", {"inputs": [ids, mask]})
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([1, 3, 2], [1, 0] * 3)


def test_tensorflow_serving(url: str) -> None:
    predict = f"{url}/v1/models/counter:predict"
    assert post(predict, {"instances": list(TEXTS)}) == {"predictions": COUNTS}


def test_torchserve(url: str) -> None:
    assert post_text(f"{url}/predictions/counter", TEXTS[1]) == {"tokens": COUNTS[1]}


def test_the_client_and_the_command(url: str) -> None:
    with Client(url) as client:
        assert client.call({"text": TEXTS[1]}).body == {"tokens": COUNTS[1]}
    for option, request in (("--text", TEXTS[0]), ("--json", '{"text": "warm"}')):
        asked = CliRunner().invoke(ask.app, [option, request, "--url", url])
        assert asked.output.startswith(f'{request}: {{"tokens": {COUNTS[0]}}} (')


def test_the_page_makes_a_form_of_it(url: str) -> None:
    app = create_app(PageSettings(api_url=url))
    with closing(app.extensions["api"]):
        page = app.test_client().get("/").text
        assert 'data-view="form"' in page
        assert "warm bread" in page
        answer = app.test_client().post("/ask", data={"text": TEXTS[1]}).get_json()
    assert answer["answer"] == {"tokens": COUNTS[1]}
    assert answer["page"]["sentence"] == f"Tokens: {COUNTS[1]}"
    assert "&#34;text&#34;" in answer["page"]["html"]  # the same request as code


def test_the_tables_of_the_documents_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KINDS", (*KINDS, ROW))
    assert "| [`token-count`](#token-count) | `text` |" in tables.needs_table()
    assert "| `token-count` | `fastapi_onnx` | int8, bf16, fp32 | fp32 |" in tables.supported_table()
    head, _, native, *_ = tables.protocols_table().splitlines()
    assert "`token-count`" in head
    assert native.endswith("| requests | no | requests | requests |")

"""One service with a model of every task, and how it is called over every protocol."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto
from tritonclient.utils import np_to_triton_dtype

from smallplates.models.tensors import Array
from smallplates.settings import Settings
from tests import exports, graphs, servers
from tests.conftest import started

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
PYTHON = {"own": "Obedient", "numbers": "Numbers", "squares": "Squares"}
TEXTS = ("sentiment", "reader", "vectors", "ranker", "tagger", "implied")
MODELS = ("food11", *TEXTS, *PYTHON, "sums", "places", "twice")


@dataclass(frozen=True)
class Service:
    """Where a service speaks what."""

    url: str
    grpc: str
    tcp_port: int = 0

    def get(self, path: str) -> Any:
        """Returns the JSON of a path."""
        return requests.get(self.url + path, timeout=20).json()

    def post(self, path: str, body: Any, kind: str | None = None) -> requests.Response:
        """Posts bytes with this Content-Type, or anything else as JSON."""
        if not isinstance(body, bytes):
            return requests.post(self.url + path, json=body, timeout=20)
        headers = {"Content-Type": kind} if kind else {}
        return requests.post(self.url + path, data=body, headers=headers, timeout=20)

    def triton(
        self, wire: str, model: str, arrays: dict[str, Array], parameters: dict[str, int] | None = None
    ) -> dict[str, Array]:
        """Returns all outputs of a model, called by Triton's client: `http`, `json` or `grpc`."""
        module: Any = tritonclient.grpc if wire == "grpc" else tritonclient.http
        inputs = []
        for name, array in arrays.items():
            inputs.append(module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array, **({"binary_data": False} if wire == "json" else {}))
        address = self.grpc if wire == "grpc" else self.url.removeprefix("http://")
        with module.InferenceServerClient(address) as client:
            answer = client.infer(model, inputs, parameters=parameters)
            outputs = answer.get_response(**({"as_json": True} if wire == "grpc" else {}))["outputs"]
            return {output["name"]: answer.as_numpy(output["name"]) for output in outputs}


@contextmanager
def every_task(folder: Path) -> Iterator[Service]:
    """Runs a service of MODELS, made in this folder; a text has at most 64 tokens."""
    exports.saved(folder / "export-1", exports.word_piece(), {}, names=TOKENS)
    exports.asked(folder / "reader", exports.word_piece(), {}, names=TOKENS)
    exports.encoded(folder / "vectors", exports.word_piece(), {}, names=TOKENS)
    exports.modules(
        folder / "vectors", ("Pooling", {"pooling_mode_mean_tokens": True}), ("Normalize", {})
    )
    exports.ranked(folder / "ranker", exports.word_piece(), {}, names=TOKENS)
    exports.tagged(folder / "tagger", exports.word_piece(), {}, names=TOKENS)
    exports.compared(folder / "implied", exports.word_piece(), {})
    for name, task in PYTHON.items():
        described = {"name": name, "version": "1", "task": f"tests.fake.python_task:{task}"}
        write_description(folder / name, described)
    graphs.saved(graphs.two_by_two(), folder / "sums")
    graphs.saved(graphs.nonzero(), folder / "places", "1")
    places = {"name": "places", "version": "1", "task": "tensor", "limits": {"found": 3, "n": 4}}
    write_description(folder / "places", places)
    graphs.saved(doubles(), folder)
    (folder / "model.onnx").rename(folder / "twice.onnx")
    models = [str(Settings().model_dir), f"sentiment={folder}/export-1"]
    models += [str(folder / name) for name in (*TEXTS[1:], *PYTHON, "sums", "places", "twice.onnx")]
    port = servers.free_port()
    more = {"SERVING_MODELS": ",".join(models), "SERVING_QUEUE_SIZE": "32"}
    with started("fastapi_onnx", SERVING_TCP_PORT=str(port), **more) as (url, grpc):
        service = Service(url, grpc, port)
        servers.wait_for(lambda: set(service.get("/health/ready")["models"].values()) == {"ready"})
        yield service


def write_description(folder: Path, described: dict[str, Any]) -> None:
    """Writes model.json."""
    folder.mkdir(exist_ok=True)
    (folder / "model.json").write_text(json.dumps(described))


def doubles() -> Any:
    """Returns a graph that adds `x` FP32 [N, n, m] and `i` UINT8 [N, n, m] to themselves."""
    axes = ["N", "n", "m"]
    nodes = [graphs.node("Add", "x x", "y"), graphs.node("Add", "i i", "j")]
    inputs = [graphs.value("x", axes=axes), graphs.value("i", TensorProto.UINT8, axes)]
    outputs = [graphs.value("y", axes=axes), graphs.value("j", TensorProto.UINT8, axes)]
    return graphs.model(nodes, inputs, outputs)

"""One service with a model of every task, and how it is called over every protocol."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import requests
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, numpy_helper
from tritonclient.utils import np_to_triton_dtype

from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.web.api.datatypes import DATATYPES
from smallplates.web.grpc.generated import tf_serving_pb2 as pb
from tests import exports, graphs, servers
from tests.conftest import started
from tests.fake import token_count

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
PYTHON = {"own": "Obedient", "numbers": "Numbers", "squares": "Squares"}
TEXTS = ("sentiment", "reader", "vectors", "ranker", "tagger", "implied", "counter")
MODELS = ("food11", *TEXTS, *PYTHON, "sums", "places", "twice")


@dataclass(frozen=True)
class Service:
    """Where a service speaks what."""

    url: str
    grpc: str
    tcp_port: int = 0

    def get(self, path: str) -> Any:
        return requests.get(self.url + path, timeout=60).json()

    def post(self, path: str, body: Any, kind: str | None = None) -> requests.Response:
        """Posts bytes with this Content-Type, or anything else as JSON."""
        if not isinstance(body, bytes):
            return requests.post(self.url + path, json=body, timeout=60)
        headers = {"Content-Type": kind} if kind else {}
        return requests.post(self.url + path, data=body, headers=headers, timeout=60)

    def check_examples(self) -> set[str]:
        """Every documented call is answered, with each of its examples; returns the paths of these."""
        called = set()
        for path, operations in self.get("/openapi.json")["paths"].items():
            for method, operation in operations.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                examples = content.get("examples", {"": {"value": content.get("example")}})
                for label, example in examples.items():
                    named = path
                    for parameter in operation.get("parameters", ()):
                        if parameter["in"] == "path":
                            models = parameter["examples"]
                            model = models.get(label) or next(iter(models.values()))
                            named = named.replace(f"{{{parameter['name']}}}", model["value"])
                    body = example["value"]
                    if body is None and method != "get" and path != "/v2/repository/index":
                        continue  # of a model without an example
                    answer = requests.request(method, self.url + named, json=body, timeout=60)
                    assert answer.status_code == 200, (named, label, answer.text)
                    called.add(path)
        return called

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

    def tensorflow(self, model: str, arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns all outputs of a model over TensorFlow Serving's gRPC."""
        request = pb.PredictRequest(model_spec={"name": model})
        for name, array in arrays.items():
            tensor = request.inputs[name]
            tensor.dtype = pb.DataType.Value(DATATYPES[np_to_triton_dtype(array.dtype)].tensorflow)
            tensor.tensor_shape.dim.extend(pb.TensorShapeProto.Dim(size=size) for size in array.shape)
            if array.dtype == object:
                tensor.string_val.extend(text.encode() for text in array.flat)
            else:
                tensor.tensor_content = array.tobytes()
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            answer = pb.PredictResponse.FromString(call(request.SerializeToString(), timeout=60))
        return {name: array_of(tensor) for name, tensor in answer.outputs.items()}


def array_of(tensor: Any) -> Array:
    """The values of a TensorProto in its shape."""
    fields = {field.name: value for field, value in tensor.ListFields()}
    values: Any = next((value for name, value in fields.items() if name.endswith("_val")), [])
    kind = object if tensor.dtype == pb.DT_STRING else None
    return np.array([*values], kind).reshape([dim.size for dim in tensor.tensor_shape.dim])


@contextmanager
def every_task(folder: Path) -> Iterator[Service]:
    """Runs a service of MODELS, made in this folder; a text has at most 64 tokens."""
    exports.each(folder, "export-1", *TEXTS[1:6], names=TOKENS)
    exports.modules(
        folder / "vectors", ("Pooling", {"pooling_mode_mean_tokens": True}), ("Normalize", {})
    )
    counter(folder / "counter")
    (folder / "installed").mkdir()
    token_count.install(folder / "installed")
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
    more["PYTHONPATH"] = str(folder / "installed")
    with started("fastapi_onnx", SERVING_TCP_PORT=str(port), **more) as (url, target):
        service = Service(url, target, port)
        for name in MODELS:  # one after another is loaded
            servers.wait_for(lambda: service.get("/health/ready")["models"][name] == "ready")  # noqa: B023
        yield service


def write_description(folder: Path, described: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.json").write_text(json.dumps(described))


def counter(folder: Path) -> None:
    """Writes an export for another package's task; `states` [tokens, 2] are 1 and 0 for each token."""
    exports.files(folder, exports.word_piece(), {"architectures": ["BertForTokenCount"]})
    last = numpy_helper.from_array(np.array([-1]), "last")
    nodes = [
        graphs.node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT),
        graphs.node("Unsqueeze", "mask last", "ones"),
        graphs.node("Sub", "ones ones", "zeros"),
        graphs.node("Concat", "ones zeros", "states", axis=2),
    ]
    axes = ("batch_size", "sequence_length")
    inputs = [graphs.value(name, TensorProto.INT64, axes) for name in TOKENS[:2]]
    states = graphs.value("states", axes=(*axes, 2))
    graphs.saved(graphs.model(nodes, inputs, [states], [last]), folder)


def doubles() -> Any:
    """Returns a graph that adds `x` FP32 [N, n, m] and `i` UINT8 [N, n, m] to themselves."""
    axes = ["N", "n", "m"]
    nodes = [graphs.node("Add", "x x", "y"), graphs.node("Add", "i i", "j")]
    inputs = [graphs.value("x", axes=axes), graphs.value("i", TensorProto.UINT8, axes)]
    outputs = [graphs.value("y", axes=axes), graphs.value("j", TensorProto.UINT8, axes)]
    return graphs.model(nodes, inputs, outputs)

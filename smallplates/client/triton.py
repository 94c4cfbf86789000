"""Open Inference Protocol v2: builds its requests, reads its answers. Does no I/O.

Knows `food_classifier`, as Triton serves it from the output of `python -m smallplates.export.triton` and
as the service itself serves it, and models of other names with the same tensors: BYTES `INPUT_IMAGE` in;
BYTES `FOOD_LABEL` and FP32 `PROBABILITY` out, the `top_k` best of each. A server that ignores the
parameter `top_k` answers the best one.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from smallplates.client import answers, calls
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions
from smallplates.client.errors import ServingClientError
from smallplates.client.results import Model, Prediction, Readiness

MODEL = "food_classifier"
READY = f"/v2/models/{MODEL}/ready"
JSON_LENGTH = "Inference-Header-Content-Length"
DESCRIPTION = "model.json"
LABEL, PROBABILITY = "FOOD_LABEL", "PROBABILITY"
NOT_READY = (400, 404, 503)  # Triton's statuses for a model that is missing or loading
CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    413: "payload_too_large",
    500: "internal_error",
    503: "overloaded",
    504: "deadline_exceeded",
}


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
    path = calls.of_model("/v2/models", options.get("model", MODEL)) + "/infer"
    headers: dict[str, str] = {"X-Priority": options["priority"]} if "priority" in options else {}
    if options.get("base64"):
        tensor["data"] = [base64.b64encode(photo).decode("ascii")]
        headers["Content-Type"] = "application/json"
        return Call("POST", path, headers, json.dumps(content).encode())
    element = len(photo).to_bytes(4, "little") + photo
    tensor["parameters"] = {"binary_data_size": len(element)}
    head = json.dumps(content).encode()
    headers |= {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(head))}
    return Call("POST", path, headers, head + element)


def config_path(model: str | None) -> str:
    """Returns the path of a model's configuration."""
    return calls.of_model("/v2/models", model or MODEL) + "/config"


def prediction(answer: Answer, top_k: int | None) -> Prediction:
    """Reads the answer to `predict`; `body` is as `POST /predict` has it. Raises ServingClientError."""
    if answer.status != 200:
        raise error(answer)
    try:
        outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
        pairs = zip(outputs[LABEL], outputs[PROBABILITY], strict=True)
        top = tuple(answers.score(label, probability) for label, probability in pairs)
        best = top[0]
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise answers.undocumented(answer) from problem
    body: dict[str, Any] = {"prediction": best.label, "probability": best.probability}  # Any: JSON
    if top_k is not None:
        body["top"] = [{"label": score.label, "probability": score.probability} for score in top]
    return answers.build_prediction(answer, top if top_k is not None else (best,), body)


def model(answer: Answer) -> Model:
    """Reads the model's configuration, which usually carries `model.json`.

    Without `model.json`, labels and version are empty. Raises ServingClientError.
    """
    if answer.status != 200:
        raise error(answer)
    config = answer.json()
    if not isinstance(config, dict):
        raise answers.undocumented(answer)
    description = model_description(config)
    labels = description.get("labels")
    return Model(
        name=str(description.get("name", config.get("name", ""))),
        version=str(description.get("version", "")),
        labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
        body={**description, "backend": config.get("backend"), "device": device(config)},
    )


def model_description(config: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Returns the content of `model.json` from the configuration's parameters; empty without it."""
    try:
        description = json.loads(config["parameters"][DESCRIPTION]["string_value"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return description if isinstance(description, dict) else {}


def device(config: Mapping[str, Any]) -> str:  # Any: JSON
    """Returns `cpu` or `cuda`, by the first instance group; empty when Triton chooses."""
    try:
        kind = config["instance_group"][0]["kind"]
    except (KeyError, IndexError, TypeError):
        return ""
    return {"KIND_CPU": "cpu", "KIND_GPU": "cuda"}.get(str(kind), "")


def readiness(answer: Answer) -> Readiness:
    """Reads the answer of the model's `ready`. Raises ServingClientError."""
    if answer.status == 200:
        return Readiness(True, "")
    if answer.status not in NOT_READY:
        raise error(answer)
    body = answer.json()
    said = body.get("error") if isinstance(body, dict) else None
    return Readiness(False, str(said or "the model is not ready"))


def error(answer: Answer) -> ServingClientError:
    """Returns the error for a status other than 200; its code comes from the status."""
    body = answer.json()
    if isinstance(body, dict) and "error" in body and 400 <= answer.status < 600:
        code = CODES.get(answer.status, f"http_{answer.status}")
        return answers.refusal(answer, str(body["error"]), code, body)
    return answers.error(answer)

"""Calls Triton's `food_classifier_onnx`: normalised pixels go in, logits come out.

`photos.py` prepares the pixels as the model's configuration says, which carries `model.json`.
"""

import math
from collections.abc import Mapping
from typing import Any

from smallplates.client import calls, triton
from smallplates.client.calls import Call

NAME = triton.MODEL + "_onnx"
Config = Mapping[str, Any]
"""The model's configuration in Triton, with the fields of its `model.json`."""


def call(config: Config, tensor: bytes) -> Call:
    """Builds the request of one photo."""
    (given,), (output,) = config["input"], config["output"]
    inputs = [{"name": given["name"], "shape": [1, *map(int, given["dims"])], "datatype": "FP32"}]
    content = {"inputs": inputs, "outputs": [{"name": output["name"]}]}
    return triton.binary(calls.of_model("/v2/models", NAME) + "/infer", content, tensor)


def best(config: Config, answer: Mapping[str, Any], top_k: int) -> dict[str, Any]:
    """Returns the best classes, as `POST /predict` does."""
    logits = answer["outputs"][0]["data"]
    if config["image"].get("activation") == "sigmoid":
        shares = [1 / (1 + math.exp(-max(logit, -700))) for logit in logits]
    else:
        odds = [math.exp(logit - max(logits)) for logit in logits]
        shares = [each / sum(odds) for each in odds]
    pairs = sorted(zip(shares, config["labels"], strict=True), reverse=True)
    top = [{"label": label, "probability": share} for share, label in pairs[:top_k]]
    return {"prediction": top[0]["label"], "probability": top[0]["probability"], "top": top}

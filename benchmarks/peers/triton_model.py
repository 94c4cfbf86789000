"""Model for Triton's Python backend; `triton_server.py` copies it into the model repository."""
# ruff: noqa: E402

import os
import sys
from typing import Any

# the stub knows no virtual environment, and would look among the system's packages first
sys.path[:0] = os.environ["PEER_PATH"].split(os.pathsep)

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.peers.common import peer
from benchmarks.table_model import INPUT, OUTPUT


class TritonPythonModel:
    """Model instance."""

    def initialize(self, _: dict[str, str]) -> None:
        """Loads the model, in each instance's process."""
        self.classify: Any = peer(os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers base64 or a text with class and probability, or a row with its probabilities."""
        if os.environ["PEER_PIPELINE"] == "table":
            return [self.of_row(request) for request in requests]
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0].decode()
            answer = self.classify.text(text)
            label = np.array([answer["prediction"].encode()], object)
            probability = np.array([answer["probability"]], np.float32)
            tensors = [pb_utils.Tensor("LABEL", label), pb_utils.Tensor("PROBABILITY", probability)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def of_row(self, request: Any) -> Any:
        """Answers one row."""
        rows = pb_utils.get_input_tensor_by_name(request, INPUT).as_numpy()
        probabilities = pb_utils.Tensor(OUTPUT, self.classify.infer(rows))
        return pb_utils.InferenceResponse(output_tensors=[probabilities])

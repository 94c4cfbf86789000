"""Text model for Triton's Python backend; `triton_text_server.py` copies it into the repository."""
# ruff: noqa: E402

import os
import sys
from typing import Any

# the stub knows no virtual environment, and would look among the system's packages first
sys.path[:0] = os.environ["PEER_PATH"].split(os.pathsep)

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.peers.text import ClassifyTexts


class TritonPythonModel:
    """Model instance."""

    def initialize(self, _: dict[str, str]) -> None:
        """Loads the model, in each instance's process."""
        self.classify = ClassifyTexts(os.environ["PEER_MODEL_DIR"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers one text a request, all in one batch."""
        arrays = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        responses = []
        for answer in self.classify([array.item().decode() for array in arrays]):
            label = np.array([[answer["prediction"].encode()]], object)
            probability = np.array([[answer["probability"]]], np.float32)
            tensors = [pb_utils.Tensor("LABEL", label), pb_utils.Tensor("PROBABILITY", probability)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

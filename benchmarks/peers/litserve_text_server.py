"""LitServe for texts: a worker per core, its own JSON, no batches.

Tried on two cores with 16 and 64 connections, in texts a second: none 57 and 55, batches of up to two 56
and 54. A batch is padded to its longest text.
"""

import os
import sys
from typing import Any

import litserve

from benchmarks.peers.common import CORES
from benchmarks.peers.text import ClassifyTexts

MODEL_DIR, PORT = sys.argv[1:3]
BATCH = int(os.environ.get("PEER_BATCH", "1"))


class Classifier(litserve.LitAPI):
    """LitAPI with batches."""

    def setup(self, device: str) -> None:  # noqa: ARG002 the interface's
        """Loads the model, in each worker."""
        self.classify = ClassifyTexts(MODEL_DIR)

    def decode_request(self, request: dict[str, str], **_: Any) -> str:
        """Returns the text."""
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        """Leaves the texts as they are."""
        return inputs

    def predict(self, texts: Any, **_: Any) -> Any:
        """Answers a batch; a single text where batches are off."""
        return self.classify(texts) if BATCH > 1 else self.classify([texts])[0]

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leaves the answers as they are."""
        return output

    def encode_response(self, output: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the answer, which LitServe sends as JSON."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(
        Classifier(max_batch_size=BATCH, batch_timeout=0.001),
        accelerator="cpu",
        workers_per_device=CORES,
    )
    server.run(port=int(PORT), generate_client_file=False, log_level="error")

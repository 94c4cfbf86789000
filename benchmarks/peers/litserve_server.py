"""LitServe: a worker per core, its own JSON, no batching, which does not pay on a CPU."""

import sys
from typing import Any

import litserve

from benchmarks.peers.common import CORES, Classify

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]


class Classifier(litserve.LitAPI):
    """LitAPI without batches."""

    def setup(self, device: str) -> None:  # noqa: ARG002 the interface's
        """Loads the model, in each worker."""
        self.classify = Classify(MODEL_DIR, PIPELINE)

    def decode_request(self, request: dict[str, str], **_: Any) -> str:
        """Returns the base64 text."""
        return request["image"]

    def predict(self, text: str, **_: Any) -> dict[str, Any]:
        """Answers one request."""
        return self.classify.text(text)

    def encode_response(self, output: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the answer, which LitServe sends as JSON."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(), accelerator="cpu", workers_per_device=CORES)
    server.run(port=int(PORT), generate_client_file=False, log_level="error")

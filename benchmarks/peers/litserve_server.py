"""LitServe: a worker per core, no batching (it gains nothing on a CPU), its own JSON."""

import sys
from typing import Any

import litserve

from benchmarks.peers.common import CORES, Classify

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]


class Classifier(litserve.LitAPI):
    """The four steps of a LitAPI."""

    def setup(self, device: str) -> None:  # noqa: ARG002 the interface's
        """In each worker."""
        self.classify = Classify(MODEL_DIR, PIPELINE)

    def decode_request(self, request: dict[str, str], **_: Any) -> str:
        """The base64 text."""
        return request["image"]

    def predict(self, text: str, **_: Any) -> dict[str, Any]:
        """One request."""
        return self.classify.text(text)

    def encode_response(self, output: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Sent as JSON."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(), accelerator="cpu", workers_per_device=CORES)
    server.run(port=int(PORT), generate_client_file=False, log_level="error")

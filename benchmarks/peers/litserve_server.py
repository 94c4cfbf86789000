"""LitServe: a worker per core, its own JSON, no batches, which do not pay on a CPU.

Tried on two cores with 16 and 64 connections, in texts a second: none 57 and 55, batches of up to two 56
and 54. A batch is padded to its longest text.
"""

import sys
from typing import Any

import litserve

from benchmarks.peers.common import CORES, peer

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]


class Classifier(litserve.LitAPI):
    """LitAPI without batches."""

    def setup(self, device: str) -> None:  # noqa: ARG002 the interface's
        """Loads the model, in each worker."""
        self.classify = peer(MODEL_DIR, PIPELINE)

    def decode_request(self, request: dict[str, Any], **_: Any) -> Any:
        """Returns the base64, the text or the row."""
        return request[self.classify.field]

    def predict(self, text: Any, **_: Any) -> dict[str, Any]:
        """Answers one request."""
        return self.classify.text(text)

    def encode_response(self, output: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the answer, which LitServe sends as JSON."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(), accelerator="cpu", workers_per_device=CORES)
    server.run(port=int(PORT), generate_client_file=False, log_level="error")

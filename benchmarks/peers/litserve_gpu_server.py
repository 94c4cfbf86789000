"""LitServe on a GPU: batches, and a worker per core, because each worker decodes its own images."""

import sys
from typing import Any

import litserve

from benchmarks.peers.common import CORES
from benchmarks.peers.common_gpu import LARGEST, Decode, Infer, Pixels

MODEL_DIR, PORT = sys.argv[1:3]
WAIT_S = 0.002


class Classifier(litserve.LitAPI):
    """LitAPI with batches."""

    def setup(self, device: str) -> None:  # noqa: ARG002 the interface's
        """Loads decoder and network, in each worker."""
        self.decode, self.infer = Decode(MODEL_DIR), Infer(MODEL_DIR)

    def decode_request(self, request: dict[str, str], **_: Any) -> Pixels:
        """Decodes one request to pixels."""
        return self.decode(request["image"])

    def batch(self, inputs: list[Pixels]) -> list[Pixels]:
        """Returns the list unchanged."""
        return inputs

    def predict(self, images: list[Pixels], **_: Any) -> list[dict[str, Any]]:
        """Computes one batch."""
        return self.infer(images)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the list unchanged."""
        return output

    def encode_response(self, output: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the answer, which LitServe sends as JSON."""
        return output


if __name__ == "__main__":
    api = Classifier(max_batch_size=LARGEST, batch_timeout=WAIT_S)
    server = litserve.LitServer(api, accelerator="cuda", devices=1, workers_per_device=CORES)
    server.run(port=int(PORT), generate_client_file=False, log_level="error")

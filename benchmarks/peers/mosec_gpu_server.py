"""mosec on a GPU: a stage that decodes on all cores but one, and a stage that computes batches."""

import os
import sys
from typing import Any

import orjson
from mosec import Server, Worker

from benchmarks.peers.common import CORES
from benchmarks.peers.common_gpu import LARGEST, Decode, Infer, Pixels

WAIT_MS = 2

if "PEER_MODEL_DIR" not in os.environ:  # the workers run this file again
    os.environ["PEER_MODEL_DIR"], port = sys.argv[1:3]
    sys.argv[1:] = ["--port", port, "--log-level", "error"]  # mosec reads the command line itself


class Decoder(Worker):
    """Stage from JSON to pixels."""

    def __init__(self) -> None:
        self.decode = Decode(os.environ["PEER_MODEL_DIR"])

    def deserialize(self, data: bytes) -> str:
        """Returns the base64 text."""
        return str(orjson.loads(data)["image"])

    def forward(self, data: str) -> Pixels:
        """Decodes one image."""
        return self.decode(data)


class Classifier(Worker):
    """Stage from batches of pixels to answers."""

    def __init__(self) -> None:
        self.infer = Infer(os.environ["PEER_MODEL_DIR"])

    def forward(self, data: list[Pixels]) -> list[dict[str, Any]]:
        """Computes one batch."""
        return self.infer(data)

    def serialize(self, data: dict[str, Any]) -> bytes:
        """Returns the answer as JSON."""
        return orjson.dumps(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Decoder, num=max(1, CORES - 1))
    server.append_worker(Classifier, num=1, max_batch_size=LARGEST, max_wait_time=WAIT_MS)
    server.run()

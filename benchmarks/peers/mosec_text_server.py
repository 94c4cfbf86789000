"""mosec for texts: a worker per core, which tokenises and computes one text.

Tried on two cores with 16 and 64 connections, in texts a second: dynamic batches of up to two 59 and 58,
of up to four 56 and 54, none 59 and 57, with the lowest p99 at 16. Batches are padded to the longest.
"""

import os
import sys
from typing import Any

import orjson
from mosec import Server, Worker

from benchmarks.peers.common import CORES
from benchmarks.peers.text import ClassifyTexts

if "PEER_MODEL_DIR" not in os.environ:  # the workers run this file again
    os.environ["PEER_MODEL_DIR"], port = sys.argv[1:3]
    sys.argv[1:] = ["--port", port, "--log-level", "error"]  # mosec reads the command line itself

BATCH = int(os.environ.get("PEER_BATCH", "1"))


class Classifier(Worker):
    """Only stage."""

    def __init__(self) -> None:
        self.classify = ClassifyTexts(os.environ["PEER_MODEL_DIR"])

    def deserialize(self, data: bytes) -> str:
        """Returns the text."""
        text: str = orjson.loads(data)["text"]
        return text

    def forward(self, data: Any) -> Any:
        """Answers a batch; a single text where batches are off."""
        return self.classify(data) if BATCH > 1 else self.classify([data])[0]

    def serialize(self, data: dict[str, Any]) -> bytes:
        """Returns the answer as JSON."""
        return orjson.dumps(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Classifier, num=CORES, max_batch_size=BATCH, max_wait_time=1)
    server.run()

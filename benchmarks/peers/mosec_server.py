"""mosec: one stage, a worker per core, no batches.

Tried on two cores: two stages (decode, infer) were slower. With 16 and 64 connections, in texts a
second: dynamic batches of up to two 59 and 58, of up to four 56 and 54, none 59 and 57, with the lowest
p99 at 16. Batches are padded to the longest text.
"""

import os
import sys
from typing import Any

import orjson
from mosec import Server, Worker

from benchmarks.peers.common import CORES, peer

if "PEER_MODEL_DIR" not in os.environ:  # the workers run this file again
    os.environ["PEER_MODEL_DIR"], port, os.environ["PEER_PIPELINE"] = sys.argv[1:4]
    sys.argv[1:] = ["--port", port, "--log-level", "error"]  # mosec reads the command line itself


class Classifier(Worker):
    """Only stage; gets the body unparsed."""

    def __init__(self) -> None:
        self.classify = peer(os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"])

    def deserialize(self, data: bytes) -> bytes:
        """Returns the body unchanged."""
        return data

    def forward(self, data: bytes) -> dict[str, Any]:
        """Answers one request."""
        return self.classify.body(data)

    def serialize(self, data: dict[str, Any]) -> bytes:
        """Returns the answer as JSON."""
        return orjson.dumps(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(Classifier, num=CORES)
    server.run()

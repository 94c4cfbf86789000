"""mosec: one stage, a worker per core. Two stages (decode, infer) were slower on two cores."""

import os
import sys
from typing import Any

import orjson
from mosec import Server, Worker

from benchmarks.peers.common import CORES, Classify

if "PEER_MODEL_DIR" not in os.environ:  # the workers run this file again
    os.environ["PEER_MODEL_DIR"], port, os.environ["PEER_PIPELINE"] = sys.argv[1:4]
    sys.argv[1:] = ["--port", port, "--log-level", "error"]  # mosec reads the command line itself


class Classifier(Worker):
    """Only stage; gets the body unparsed."""

    def __init__(self) -> None:
        self.classify = Classify(os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"])

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

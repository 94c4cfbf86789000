"""BentoML: a worker for every two cores, eight threads each, without metrics and access log.

The threads share one instance of one thread: ONNX Runtime releases Python's lock. Tried on two cores
with 16 connections, in requests a second, as ranges over several runs: two workers of one thread 57 to
71, of two threads 94 to 117, of eight 129; one worker of three to sixteen threads 73 to 144; an `async
def` 75.
"""

import os
import sys
from typing import Any

import bentoml

if __name__ == "__main__":
    os.environ["PEER_MODEL_DIR"], port, os.environ["PEER_PIPELINE"] = sys.argv[1:4]
    os.environ |= {"BENTOML_HOME": os.environ["TMPDIR"], "BENTOML_DO_NOT_TRACK": "True"}
    service = "benchmarks.peers.bentoml_server:Classifier"
    options = ["--host", "127.0.0.1", "--port", port, "--quiet"]
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", "serve", service, *options])  # noqa: S606

from benchmarks.peers.common import CORES, peer

PIPELINE = os.environ["PEER_PIPELINE"]


@bentoml.service(
    workers=max(1, CORES // 2),
    threads=8,
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Classifier:
    """Service object of each worker."""

    def __init__(self) -> None:
        self.classify = peer(os.environ["PEER_MODEL_DIR"], PIPELINE)

    if PIPELINE == "table":

        @bentoml.api(route="/predict")
        def predict(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            """Answers one row."""
            return self.classify.text(inputs)

    else:

        @bentoml.api(route="/predict")
        def predict(self, image: str) -> dict[str, Any]:
            """Answers one photo."""
            return self.classify.text(image)

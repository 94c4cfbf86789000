"""Handler for TorchServe, which `torchserve_server.py` archives."""

import os
from typing import Any

from benchmarks.peers.common import Classify


class Handler:
    """Handler of one worker."""

    def initialize(self, context: Any) -> None:  # noqa: ARG002 the interface's
        """Loads the model, in each worker's process."""
        self.classify = Classify(os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"])

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:  # noqa: ARG002
        """Answers a batch of parsed JSON bodies."""
        return [self.classify.text(request["body"]["image"]) for request in data]

"""TorchServe's handler; archived by `torchserve_server.py`."""

import os
from typing import Any

from benchmarks.peers.common import Classify


class Handler:
    """One worker."""

    def initialize(self, context: Any) -> None:  # noqa: ARG002 the interface's
        """In each worker's process."""
        self.classify = Classify(os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"])

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:  # noqa: ARG002
        """A batch of parsed JSON bodies -> as many answers."""
        return [self.classify.text(request["body"]["image"]) for request in data]

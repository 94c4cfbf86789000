"""Ray Serve: a replica per core, each with one instance of one thread, in its throughput mode.

Tried on two cores with 16 connections, requests a second: 90, and 74 without that mode; 2, 8, 32 or 100
requests handed to a replica at once: 59, 90, 84 to 104, 107; one replica of two threads 45; the work on
a thread beside the replica's loop 89 to 93.
"""

import os
import signal
import sys
from typing import Any

os.environ |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers.common import CORES, Classify

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]


class Classifier:
    """Deployment; Ray makes one object per replica."""

    def __init__(self, model_dir: str, pipeline: str) -> None:
        self.classify = Classify(model_dir, pipeline)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answers one request; others wait in the event loop, as the core is busy."""
        return self.classify.body(await request.body())


if __name__ == "__main__":
    deployment = serve.deployment(
        num_replicas=CORES, max_ongoing_requests=100, logging_config={"enable_access_log": False}
    )
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    serve.start(http_options={"host": "127.0.0.1", "port": int(PORT)})
    serve.run(deployment(Classifier).bind(MODEL_DIR, PIPELINE), route_prefix="/predict")
    signal.pause()

"""A Ray of several nodes on this machine, for `make run-ray`, tests and benchmarks."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.1"
STORE_BYTES = 100_000_000  # of Ray's object store, the least; Serve puts no requests into it


@contextmanager
def cluster(nodes: int, cores: int, host: str = LOOPBACK, port: int = 8000) -> Iterator[Cluster]:
    """Runs Ray and Serve until the block ends; every node has `cores`, HAProxy is on the first.

    smallplates/ray/local.sh must be in the environment; all processes then listen on 127.0.0.1.
    """
    haproxy = Path(os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()  # Ray writes there before it makes it
        local = Cluster()
        try:
            add_node(local, cores, include_dashboard=False)
            for _ in range(nodes - 1):
                add_node(local, cores)
            ray.init(local.address, log_to_driver=False, logging_level="error")
            head = ray.get_runtime_context().get_node_id()
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": host, "port": port},
                logging_config={"log_level": "WARNING"},
            )
            try:
                yield local
            finally:
                serve.shutdown()
                shutil.rmtree(haproxy / head, ignore_errors=True)
        finally:
            ray.shutdown()
            local.shutdown()


def add_node(local: Cluster, cores: int, **more: object) -> Any:  # Any: Ray has no types
    """Adds a node and returns it."""
    return local.add_node(
        num_cpus=cores, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES, **more
    )

"""A Ray of three nodes that all tests share, and traffic that checks every answer.

`make test-ray` runs them with smallplates/ray/local.sh in the environment.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
import requests
from ray import serve
from ray.cluster_utils import Cluster

from benchmarks.running import free_port
from smallplates.ray.local import cluster
from tests.fake.backend import command
from tests.servers import wait_for

NODES, CORES = 3, 2
LABELS = 11  # of the default model, whose folder the fake backend reads
FAKE = {
    "BACKEND": "tests.fake",
    "FAKE_MS": "50",
    "SERVING_LOG_LEVEL": "warning",
    "SERVING_MAX_BATCH_SIZE": "1",
}


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[tuple[Cluster, str]]:
    """The cluster, and the base URL of Serve's ingress."""
    os.environ.update(FAKE)
    port = free_port()
    with cluster(NODES, CORES, port=port) as local:
        yield local, f"http://127.0.0.1:{port}"


@pytest.fixture
def nodes(ray_cluster: tuple[Cluster, str]) -> Cluster:
    """The cluster, to add and remove nodes."""
    return ray_cluster[0]


@pytest.fixture
def url(ray_cluster: tuple[Cluster, str]) -> Iterator[str]:
    """The base URL; applications are deleted after the test."""
    yield ray_cluster[1]
    for name in serve.status().applications:
        serve.delete(name)


class Traffic:
    """Clients that send pictures until the block ends; `answers` counts what they got.

    `wrong` has every answer that is neither right nor a 503 with Retry-After, as (status, text).
    """

    def __init__(self, url: str, clients: int, pause_s: float = 0.0) -> None:
        self.answers: Counter[int] = Counter()
        self.wrong: list[tuple[int, str]] = []
        self._url, self._pause_s = url, pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(index,)) for index in range(clients)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self, index: int) -> None:
        expected = index % LABELS
        picture = command(class_index=expected)
        session = requests.Session()
        session.trust_env = False
        labels = session.get(f"{self._url}/model", timeout=60).json()["labels"]
        while not self._stop.wait(self._pause_s):
            try:
                answer = session.post(f"{self._url}/predict", picture, timeout=60)
            except requests.RequestException as error:
                self.answers[0] += 1
                self.wrong.append((0, repr(error)))
                continue
            self.answers[answer.status_code] += 1
            right = answer.ok and answer.json()["prediction"] == labels[expected]
            refused = answer.status_code == 503 and "Retry-After" in answer.headers
            if not right and not refused:
                self.wrong.append((answer.status_code, answer.text))

    def answered(self, more: int) -> None:
        """Waits until this many more requests have been answered with 200."""
        goal = self.answers[200] + more
        wait_for(lambda: self.answers[200] >= goal)


def running(app: str = "default") -> int:
    states = serve.status().applications[app].deployments["Classifier"].replica_states
    return int(states.get("RUNNING", 0))


def replicas() -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if is_replica(process)]


def is_replica(process: psutil.Process) -> bool:
    """Returns whether a process is a replica; Ray has put that into its title."""
    return "".join(process.info["cmdline"] or [])[:18] == "ray::ServeReplica:"

"""Replicas behind the proxy come and go while requests run, and none fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from smallplates.cli import processes
from tests.docker import traffic
from tests.docker.conftest import SERVICES
from tests.docker.containers import Stack, build, healthy, inspect, run, wait_until
from tests.pictures import jpeg
from tests.servers import free_port

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]
SETTINGS = {"SERVING_INSTANCES": "1", "SERVING_LOG_LEVEL": "warning"}


@pytest.fixture
def url() -> str:
    """Where the proxy is published."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def stack(images: list[str], url: str, tmp_path: Path) -> Iterator[Stack]:
    """The proxy and one replica, ready."""
    assert SERVICES[0] in images
    settings = {**SETTINGS, "BACKEND": SERVICES[0], "API_PORT": url.rpartition(":")[2]}
    with Stack(["scale"], settings, tmp_path).up("fastapi_server", "proxy") as running:
        wait_until(
            lambda: processes.get(f"{url}/health/ready") is not None, "a replica behind the proxy"
        )
        yield running


def scale(stack: Stack, count: int, *options: str) -> None:
    wanted = ("--scale", f"fastapi_server={count}", "fastapi_server")
    stack.compose("up", "--detach", "--no-build", *options, *wanted)

    def all_healthy() -> bool:
        replicas = stack.containers("fastapi_server")
        return len(replicas) == count and all(healthy(replica) for replica in replicas)

    wait_until(all_healthy, f"{count} replicas")


def test_replicas_come_and_go_and_no_request_fails(stack: Stack, url: str) -> None:
    with traffic.Senders(f"{url}/predict", jpeg(), 8) as senders:
        senders.answered(20)
        scale(stack, 3)
        senders.answered(100)
        oldest = stack.containers("fastapi_server")[0]
        run("docker", "stop", "-t", "40", oldest)
        senders.answered(50)
        scale(stack, 3)
        scale(stack, 1)
        senders.answered(50)
    assert set(senders.statuses) == {200}


def test_a_new_image_takes_over_without_a_failed_request(stack: Stack, url: str) -> None:
    (old,) = stack.containers("fastapi_server")
    build(SERVICES[0], revision="newer")
    try:
        with traffic.Senders(f"{url}/predict", jpeg(), 8) as senders:
            scale(stack, 2, "--no-recreate")
            run("docker", "stop", "-t", "40", old)
            senders.answered(50)
    finally:
        build(SERVICES[0])
    (new,) = set(stack.containers("fastapi_server")) - {old}
    assert inspect(new)["Config"]["Labels"]["org.opencontainers.image.revision"] == "newer"
    assert inspect(old)["State"]["ExitCode"] == 0
    assert set(senders.statuses) == {200}


def test_what_belongs_to_one_replica_is_not_for_everybody(stack: Stack, url: str) -> None:
    assert requests.get(f"{url}/metrics", timeout=10).status_code == 404
    assert requests.post(f"{url}/v2/repository/models/food11/load", timeout=10).status_code == 404
    assert requests.get(f"{url}/model", timeout=10).status_code == 200
    (replica,) = stack.containers("fastapi_server")
    assert not inspect(replica)["HostConfig"]["PortBindings"]

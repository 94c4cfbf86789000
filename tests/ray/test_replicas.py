"""Every request is answered, or refused with Retry-After, whatever happens to replicas and nodes."""

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from ray import serve
from ray.cluster_utils import Cluster

from smallplates.ray import local
from smallplates.ray.app import classifier
from smallplates.ray.scaling import follow_load
from tests.fake.backend import command
from tests.fake.model import write_model
from tests.ray.conftest import CORES, Traffic, replicas, running
from tests.servers import wait_for

CLIENTS = 6
pytestmark = pytest.mark.timeout(180)


def deploy(
    count: int = 3,
    variables: dict[str, str] | None = None,
    name: str = "default",
    prefix: str = "/",
    **options: Any,
) -> None:
    """Serves this many replicas of one core each; returns when they are ready."""
    actor = {"num_cpus": 1, "runtime_env": {"env_vars": variables or {}}}
    scaling = options or {"num_replicas": count}
    serve.run(
        classifier.options(ray_actor_options=actor, **scaling).bind(), name=name, route_prefix=prefix
    )


def test_a_replica_answers_as_the_service_does(url: str) -> None:
    deploy(1)
    answer = requests.post(
        f"{url}/predict", command(class_index=3), headers={"X-Request-ID": "mine"}, timeout=60
    )
    assert answer.json()["prediction"] == requests.get(f"{url}/model", timeout=60).json()["labels"][3]
    assert answer.headers["X-Request-ID"] == "mine"  # once: two would be joined by a comma
    assert answer.headers["Server-Timing"]
    unknown = requests.get(f"{url}/v2/models/none", timeout=60)
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
    assert "serving_cores 1.0" in requests.get(f"{url}/metrics", timeout=60).text


def test_every_replica_has_all_models(url: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_model(folder := tmp_path / name, "1", prefix=f"{name}-")
        described = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(described | {"name": name, "aliases": {}}))
    deploy(2, {"SERVING_MODELS": f"{tmp_path}/first,{tmp_path}/second"})
    for name in ("first", "second"):
        path = f"{url}/predict/{name}"
        wait_for(lambda: requests.post(path, command(), timeout=60).ok)  # noqa: B023 called here
        answers = [requests.post(path, command(class_index=3), timeout=60) for _ in range(10)]
        assert {answer.json().get("prediction") for answer in answers} == {f"{name}-3"}


def test_another_model_than_the_named_one_does_not_start(url: str) -> None:  # noqa: ARG001 the cluster
    with pytest.raises(RuntimeError):
        deploy(1, {"SERVING_MODEL_SHA256": "0" * 64})
    (deployment,) = serve.status().applications["default"].deployments.values()
    assert "SERVING_MODEL_SHA256 does not list food11=" in deployment.message


def test_a_canary_is_a_second_application_below_a_prefix(url: str) -> None:
    """Its errors have the shape of their protocol, as without the prefix."""
    deploy(1, name="stable", prefix="/")
    deploy(1, {"SERVING_QUEUE_SIZE": "7"}, name="canary", prefix="/canary")
    with Traffic(url, 2) as stable, Traffic(f"{url}/canary", 2) as canary:
        stable.answered(10)
        canary.answered(10)
    assert not stable.wrong + canary.wrong
    text = requests.get(f"{url}/canary/metrics", timeout=60).text
    assert re.search(r'^serving_free_slots{model="[^"]+"} 7\.0$', text, re.MULTILINE)
    unknown = requests.get(f"{url}/canary/v2/models/none", timeout=60)
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])


def test_a_full_queue_refuses_with_retry_after(url: str) -> None:
    deploy(1, {"SERVING_QUEUE_SIZE": "2", "FAKE_MS": "300"})
    with Traffic(url, 8) as traffic:
        traffic.answered(10)
    assert not traffic.wrong
    assert traffic.answers[503]


def test_replicas_are_killed(url: str) -> None:
    deploy()
    with Traffic(url, CLIENTS) as traffic:
        traffic.answered(30)
        for _ in range(3):
            victim = replicas()[0]
            victim.kill()
            wait_for(lambda: victim not in replicas() and running() == 3 and len(replicas()) == 3)  # noqa: B023
            traffic.answered(30)
    assert not traffic.wrong


def test_all_replicas_are_killed(url: str) -> None:
    deploy(2)
    with Traffic(url, CLIENTS) as traffic:
        traffic.answered(30)
        for victim in replicas():
            victim.kill()
        traffic.answered(30)
    assert not traffic.wrong


def test_a_node_goes_and_another_comes(url: str, nodes: Cluster) -> None:
    deploy(6)
    with Traffic(url, CLIENTS) as traffic:
        traffic.answered(30)
        nodes.remove_node(next(iter(nodes.worker_nodes)))
        traffic.answered(60)
        local.add_node(nodes, CORES)
        wait_for(lambda: running() == 6 and len(replicas()) == 6)
        traffic.answered(30)
    assert not traffic.wrong


def test_a_new_version_rolls_out(url: str) -> None:
    deploy(3, {"SERVING_QUEUE_SIZE": "64"})
    old = {process.pid for process in replicas()}
    with Traffic(url, CLIENTS) as traffic:
        traffic.answered(30)
        deploy(3, {"SERVING_QUEUE_SIZE": "32"})
        wait_for(lambda: not old & set(psutil.pids()))
        traffic.answered(30)
    assert not traffic.wrong


@pytest.mark.parametrize(
    "policy",
    [{"policy": {"policy_function": follow_load}}, {"target_ongoing_requests": 0.7}],
    ids=["workers and queue", "ongoing requests"],
)
def test_replicas_follow_the_load(url: str, policy: dict[str, Any]) -> None:
    scaling = {
        **policy,
        "min_replicas": 1,
        "max_replicas": 3,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
    }
    deploy(autoscaling_config=scaling)
    with Traffic(url, 1, pause_s=0.3) as light:
        light.answered(20)
        assert running() == 1
        with Traffic(url, 4, pause_s=0.05) as heavy:
            wait_for(lambda: running() == 3)
            heavy.answered(30)
        wait_for(lambda: running() == 1)
        light.answered(20)
    assert not light.wrong + heavy.wrong

"""A model that nobody calls gives its memory back, and the next request loads it."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests
from tritonclient import grpc as triton_grpc

from smallplates.client.tcp import TcpClient
from tests import servers
from tests.e2e.services import WORKER, change, fake_service, hold, predict, programs, switch
from tests.fake.backend import command, command_tensor
from tests.fake.model import write_model
from tests.servers import metric, wait_for

IDLE = {"SERVING_IDLE_UNLOAD_S": "0.2", "SERVING_INSTANCES": "1"}
PROCESSES = pytest.mark.parametrize("web_processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
SEVEN = command(class_index=7)


def is_asleep(url: str, server: psutil.Process) -> bool:
    """Whether the service says so, and has no worker."""
    figures = [metric(url, f"serving_{name}") for name in ("model_asleep", "ready_workers")]
    return figures == [1, 0] and not programs(server, WORKER)


def get(url: str, path: str) -> Any:
    answer = requests.get(url + path, timeout=60)
    assert answer.status_code == 200, path
    return answer.json()


def infer_request() -> dict[str, Any]:
    values = command_tensor(class_index=7)
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, *values.shape]}
    return {"inputs": [{**tensor, "data": values.ravel().tolist()}]}


@PROCESSES
def test_every_protocol_loads_a_model_that_is_asleep_and_no_other_request_does(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    ports = {"tcp_port": str(servers.free_port()), "grpc_port": str(servers.free_port())}
    with fake_service(fake_settings | IDLE, web_processes=web_processes, **ports) as (url, server):

        def tensors() -> int:
            answer = requests.post(
                f"{url}/v2/models/food_classifier_onnx/infer", json=infer_request(), timeout=30
            )
            return int(np.argmax(answer.json()["outputs"][0]["data"]))

        def tcp() -> str:
            with TcpClient("127.0.0.1", int(ports["tcp_port"])) as client:
                return str(client.predict(SEVEN).content["prediction"])

        def grpc() -> str:
            picture = triton_grpc.InferInput("INPUT_IMAGE", [1], "BYTES")
            picture.set_data_from_numpy(np.array([SEVEN], object))
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}") as client:
                return str(client.infer("fake", [picture]).as_numpy("FOOD_LABEL")[0].decode())

        calls: list[Callable[[], object]] = [
            lambda: predict(url, SEVEN).json()["prediction"],
            lambda: predict(url, SEVEN, x_priority="bulk").json()["prediction"],
            tensors,
            tcp,
            grpc,
        ]
        for call in calls:
            wait_for(lambda: is_asleep(url, server))
            assert str(call()) == "7"
        wait_for(lambda: is_asleep(url, server))
        for path in ("/health/live", "/docs", "/openapi.json", "/metrics", "/v2/models/stats", "/ping"):
            assert requests.get(url + path, timeout=60).status_code == 200
        for path in ("/v2/health/ready", "/v2/models/fake/ready", "/v2/models/fake/config"):
            get(url, path)
        assert get(url, "/health/ready") == {"status": "ready", "models": {"fake": "asleep"}}
        (state,) = get(url, "/model")["models"]
        assert state["state"] == "asleep"
        assert state["reason"].startswith("asleep: the first answer takes ")
        index = requests.post(f"{url}/v2/repository/index", json={"ready": True}, timeout=60).json()
        assert {(row["state"], row["reason"]) for row in index} == {("READY", state["reason"])}
        assert predict(url, b"no picture").status_code == 400
        assert is_asleep(url, server)
        assert metric(url, "serving_worker_restarts_total") == 0


@PROCESSES
def test_requests_that_wait_load_it_once_within_their_deadlines_even_if_the_worker_is_killed(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, web_processes: str
) -> None:
    with fake_service(fake_settings | IDLE, web_processes=web_processes) as (url, server):
        wait_for(lambda: is_asleep(url, server))
        (tmp_path / "loading").touch()
        waiting = [senders.submit(predict, url, command(class_index=i)) for i in range(20)]
        wait_for((tmp_path / "loading.held").exists)
        wait_for(lambda: metric(url, "serving_free_slots") == 256 - 20)
        late = predict(url, SEVEN, x_request_timeout_ms="100")
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
        (loading,) = programs(server, WORKER)
        assert get(url, "/health/ready")["models"] == {"fake": "asleep"}
        loading.kill()
        loading.wait(60)
        (tmp_path / "loading").unlink()
        answers = [answer.result().json()["prediction"] for answer in waiting]
        assert answers == [str(i) for i in range(20)]
        wait_for(lambda: is_asleep(url, server))
        wait_for(lambda: metric(url, "serving_free_slots") == 256)
        wait_for(lambda: metric(url, "serving_worker_restarts_total") == 1)


def test_a_model_that_cannot_be_loaded_again_refuses_until_it_can(
    fake_settings: dict[str, str],
    tmp_path: Path,
    senders: ThreadPoolExecutor,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with fake_service(fake_settings | IDLE) as (url, server):
        wait_for(lambda: is_asleep(url, server))
        (tmp_path / "broken").touch()
        refused = [senders.submit(predict, url, SEVEN) for _ in range(4)]
        answers = [answer.result() for answer in refused]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {
            (503, "unavailable")
        }
        assert requests.get(f"{url}/health/ready", timeout=60).status_code == 503
        assert get(url, "/model")["models"][0]["state"] == "unavailable"
        assert metric(url, "serving_model_asleep") == 0
        (tmp_path / "broken").unlink()
        wait_for(lambda: is_asleep(url, server))  # it was loaded, and nobody has called it
        assert predict(url, SEVEN).json()["prediction"] == "7"
    assert "ended with exit code 1: commanded not to load" in capfd.readouterr().err


def computing(workers: list[psutil.Process]) -> psutil.Process:
    """The worker that computes what is held; one that stands by does nothing."""
    before = [worker.num_ctx_switches() for worker in workers]
    wait_for(lambda: [worker.num_ctx_switches() for worker in workers] != before)
    return next(
        each for each, was in zip(workers, before, strict=True) if each.num_ctx_switches() != was
    )


@pytest.mark.parametrize("stands_by", [False, True], ids=["kill what computes", "kill what stands by"])
def test_a_worker_that_stands_by_sleeps_wakes_and_dies_like_the_one_that_computes(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, stands_by: bool
) -> None:
    own = IDLE | {"SERVING_INSTANCES": "auto", "FAKE_MS": "120", "FAKE_SCALES": "1"}
    gate = tmp_path / "gate"
    with fake_service(fake_settings | own) as (url, server):
        for restarts in (1, 3):
            wait_for(lambda: is_asleep(url, server))
            held = hold(senders, url, gate)
            wait_for(lambda: get(url, "/model")["instances"] == 2)
            workers = programs(server, WORKER)
            busy = computing(workers)
            (other,) = set(workers) - {busy}
            (other if stands_by else busy).kill()
            wait_for(lambda count=restarts: metric(url, "serving_worker_restarts_total") == count)  # type: ignore[misc]
            wait_for(lambda: get(url, "/model")["instances"] == 2)
            assert get(url, "/model")["workers"] == 1
            gate.touch()
            assert held.result().json()["prediction"] == "0"
            wait_for(lambda: is_asleep(url, server))
            (tmp_path / "loading").touch()
            waiting = senders.submit(predict, url, SEVEN)
            wait_for(lambda: len(programs(server, WORKER)) == 2)
            programs(server, WORKER)[stands_by].kill()
            (tmp_path / "loading").unlink()
            assert waiting.result().json()["prediction"] == "7"
        wait_for(lambda: is_asleep(url, server))
        wait_for(lambda: metric(url, "serving_free_slots") == 256)
        assert metric(url, "serving_worker_restarts_total") == 4


@PROCESSES
def test_it_is_unloaded_loaded_and_switched_while_it_sleeps_or_wakes(
    versions: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, web_processes: str
) -> None:
    settings = versions | IDLE | {"SERVING_WEB_PROCESSES": web_processes}
    with fake_service(settings, admin_key="chief") as (url, server):
        wait_for(lambda: is_asleep(url, server))
        assert switch(url, "2").status_code == 200
        assert predict(url, SEVEN).json()["prediction"] == "two-7"
        wait_for(lambda: is_asleep(url, server))
        assert switch(url, "2").status_code == 200  # already in service: stays asleep
        assert change(url, "fake", "unload").status_code == 200
        assert predict(url, SEVEN).status_code == 503
        assert "serving_model_asleep{" not in requests.get(f"{url}/metrics", timeout=60).text
        assert switch(url, "3").status_code == 200
        wait_for(lambda: is_asleep(url, server))
        (tmp_path / "loading").touch()
        waiting = senders.submit(predict, url, SEVEN)
        wait_for((tmp_path / "loading.held").exists)
        unloading = senders.submit(change, url, "fake", "unload")
        wait_for(lambda: requests.get(f"{url}/model/fake", timeout=60).status_code == 503)
        (tmp_path / "loading").unlink()
        assert waiting.result().json()["prediction"] == "three-7"
        assert unloading.result().status_code == 200
        assert not programs(server, WORKER)


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
@pytest.mark.parametrize("in_time", [True, False])
def test_a_shutdown_while_it_loads_ends_the_service_and_its_worker(
    fake_settings: dict[str, str],
    tmp_path: Path,
    senders: ThreadPoolExecutor,
    web_processes: str,
    in_time: bool,
) -> None:
    more = {"web_processes": web_processes, "shutdown_timeout_s": "30" if in_time else "0.5"}
    with fake_service(fake_settings | IDLE, **more) as (url, server):
        wait_for(lambda: is_asleep(url, server))
        (tmp_path / "loading").touch()
        waiting = senders.submit(predict, url, SEVEN)
        wait_for((tmp_path / "loading.held").exists)
        (worker,) = programs(server, WORKER)
        server.send_signal(signal.SIGTERM)
        if in_time:
            (tmp_path / "loading").unlink()
        assert not psutil.wait_procs([server, worker], timeout=60)[1]
    assert waiting.result().status_code == (200 if in_time else 500)


def test_each_model_has_its_own_idle_time_and_a_long_request_keeps_it_awake(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    for name, idle in (("always", 0), ("brief", 0.2), ("busy", None)):
        write_model(tmp_path / name, "1", name=name, aliases={}, idle_unload_s=idle)
    names = ",".join(str(tmp_path / name) for name in ("always", "brief", "busy"))
    own = {
        "SERVING_MODELS": names,
        "SERVING_IDLE_UNLOAD_S": "3600",
        "SERVING_IDLE_UNLOAD_S__BUSY": "0.1",
    }
    with fake_service(fake_settings | own, instances="1") as (url, _):

        def call(name: str, **options: Any) -> requests.Response:
            return requests.post(f"{url}/predict/{name}", data=command(**options), timeout=60)

        def states() -> dict[str, str]:
            found: dict[str, str] = get(url, "/health/ready")["models"]
            return found

        asleep = {"always": "ready", "brief": "asleep", "busy": "asleep"}
        wait_for(lambda: states() == asleep)
        held = senders.submit(call, "busy", held=True)
        wait_for((tmp_path / "gate.held").exists)
        assert call("brief").status_code == 200
        wait_for(lambda: states() == asleep | {"busy": "ready"})  # it has computed for longer than 0.1 s
        (tmp_path / "gate").touch()
        assert held.result().status_code == 200
        wait_for(lambda: states() == asleep)

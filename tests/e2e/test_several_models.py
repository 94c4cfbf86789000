"""Several models in one service: names, paths, starts, failures."""

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from smallplates.engine import topology
from smallplates.settings import Settings
from tests.e2e.conftest import obedient
from tests.e2e.services import WORKER, change, fake_service, predict, programs
from tests.fake.backend import Failure, command
from tests.fake.model import write_model
from tests.servers import metric, value, wait_for

NAMES = ("first", "second", "third")


def folders(parent: Path, version_of_second: str = "1") -> str:
    """Three models whose classes begin with their names, as SERVING_MODELS names them."""
    for name in NAMES:
        version = version_of_second if name == "second" else "1"
        aliases = {f"{name}_photos": "request", f"{name}_numbers": "tensor"}
        write_model(parent / name, version, f"{name}-", name=name, aliases=aliases)
    return ",".join(str(parent / name) for name in NAMES)


@pytest.fixture(scope="module", params=["1", "2"], ids=["one web process", "two web processes"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, psutil.Process]]:
    """A service of three models that are all ready."""
    folder = tmp_path_factory.mktemp("several")
    settings = obedient(folder, folder) | {"SERVING_MODELS": folders(folder)}
    settings |= {"SERVING_INSTANCES": "auto", "SERVING_WEB_PROCESSES": request.param}
    for name in ("fourth", "fifth"):
        write_model(folder / "store" / name, "1", prefix=f"{name}-")
    (folder / "store/empty").mkdir()
    write_model(folder / "outside", "1")
    settings |= {"SERVING_MODEL_STORE": str(folder / "store"), "SERVING_ADMIN_KEY": "chief"}
    with fake_service(settings) as (url, server):
        wait_for(lambda: {row["state"] for row in about(url)["models"]} == {"ready"})
        yield url, server


def workers_of_default() -> int:
    return topology.workers_per_device(Settings(device="cpu"))


KEY = {"Authorization": "Bearer chief"}


def states(url: str) -> dict[str, tuple[str, str]]:
    """What the repository's index says of the names that models have of their own."""
    index = requests.post(f"{url}/v2/repository/index", headers=KEY, timeout=60).json()
    return {row["name"]: (row["state"], row["reason"]) for row in index}


def about(url: str, path: str = "/model") -> dict[str, Any]:
    answer: dict[str, Any] = requests.get(url + path, timeout=60).json()
    return answer


def ask(url: str, path: str, index: int = 5) -> requests.Response:
    return requests.post(url + path, data=command(class_index=index), timeout=60)


def test_each_is_asked_by_its_name(service: tuple[str, psutil.Process]) -> None:
    url, _ = service
    assert ask(url, "/predict").json()["prediction"] == "first-5"
    for name in NAMES:
        assert ask(url, f"/predict/{name}").json()["prediction"] == f"{name}-5"
        assert next(iter(ask(url, f"/predictions/{name}").json())) == f"{name}-5"
        assert about(url, f"/model/{name}")["name"] == name
        for known in (name, f"{name}_photos", f"{name}_numbers"):
            assert about(url, f"/v2/models/{known}/ready") == {"name": known, "ready": True}
            assert about(url, f"/v1/models/{known}")["model_version_status"][0]["state"] == "AVAILABLE"
    assert [row["name"] for row in about(url)["models"]] == list(NAMES)
    assert about(url, "/health/ready")["models"] == dict.fromkeys(NAMES, "ready")
    unknown = ask(url, "/predict/fourth")
    assert unknown.status_code == 404
    assert "the models are first, second, third" in unknown.json()["detail"]
    index = requests.post(f"{url}/v2/repository/index", timeout=60).json()
    assert {row["name"] for row in index} == {
        form for name in NAMES for form in (name, f"{name}_photos", f"{name}_numbers")
    }
    assert {row["reason"] for row in index} == {""}
    assert {"fourth", "fifth", "empty"} <= set(states(url))  # only with a key


def test_each_is_counted_apart(service: tuple[str, psutil.Process]) -> None:
    url, _ = service
    for name, count in zip(NAMES, (1, 2, 3), strict=True):
        before = about(url, f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]
        for _ in range(count):
            assert ask(url, f"/predict/{name}").status_code == 200
        after = about(url, f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]
        assert after - before == count
    text = requests.get(f"{url}/metrics", timeout=60).text
    for name in NAMES:
        assert f'serving_ready_workers{{model="{name}"}}' in text
        assert f'serving_batch_size_count{{model="{name}"}}' in text
    assert value(text, "serving_ready_workers") == workers_of_default() + 2


def test_models_are_loaded_and_unloaded_while_others_answer(
    service: tuple[str, psutil.Process], senders: ThreadPoolExecutor
) -> None:
    url, server = service
    stop = threading.Event()

    def keep_asking(name: str) -> set[int]:
        statuses = set()
        while not stop.is_set():
            statuses.add(ask(url, f"/predict/{name}").status_code)
        return statuses

    others = [senders.submit(keep_asking, name) for name in ("first", "second")]
    sometimes = senders.submit(keep_asking, "third")
    before = len(programs(server, WORKER))
    try:
        for _ in range(2):
            assert change(url, "third", "unload").status_code == 200
            assert len(programs(server, WORKER)) == before - 1
            gone = ask(url, "/predict/third")
            assert (gone.status_code, gone.json()["code"]) == (503, "unavailable")
            assert "third is not in service: unloaded" in gone.json()["detail"]
            assert states(url)["third"] == ("UNAVAILABLE", "unloaded")
            assert about(url, "/health/ready")["models"]["third"] == "unavailable"
            metrics = requests.get(f"{url}/metrics", timeout=60).text
            assert 'serving_ready_workers{model="third"}' not in metrics
            assert change(url, "third_photos", "load").status_code == 200
            assert ask(url, "/predict/third").json()["prediction"] == "third-5"
            assert len(programs(server, WORKER)) == before
    finally:
        stop.set()
    assert {status for answers in others for status in answers.result()} == {200}
    assert sometimes.result() <= {200, 503}


def test_models_of_the_store_are_loaded_by_their_folders_names(
    service: tuple[str, psutil.Process],
) -> None:
    url, server = service
    before = len(programs(server, WORKER))
    assert states(url)["fourth"] == ("UNAVAILABLE", "not loaded")
    assert ask(url, "/predict/fourth").status_code == 404
    assert change(url, "fourth", "load").status_code == 200
    for _ in range(4):  # whichever web process answers
        assert ask(url, "/predict/fourth").json()["prediction"] == "fourth-5"
    assert states(url)["fourth"] == ("READY", "")
    assert [row["name"] for row in about(url)["models"]] == [*NAMES, "fourth"]
    collision = change(url, "fifth", "load")  # its aliases are the fourth's
    assert (collision.status_code, "food_classifier" in collision.text) == (400, True)
    assert change(url, "empty", "load").status_code == 400
    for name in (
        "outside",
        "..%2Foutside",
        "%2e%2e%2foutside",
        "..",
        "%2Fetc",
        "a" * 5000,
        "%00",
        "sixth",
    ):
        assert change(url, name, "load").status_code == 404
        assert change(url, name, "unload").status_code == 404
    unkeyed = requests.post(f"{url}/v2/repository/models/fourth/unload", timeout=60)
    assert unkeyed.status_code == 401
    assert change(url, "fourth", "unload").status_code == 200
    assert ask(url, "/predict/fourth").status_code == 404
    assert change(url, "fifth", "load").status_code == 200
    assert change(url, "fifth", "unload").status_code == 200
    assert len(programs(server, WORKER)) == before


def test_the_workers_of_one_die_and_the_others_answer(
    service: tuple[str, psutil.Process], senders: ThreadPoolExecutor
) -> None:
    url, server = service
    for _ in range(2):
        ask_all = [senders.submit(ask, url, f"/predict/{NAMES[i % 3]}", i) for i in range(60)]
        for worker in programs(server, WORKER):
            if "/second" in " ".join(worker.cmdline()):
                worker.send_signal(signal.SIGKILL)
        answers = [answer.result() for answer in ask_all]
        assert [answer.status_code for answer in answers] == [200] * 60
        assert [answer.json()["prediction"] for answer in answers] == [
            f"{NAMES[i % 3]}-{i}" for i in range(60)
        ]
        wait_for(lambda: about(url, "/health/ready")["models"] == dict.fromkeys(NAMES, "ready"))
    crash = requests.post(f"{url}/predict/third", data=command(failure=Failure.EXIT), timeout=60)
    assert crash.json()["code"] == "worker_crashed"
    assert predict(url, command(class_index=1)).json()["prediction"] == "first-1"


def test_the_default_serves_while_another_loads_or_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = obedient(tmp_path, tmp_path) | {"SERVING_MODELS": folders(tmp_path, "7")}
    settings |= {"SERVING_INSTANCES": "1", "FAKE_BROKEN_VERSION": "7"}
    (tmp_path / "broken").touch()
    with fake_service(settings) as (url, server):
        assert ask(url, "/predict").status_code == 200
        wait_for(lambda: about(url)["models"][2]["state"] == "ready")
        state = about(url)["models"][1]
        assert (state["name"], state["state"]) == ("second", "unavailable")
        assert "commanded not to load" in state["reason"]
        for path in ("/predict/second", "/predictions/second_photos"):
            refused = ask(url, path)
            assert refused.status_code == 503
            assert "commanded not to load" in refused.text
        for path in ("/v2/models/second/ready", "/v1/models/second", "/models/second_photos"):
            refused = requests.get(url + path, timeout=60)
            assert refused.status_code == 503
            assert "commanded not to load" in refused.text
        known = about(url, "/v1/models")["models"]
        assert known == [row["modelName"] for row in about(url, "/models")["models"]]
        assert {"second", "second_photos", "second_numbers"} < set(known)
        state, reason = states(url)["second"]
        assert (state, "commanded" in reason) == ("UNAVAILABLE", True)
        assert ask(url, "/predict/third").json()["prediction"] == "third-5"
        assert metric(url, 'serving_ready_workers{model="second"}') == 0  # which an alert asks for
        assert metric(url, 'serving_ready_workers{model="third"}') == 1
        for worker in programs(server, WORKER):
            if "/third" in " ".join(worker.cmdline()):
                worker.send_signal(signal.SIGKILL)
        wait_for(lambda: metric(url, 'serving_worker_restarts_total{model="third"}') == 1)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    told = {(line["event"], line.get("model")) for line in lines}
    assert {("a model cannot be served", "second"), ("an inference worker died", "third")} <= told

"""Several web processes share one engine, and one that dies or hangs is replaced."""

import base64
import re
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from tests.e2e.services import (
    FEW_DESCRIPTORS,
    MANY_CORES,
    WATCHFUL,
    WEB,
    check_right,
    client_ports,
    connect_to_each,
    fake_service,
    numbered,
    predict,
    programs,
)
from tests.fake.backend import command
from tests.fake.model import write_model
from tests.http_load import send_all
from tests.servers import metric, wait_for


@pytest.mark.parametrize("web_processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_classes_are_counted_if_there_are_few(
    fake_settings: dict[str, str], tmp_path: Path, web_processes: str
) -> None:
    for name, classes in (("few", 100), ("many", 101)):
        write_model(tmp_path / name, "1", "class ", classes, name=name, aliases={})
    models = f"{tmp_path / 'few'},{tmp_path / 'many'}"
    settings = {"models": models, "web_processes": web_processes, "instances": "1"}
    with fake_service(fake_settings, **settings) as (url, _):

        def counted() -> dict[str, float]:
            text = requests.get(f"{url}/metrics", timeout=60).text
            found = re.findall(
                r'^serving_predictions_total\{label="(.*)",model="few"\} (.*)$', text, re.M
            )
            assert 'label="class 0",model="many"' not in text
            return {label: float(count) for label, count in found}

        assert (len(counted()), sum(counted().values())) == (100, 0)
        for index in (7, 7, 99, 7, 0):
            assert predict(url, command(class_index=index)).status_code == 200
        wait_for(lambda: requests.get(f"{url}/v2/models/many/ready", timeout=60).status_code == 200)
        many = requests.post(f"{url}/predict/many", data=command(class_index=7), timeout=60)
        assert many.json()["prediction"] == "class 7"
        picture = base64.b64encode(command(class_index=42)).decode()
        both = requests.post(f"{url}/predict", json={"image": picture}, timeout=60)
        assert both.json()["prediction"] == "class 42"
        assert predict(url, b"no picture").status_code == 400
        nonzero = {label: count for label, count in counted().items() if count}
        assert nonzero == {"class 0": 1, "class 7": 3, "class 42": 1, "class 99": 1}


def test_with_many_cores_there_are_as_many_web_processes_as_the_workers_need(
    fake_settings: dict[str, str],
) -> None:
    settings = {**fake_settings, "FAKE_MS": "2", "SERVING_INSTANCES": "4"}
    with fake_service(settings, MANY_CORES, device="cpu", max_batch_size="1") as (url, server):
        model = requests.get(f"{url}/model", timeout=60).json()
        assert model["web_processes_reason"].startswith("8 cores, ")
        assert 1 < model["web_processes"] <= 8
        assert len(programs(server, WEB)) == model["web_processes"]
        assert metric(url, "serving_web_processes") == model["web_processes"]
        check_right(send_all(url, numbered(200), senders=8), 200)
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_engines_get_the_open_files_that_the_system_allows(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, FEW_DESCRIPTORS, web_processes="2") as (url, _):
        assert predict(url, command(class_index=7)).json()["prediction"] == "7"


@pytest.mark.slow
def test_a_web_process_that_dies_is_replaced_and_its_slots_come_back(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, web_processes="2", queue_size="64") as (url, server):
        webs = programs(server, WEB)
        held: list[Future[requests.Response]] = []

        def both_hold_some() -> bool:
            held.append(senders.submit(predict, url, command(held=True)))
            wait_for(lambda: metric(url, "serving_free_slots") == 64 - len(held))
            counts = [len(client_ports(web)) for web in webs]
            return all(counts) and sum(counts) == len(held)  # none is one that asked for metrics

        wait_for(both_hold_some)
        webs[0].kill()
        wait_for(lambda: len(programs(server, WEB)) == 2 and webs[0] not in programs(server, WEB))
        (tmp_path / "gate").touch()
        results = [future.exception() or future.result() for future in held]
        lost = [r for r in results if isinstance(r, requests.ConnectionError)]
        answered = [r for r in results if isinstance(r, requests.Response)]
        assert lost
        assert answered
        assert len(lost) + len(answered) == len(held)
        assert {response.status_code for response in answered} == {200}
        wait_for(lambda: metric(url, "serving_free_slots") == 64)
        check_right(send_all(url, numbered(50), senders=2), 50)


@pytest.mark.slow
def test_a_web_process_that_no_longer_runs_is_replaced(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes="2") as (url, server), ExitStack() as held:
        stopped = programs(server, WEB)[0]
        connections = connect_to_each(url, programs(server, WEB), held)
        theirs = client_ports(stopped)
        stopped.send_signal(signal.SIGSTOP)
        hanging = [
            connection for connection in connections if connection.sock.getsockname()[1] in theirs
        ]
        assert hanging
        for connection in hanging:
            connection.request("GET", "/health/live")
            with pytest.raises(ConnectionError):
                connection.getresponse()
        wait_for(lambda: len(programs(server, WEB)) == 2 and stopped not in programs(server, WEB))
        check_right(send_all(url, numbered(50), senders=4), 50)


@pytest.mark.slow
def test_a_web_process_that_no_longer_runs_does_not_hold_up_the_end(
    fake_settings: dict[str, str],
) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes="2") as (_, server):
        programs(server, WEB)[0].send_signal(signal.SIGSTOP)
        server.terminate()
        assert server.wait(60) == 0

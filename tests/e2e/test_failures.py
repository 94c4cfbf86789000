"""Workers that die, hang or cannot start, and inputs that break them: only these requests fail."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from smallplates.supervision.worker_process import STARTS_IF_KILLED
from tests.e2e.services import (
    WORKER,
    check_right,
    fake_service,
    predict,
    programs,
    ready_workers,
    repeatedly,
)
from tests.fake.backend import Failure, command
from tests.fake.model import CLASSES
from tests.http_load import send_all
from tests.servers import metric, wait_for


def model_of(url: str) -> dict[str, Any]:
    described: dict[str, Any] = requests.get(f"{url}/model", timeout=60).json()
    return described


@pytest.mark.parametrize("stands_by", [False, True], ids=["both compute", "one stands by"])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_or_hangs_under_load_costs_no_request(
    fake_settings: dict[str, str], number: signal.Signals, stands_by: bool
) -> None:
    settings = {**fake_settings, "FAKE_MS": "5"}
    if stands_by:
        # long, so that a busy machine does not change which layout is faster
        settings |= {"SERVING_INSTANCES": "auto", "FAKE_MS": "120", "FAKE_SCALES": "1"}
    with fake_service(settings, worker_timeout_ms="1000") as (url, server):
        model = model_of(url)
        assert (model["instances"], model["workers"], model["threads"]) == (
            2,
            2 - stands_by,
            1 + stands_by,
        )
        finished, going_on = threading.Event(), threading.Event()
        going_on.set()

        def strike() -> None:
            try:
                for _ in range(3):
                    wait_for(lambda: model_of(url)["instances"] == 2)
                    going_on.clear()  # for the suspects: an item fails if its second worker dies, too
                    wait_for(lambda: metric(url, "serving_free_slots") == 256)
                    going_on.set()
                    wait_for(lambda: metric(url, "serving_free_slots") < 256)
                    victim = random.choice(programs(server, WORKER))
                    victim.send_signal(number)
                    wait_for(lambda gone=victim: not gone.is_running())  # type: ignore[misc]
            finally:
                finished.set()
                going_on.set()

        def pictures() -> Iterator[tuple[int, bytes]]:
            tag = 0
            while not finished.is_set() or tag < 500:
                going_on.wait()
                yield tag, command(class_index=tag % CLASSES)
                tag += 1

        with repeatedly(threading.Thread(target=strike)):
            answers = send_all(url, pictures(), senders=12)
        check_right(answers, len(answers))
        assert Counter(answer.status for answer in answers) == {200: len(answers)}
        wait_for(lambda: metric(url, "serving_worker_restarts_total") == 3)
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_without_workers_it_refuses_and_recovers_by_itself(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings) as (url, server):
        waiting = senders.submit(predict, url, command(held=True))
        wait_for(lambda: metric(url, "serving_free_slots") == 255)
        (tmp_path / "broken").touch()
        for worker in programs(server, WORKER):
            worker.kill()
        assert waiting.result().status_code == 503
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 503)
        refused = predict(url, command())
        assert refused.status_code == 503
        assert refused.json()["code"] == "unavailable"
        assert int(refused.headers["Retry-After"]) >= 1
        assert requests.get(f"{url}/health/live", timeout=60).status_code == 200
        (tmp_path / "gate").touch()
        (tmp_path / "broken").unlink()
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 200)
        assert predict(url, command(class_index=7)).json()["prediction"] == "7"
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


@pytest.mark.parametrize(("kills", "status"), [(STARTS_IF_KILLED - 1, 200), (STARTS_IF_KILLED, 503)])
def test_requests_wait_for_a_worker_that_is_killed_while_it_restarts(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, kills: int, status: int
) -> None:
    with fake_service(fake_settings, instances="1") as (url, server):
        (tmp_path / "loading").touch()
        programs(server, WORKER)[0].kill()
        waiting = []
        for _ in range(kills):
            wait_for((tmp_path / "loading.held").exists)
            waiting.append(senders.submit(predict, url, command(class_index=7)))
            wait_for(lambda: metric(url, "serving_free_slots") == 256 - len(waiting))
            (new,) = programs(server, WORKER)
            new.kill()
            new.wait(60)
            (tmp_path / "loading.held").unlink()
        if status == 200:
            (tmp_path / "loading").unlink()
        assert [answer.result().status_code for answer in waiting] == [status] * kills
        (tmp_path / "loading").unlink(missing_ok=True)
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 200)
        assert predict(url, command(class_index=7)).json()["prediction"] == "7"


def test_while_a_poisonous_picture_waits_for_a_second_worker_the_others_are_served(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings) as (url, _):
        (tmp_path / "loading").touch()
        poison = senders.submit(predict, url, command(failure=Failure.EXIT))
        wait_for((tmp_path / "loading.held").exists)
        assert ready_workers(url) == 1
        for index in range(50):
            assert predict(url, command(class_index=index)).json()["prediction"] == str(index)
        assert not poison.done()
        (tmp_path / "loading").unlink()
        assert poison.result().json()["code"] == "worker_crashed"
        wait_for(lambda: metric(url, "serving_worker_restarts_total") == 2)
        wait_for(lambda: metric(url, "serving_free_slots") == 256)

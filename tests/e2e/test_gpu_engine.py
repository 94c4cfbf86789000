"""The engine with a backend that claims to run on a GPU: buckets, a full device, a lost one, refusal."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.e2e.services import (
    WORKER,
    check_right,
    fake_service,
    hold,
    numbered,
    predict,
    programs,
    repeatedly,
)
from tests.fake.backend import Failure, command
from tests.http_load import send_all
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def gpu_settings(fake_settings: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """One worker on a GPU that is none; what it computes stands in `sizes`."""
    claims = {"FAKE_DEVICE": "cuda:0", "FAKE_SIZES": str(tmp_path / "sizes")}
    return {**fake_settings, **claims, "SERVING_INSTANCES": "1", "SERVING_MAX_BATCH_SIZE": "8"}


def together(url: str, folder: Path, pictures: list[bytes]) -> list[requests.Response]:
    """Answers to pictures that wait while the worker is held, and are computed as one batch then."""
    with ThreadPoolExecutor(16) as senders:
        first = hold(senders, url, folder / "gate")
        waiting = [senders.submit(predict, url, picture) for picture in pictures]
        wait_for(lambda: metric(url, "serving_queue_depth") == len(pictures))
        (folder / "gate").touch()
        assert first.result().status_code == 200
        return [future.result() for future in waiting]


def test_batches_are_padded_to_the_sizes_that_warm_up_ran(
    gpu_settings: dict[str, str], tmp_path: Path
) -> None:
    with fake_service(gpu_settings) as (url, _):
        assert requests.get(f"{url}/model", timeout=60).json()["gpus"] == []
        sizes = [int(line) for line in (tmp_path / "sizes").read_text().split()]
        assert list(dict.fromkeys(sizes[:-1])) == [8, 4, 2, 1]  # the last is a tensor
        answers = together(url, tmp_path, [command(class_index=i) for i in range(5)])
        assert [answer.json()["prediction"] for answer in answers] == ["0", "1", "2", "3", "4"]
        assert (tmp_path / "sizes").read_text().split()[len(sizes) :] == ["1", "8"]
        assert metric(url, "serving_batch_size_sum") == 6  # what was asked for, not the padding


def test_answers_belong_to_their_questions_with_two_batches_under_way(
    gpu_settings: dict[str, str],
) -> None:
    with fake_service({**gpu_settings, "FAKE_MS": "2"}) as (url, server):
        finished = threading.Event()

        def kill() -> None:
            try:
                wait_for(lambda: metric(url, "serving_batch_size_sum") > 200)
                programs(server, WORKER)[0].kill()
                wait_for(lambda: metric(url, "serving_worker_restarts_total") == 1)
            finally:
                finished.set()

        with repeatedly(threading.Thread(target=kill)):
            answers = send_all(url, numbered(1500), senders=24)
        assert finished.is_set()
        check_right(answers, 1500)
        assert {answer.status for answer in answers} == {200}
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_a_full_device_halves_the_batches_and_loses_nothing(
    gpu_settings: dict[str, str], tmp_path: Path
) -> None:
    with fake_service(gpu_settings) as (url, _):
        assert metric(url, "serving_batch_cap") == 8
        pictures = [command(class_index=i) for i in range(8)]
        pictures[5] = command(class_index=5, failure=Failure.FULL)
        answers = together(url, tmp_path, pictures)
        assert [answer.json().get("prediction") for answer in answers] == [str(i) for i in range(8)]
        assert metric(url, "serving_out_of_memory_total") == 2
        assert metric(url, "serving_batch_cap") == 2
        assert metric(url, "serving_worker_restarts_total") == 0
        assert requests.get(f"{url}/model", timeout=60).json()["max_batch_size"] == 2


def test_a_lost_device_restarts_the_worker(gpu_settings: dict[str, str], tmp_path: Path) -> None:
    with fake_service(gpu_settings) as (url, _):
        pictures = [command(class_index=i) for i in range(3)]
        pictures[1] = command(failure=Failure.LOST)
        answers = together(url, tmp_path, pictures)
        assert [answer.status_code for answer in answers] == [200, 500, 200]
        assert answers[1].json()["code"] == "worker_crashed"
        assert [answers[i].json()["prediction"] for i in (0, 2)] == ["0", "2"]
        wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 200)
        wait_for(lambda: metric(url, "serving_worker_restarts_total") == 2)

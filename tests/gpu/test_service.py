"""The service on a GPU: what it says of itself, a worker that dies, a device that is too small."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from tests import exports, pictures, servers
from tests.e2e.services import WORKER, programs
from tests.gpu.conftest import fraction
from tests.gpu.test_backends import ROOM
from tests.http_load import send_all
from tests.servers import metric, wait_for

pytestmark = pytest.mark.gpu


def test_the_gpu_is_described(gpu_url: str) -> None:
    described = requests.get(f"{gpu_url}/model", timeout=60).json()
    assert described["device"] == "cuda:0"
    assert described["precision"] == "fp16"
    assert described["max_batch_size"] > 1
    wait_for(lambda: len(requests.get(f"{gpu_url}/model", timeout=60).json()["gpus"]) == 1)
    (gpu,) = requests.get(f"{gpu_url}/model", timeout=60).json()["gpus"]
    assert 0 < gpu["memory_used_bytes"] < gpu["memory_total_bytes"]
    text = requests.get(f"{gpu_url}/metrics", timeout=60).text
    assert 'serving_gpu_busy_ratio{gpu="0"}' in text


def test_a_worker_that_dies_under_load_costs_no_request(gpu_url: str) -> None:
    photo = pictures.jpeg()
    port = int(gpu_url.rpartition(":")[2])
    main = next(process for process in psutil.Process().children() if str(port) in process.cmdline())
    killed = threading.Event()

    def kill() -> None:
        try:
            wait_for(lambda: metric(gpu_url, "serving_batch_size_sum") > 100)
            programs(main, WORKER)[0].kill()
            wait_for(lambda: metric(gpu_url, "serving_worker_restarts_total") == 1)
        finally:
            killed.set()

    def photos() -> Iterator[tuple[int, bytes]]:
        tag = 0
        while not killed.is_set() or tag < 2000:
            yield tag, photo
            tag += 1

    thread = threading.Thread(target=kill)
    thread.start()
    answers = send_all(gpu_url, photos(), senders=16)
    thread.join()
    assert {answer.status for answer in answers} == {200}
    assert len({answer.label for answer in answers}) == 1


def test_a_small_share_of_the_memory_means_smaller_batches(package: str) -> None:
    settings = {
        "SERVING_DEVICE": "cuda",
        "SERVING_MAX_BATCH_SIZE": "512",
        "SERVING_GPU_MEMORY_FRACTION": str(fraction(ROOM[package])),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_WEB_PROCESSES": "1",
    }
    with servers.api(package, settings) as url:
        assert 1 <= requests.get(f"{url}/model", timeout=60).json()["max_batch_size"] < 512
        answer = requests.post(f"{url}/predict", data=pictures.jpeg(), timeout=60)
        assert answer.status_code == 200


def test_both_backends_name_the_same_class(package: str) -> None:
    labels = []
    for device in ("cpu", "cuda"):
        settings = {"SERVING_DEVICE": device, "SERVING_WEB_PROCESSES": "1"}
        with servers.api(package, settings) as url:
            answer = requests.post(f"{url}/predict", data=pictures.jpeg(), timeout=60).json()
            labels.append(answer["prediction"])
    assert len(set(labels)) == 1


@pytest.mark.parametrize("package", ["fastapi_onnx"])
def test_texts_of_all_lengths_are_answered(package: str, tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "sentiment", exports.word_piece(), {})
    settings = {"SERVING_DEVICE": "cuda", "SERVING_MODEL_DIR": str(folder), "SERVING_LOG_LEVEL": "error"}
    texts = [" ".join([word] * (1 + n)) for n in range(30) for word in ("awful", "bread", "wonderful")]
    with servers.api(package, settings) as url:
        answers = requests.post(f"{url}/predict", json={"text": texts}, timeout=60).json()
        assert requests.get(f"{url}/model", timeout=60).json()["device"] == "cuda:0"
    assert [answer["prediction"] for answer in answers] == exports.LABELS * 30

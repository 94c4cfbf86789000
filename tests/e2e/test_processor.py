"""What a service takes of the processor: nothing when idle, workers after the web processes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from tests.e2e.conftest import obedient
from tests.e2e.services import WATCHFUL, WEB, WORKER, fake_service, predict, programs
from tests.fake.backend import command
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow

STANDS_BY = {"SERVING_INSTANCES": "auto", "FAKE_MS": "120", "FAKE_SCALES": "1"}
"""Settings with which one worker computes with all threads, and the other one stands by."""


@pytest.fixture(
    scope="module", params=[("1", {}), ("2", {}), ("1", STANDS_BY)], ids=["1", "2", "stands_by"]
)
def service(
    request: pytest.FixtureRequest, fake_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, psutil.Process]]:
    """A service with one or two web processes, and one with a worker that stands by."""
    web_processes, more = request.param
    settings = obedient(fake_model, tmp_path_factory.mktemp("processor")) | more
    with fake_service(settings, WATCHFUL, web_processes=web_processes) as (url, server):
        computing = 1 if more else 2
        assert requests.get(f"{url}/model", timeout=60).json()["workers"] == computing
        yield url, server


def test_an_idle_service_does_nothing(service: tuple[str, psutil.Process]) -> None:
    url, server = service
    assert predict(url, command()).status_code == 200
    workers = programs(server, WORKER)
    idle = [*workers, *programs(server, WEB), server]

    def switches() -> int:
        threads = [psutil.Process(thread.id) for process in idle for thread in process.threads()]
        counts = [thread.num_ctx_switches() for thread in threads]
        return sum(count.voluntary + count.involuntary for count in counts)

    def rests() -> bool:
        before = switches()
        time.sleep(3)
        return switches() == before

    wait_for(rests)  # what the request left to do may take a while
    assert os.getpgid(workers[0].pid)


def test_workers_give_way_to_the_web_process(service: tuple[str, psutil.Process]) -> None:
    _, server = service
    threads = [thread for worker in programs(server, WORKER) for thread in worker.threads()]
    assert len(threads) >= 2
    for thread in threads:
        assert os.getpriority(os.PRIO_PROCESS, thread.id) > os.getpriority(os.PRIO_PROCESS, server.pid)


def test_the_processors_share_of_the_web_is_measured(service: tuple[str, psutil.Process]) -> None:
    url, server = service
    webs = programs(server, WEB) or [server]
    assert metric(url, "serving_web_processes") == len(webs)
    assert metric(url, "serving_cores") >= 1
    before = sum(sum(web.cpu_times()[:2]) for web in webs)
    measured = metric(url, "serving_web_cpu_seconds_total")
    after = sum(sum(web.cpu_times()[:2]) for web in webs)
    assert before - 0.1 <= measured <= after + 0.1  # the kernel counts in hundredths

"""What a service takes of the processor: nothing when idle, workers after the web processes."""

import os
import time

import pytest

from tests.e2e.services import WATCHFUL, WEB, WORKER, fake_service, predict, programs
from tests.fake.backend import command
from tests.servers import metric, wait_for


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_an_idle_service_does_nothing(fake_settings: dict[str, str], web_processes: str) -> None:
    with fake_service(fake_settings, WATCHFUL, web_processes=web_processes) as (url, server):
        assert predict(url, command()).status_code == 200
        workers = programs(server, WORKER)
        idle = [*workers, *programs(server, WEB), server]

        def switches() -> int:
            counts = [process.num_ctx_switches() for process in idle]
            return sum(count.voluntary + count.involuntary for count in counts)

        def rests() -> bool:
            before = switches()
            time.sleep(3)
            return switches() == before

        wait_for(rests)  # what the request left to do may take a while
        assert os.getpgid(workers[0].pid)


@pytest.mark.slow
def test_workers_give_way_to_the_web_process(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings) as (_, server):
        threads = [thread for worker in programs(server, WORKER) for thread in worker.threads()]
        assert len(threads) >= 2
        for thread in threads:
            assert os.getpriority(os.PRIO_PROCESS, thread.id) > os.getpriority(
                os.PRIO_PROCESS, server.pid
            )


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_the_processors_share_of_the_web_is_measured(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    with fake_service(fake_settings, web_processes=web_processes, instances="1") as (url, server):
        assert metric(url, "serving_web_processes") == int(web_processes)
        assert metric(url, "serving_cores") >= 1
        webs = programs(server, WEB) or [server]
        before = sum(sum(web.cpu_times()[:2]) for web in webs)
        measured = metric(url, "serving_web_cpu_seconds_total")
        after = sum(sum(web.cpu_times()[:2]) for web in webs)
        assert before - 0.1 <= measured <= after + 0.1  # the kernel counts in hundredths

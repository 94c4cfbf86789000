"""Load, overload, many requests: each gets its own answer, and nothing is left behind."""

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.services import (
    WORKER,
    check_right,
    fake_service,
    numbered,
    predict,
    programs,
    raw_request,
)
from tests.fake.backend import command
from tests.http_load import send_all
from tests.servers import metric, wait_for


def test_overload_is_refused_at_the_door_and_leaves_nothing(fake_settings: dict[str, str]) -> None:
    settings = {**fake_settings, "FAKE_MS": "20"}
    with fake_service(settings, instances="1", max_batch_size="1", queue_size="8") as (url, _):
        answers = send_all(url, numbered(1500), senders=24)
        check_right(answers, 1500)
        assert {answer.status for answer in answers} == {200, 503}
        assert all(int(a.retry_after or 0) >= 1 for a in answers if a.status == 503)
        assert {a.body["code"] for a in answers if a.status == 503} == {"overloaded"}
        wait_for(lambda: metric(url, "serving_free_slots") == 8)
        assert predict(url, command(class_index=5)).json()["prediction"] == "5"


@pytest.mark.slow
def test_thousands_of_requests_leave_nothing_behind(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings) as (url, server):
        processes = [server, *programs(server, WORKER)]

        def resources() -> list[int]:
            return [process.num_fds() for process in processes]

        def memory() -> int:
            return sum(process.memory_full_info().uss for process in processes)

        def mixed(count: int) -> Iterator[tuple[int, bytes]]:
            good, bad = command(class_index=3), b"no picture"
            for index in range(count):
                if index % 500 == 0:
                    raw_request(url, command()).close()
                yield index, bad if index % 50 == 0 else good

        send_all(url, mixed(4_000), senders=8)
        gc.collect()
        wait_for(lambda: len(server.net_connections("tcp")) == 1)
        before, bytes_before = resources(), memory()
        answers = send_all(url, mixed(10_000), senders=8)
        assert Counter(a.status for a in answers) == {200: 9_800, 400: 200}
        wait_for(lambda: metric(url, "serving_free_slots") == 256)
        wait_for(lambda: len(server.net_connections("tcp")) == 1)
        wait_for(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))
        assert memory() < bytes_before * 1.1 + 10_000_000

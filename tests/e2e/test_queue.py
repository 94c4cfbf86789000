"""The queue: cancelled requests, priorities, and what is computed together."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.conftest import SharedService
from tests.e2e.services import WORKER, fake_service, hold, predict, programs, raw_request
from tests.fake.backend import command
from tests.servers import metric, wait_for


def test_the_first_of_three_batched_requests_leaves_and_the_others_are_answered(
    one_worker: SharedService, senders: ThreadPoolExecutor
) -> None:
    url, gate = one_worker.url, one_worker.gate
    with one_worker.used():
        for leave_while in ("waiting", "running"):
            blocker = hold(senders, url, gate)
            gone = raw_request(url, command(held=True))
            wait_for(lambda: metric(url, "serving_queue_depth") == 1)
            others = [senders.submit(predict, url, command(class_index=i)) for i in (3, 4)]
            wait_for(lambda: metric(url, "serving_queue_depth") == 3)
            cancelled = metric(url, "serving_cancelled_total")
            skipped = metric(url, "serving_skipped_total")
            if leave_while == "waiting":
                gone.close()
                wait_for(lambda before=cancelled: metric(url, "serving_cancelled_total") > before)  # type: ignore[misc]
            gate.touch()
            assert [f.result().json()["prediction"] for f in (blocker, *others)] == ["0", "3", "4"]
            wait_for(lambda: metric(url, "serving_free_slots") == 256)
            gone.close()
            assert metric(url, "serving_skipped_total") - skipped == (leave_while == "waiting")


def test_interactive_requests_overtake_bulk(
    fake_settings: dict[str, str], gate: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, instances="1", max_batch_size="2", queue_size="12") as (url, _):

        def ask(kind: str) -> int:
            return predict(url, command(), X_Priority=kind).status_code

        blocker = hold(senders, url, gate, X_Priority="bulk")
        bulk = [senders.submit(ask, "bulk") for _ in range(5)]
        wait_for(lambda: metric(url, "serving_queue_depth") == 5)
        assert predict(url, command(), X_Priority="bulk").status_code == 503
        interactive = [senders.submit(ask, "interactive") for _ in range(2)]
        wait_for(lambda: metric(url, "serving_queue_depth") == 7)
        gate.touch()
        assert blocker.result().status_code == 200
        assert {f.result() for f in (*bulk, *interactive)} == {200}
        assert metric(url, "serving_batch_size_sum") == 8
        assert metric(url, "serving_batch_size_count") == 5  # 1, then 2 interactive, then 2 + 2 + 1
        assert predict(url, command(), X_Priority="urgent").status_code == 422


def test_what_waits_is_computed_together_and_a_queue_delay_waits_for_more(
    fake_settings: dict[str, str], senders: ThreadPoolExecutor
) -> None:
    delayed = {"max_batch_size": "4", "max_queue_delay_us": "10000000", "instances": "1"}
    with fake_service(fake_settings, **delayed) as (url, _):
        answers = [senders.submit(predict, url, command(class_index=i)) for i in range(4)]
        assert [f.result().json()["prediction"] for f in answers] == ["0", "1", "2", "3"]
        assert metric(url, "serving_batch_size_count") == 1
        assert metric(url, "serving_batch_size_sum") == 4
    with fake_service(fake_settings, **delayed, preferred_batch_sizes="2") as (url, _):
        for _ in range(2):
            pair = [senders.submit(predict, url, command(class_index=i)) for i in range(2)]
            assert [f.result().json()["prediction"] for f in pair] == ["0", "1"]
        assert metric(url, "serving_batch_size_count") == 2


def test_requests_that_would_wait_too_long_are_refused_at_once(
    fake_settings: dict[str, str], gate: Path, senders: ThreadPoolExecutor
) -> None:
    """And none on a service that has just begun, although as many wait."""
    one = {"instances": "1", "max_batch_size": "1"}
    settings = {**fake_settings, "FAKE_MS": "20", "SERVING_MAX_WAIT_MS__FAKE": "10000"}
    with fake_service(settings, **one) as (url, _):

        def ask(**headers: str) -> str:
            answer = predict(url, command(), **headers)
            return "ok" if answer.status_code == 200 else str(answer.json()["code"])

        for expected in ("deadline_exceeded", "overloaded"):
            blocker = hold(senders, url, gate)
            others = [senders.submit(ask) for _ in range(9)]
            wait_for(lambda: metric(url, "serving_queue_depth") == 9)
            assert ask(X_Request_Timeout_Ms="10") == expected
            gate.touch()
            assert {other.result() for other in others} == {"ok"}
            assert blocker.result().status_code == 200
        assert ask(X_Request_Timeout_Ms="5000") == "ok"


def test_a_wait_for_a_worker_to_start_is_not_expected_of_later_requests(
    fake_settings: dict[str, str], gate: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings, instances="1", max_wait_ms="50") as (url, server):
        for is_killed in (True, False):
            answers = [hold(senders, url, gate)]
            answers += [senders.submit(predict, url, command()) for _ in range(3)]
            wait_for(lambda: metric(url, "serving_queue_depth") == 3)
            if is_killed:  # its successor starts for longer than a request may wait
                programs(server, WORKER)[0].kill()
            gate.touch()
            assert [answer.result().status_code for answer in answers] == [200] * 4

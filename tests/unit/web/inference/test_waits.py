"""The estimate of a request's wait: which requests it refuses, and what it learns from."""

import time
from collections.abc import Callable

import pytest

from smallplates.errors import OverloadedError
from smallplates.web.inference.admission import FORGET_S, Waits

FULL = 32
HOUR_MS = 3_600_000


class Queue:
    """A model that computes some requests a second, in the order of their arrival; time is simulated."""

    def __init__(self, waits: Waits, advance: Callable[[float], None]) -> None:
        self.waits = waits
        self.advance = advance

    def refuses(self, ahead: int, timeout_ms: int = HOUR_MS) -> bool:
        try:
            self.waits.check(ahead, timeout_ms)
        except OverloadedError:
            return True
        return False

    def serve(self, count: int, ahead: int, per_second: float) -> None:
        """Answers requests that each waited behind so many."""
        for _ in range(count):
            self.advance(1 / per_second)
            self.waits.measure(ahead, ahead / per_second, FULL)


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


@pytest.fixture
def queue(advance: Callable[[float], None]) -> Queue:
    """A queue without a limit of its own."""
    return Queue(Waits(None), advance)


def test_a_cold_service_refuses_nothing_and_an_idle_one_forgets(queue: Queue) -> None:
    assert not queue.refuses(4096, timeout_ms=1)
    queue.serve(1, ahead=100, per_second=100)
    assert queue.refuses(100, timeout_ms=999)
    assert not queue.refuses(100, timeout_ms=1001)
    assert not queue.refuses(0, timeout_ms=1)
    queue.advance(FORGET_S - 0.1)
    assert queue.refuses(100, timeout_ms=999)
    queue.advance(0.2)
    assert not queue.refuses(4096, timeout_ms=1)
    queue.serve(1, ahead=1, per_second=1000)
    assert not queue.refuses(100, timeout_ms=101)  # nothing is left of the slower rate


@pytest.mark.parametrize(("before", "after"), [(1000, 100), (100, 1000)])
def test_the_estimate_follows_the_rate(queue: Queue, before: int, after: int) -> None:
    for rate in (before, after):
        queue.serve(60, ahead=100, per_second=rate)
        real_ms = 1000 * 200 // rate
        assert queue.refuses(200, timeout_ms=real_ms * 9 // 10)
        assert not queue.refuses(200, timeout_ms=real_ms * 11 // 10)


def test_small_batches_say_less_than_full_ones(queue: Queue) -> None:
    """A request behind a single one waits for a whole computation; behind many, for its share."""
    queue.serve(100, ahead=1, per_second=100)
    queue.serve(8, ahead=FULL, per_second=1000)
    few = queue.waits._per_slot_s
    queue.serve(8, ahead=1, per_second=100)
    assert queue.waits._per_slot_s < 1.3 * few < 0.01


@pytest.mark.parametrize(("most_ms", "timeout_ms"), [(50, HOUR_MS), (None, 50), (50, 50)])
def test_the_shorter_limit_counts(
    advance: Callable[[float], None], most_ms: int | None, timeout_ms: int
) -> None:
    queue = Queue(Waits(most_ms), advance)
    queue.serve(1, ahead=10, per_second=1000)
    assert not queue.refuses(49, timeout_ms)
    assert queue.refuses(51, timeout_ms)

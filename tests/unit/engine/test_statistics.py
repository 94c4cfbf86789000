"""What the engine counts: every web process in rows of its own, all of them readable by each."""

from dataclasses import fields

import pytest

from smallplates.engine.memory import PER_BATCH_SIZE, TOTALS, Memory
from smallplates.engine.statistics import BatchTotals, Statistics, Timings, Totals
from smallplates.tasks.image_classification import IMAGE, TENSOR


@pytest.fixture
def web_processes(memory: Memory) -> list[Statistics]:
    """Two web processes' views of one mapping."""
    return [Statistics(memory, web) for web in range(2)]


def test_the_rows_have_room_for_the_fields() -> None:
    assert len(fields(Totals)) == TOTALS
    assert len(fields(BatchTotals)) == PER_BATCH_SIZE


def test_nothing_has_happened_at_first(web_processes: list[Statistics]) -> None:
    assert web_processes[0].totals(IMAGE) == Totals()
    assert web_processes[0].by_batch_size(TENSOR) == {}


def test_figures_of_all_web_processes_add_up(web_processes: list[Statistics]) -> None:
    for web, statistics in enumerate(web_processes):
        statistics.count_batch(IMAGE, 3, 0.5)  # three inputs of two requests
        statistics.count_success(IMAGE, Timings(0.25, 0.5, 1.0, 0.125), [3])
        statistics.count_success(IMAGE, Timings(0.5, 0.5, 1.0, 0.25), [3, 3])
        statistics.count_failure(IMAGE, web)
    for statistics in web_processes:
        totals = statistics.totals(IMAGE)
        assert (totals.inferences, totals.successes, totals.failures) == (6, 4, 2)
        assert totals.last_inference_ms > 0
        assert totals.failure_ns == 1_000_000_000
        parts = totals.decode_ns + totals.queue_ns + totals.infer_ns + totals.output_ns
        assert parts == totals.success_ns
        batches = statistics.by_batch_size(IMAGE)
        assert list(batches) == [3]
        assert batches[3].executions * 3 == totals.inferences
        assert batches[3].infer_ns == 1_000_000_000
        assert batches[3].decode_ns == totals.decode_ns
        assert batches[3].output_ns == totals.output_ns
        assert statistics.totals(TENSOR) == Totals()


def test_every_batch_size_has_a_place_of_its_own(web_processes: list[Statistics]) -> None:
    for batch_size in range(1, 9):
        for _ in range(batch_size):
            web_processes[0].count_batch(TENSOR, batch_size, 0.0)
    by_batch_size = web_processes[1].by_batch_size(TENSOR)
    assert {size: batch.executions for size, batch in by_batch_size.items()} == {
        n: n for n in range(1, 9)
    }


def test_clocks_that_disagree_count_as_no_time(web_processes: list[Statistics]) -> None:
    web_processes[0].count_success(IMAGE, Timings(-1e-9, -0.001, 0.5, 0.0), [1])
    assert web_processes[0].totals(IMAGE).success_ns == 500_000_000

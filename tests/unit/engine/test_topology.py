"""How many workers, web processes and threads there are on machines of several sizes."""

import pytest

from smallplates.engine import topology
from smallplates.settings import Settings
from smallplates.system import cpus

WEB_MS = 1.4
PYTORCH_MS, FP32_MS, INT8_MS = 8.0, 5.0, 1.5
CORES = (1, 2, 4, 8, 16, 64)


def on_a_cpu(cores: int, worker_ms: float) -> int:
    """Returns the web processes for a worker a core."""
    return topology.balanced_web_processes(cores, cores, 1, worker_ms, WEB_MS)


@pytest.mark.parametrize(
    ("worker_ms", "expected"),
    [(PYTORCH_MS, [1, 1, 1, 2, 3, 10]), (FP32_MS, [1, 1, 1, 2, 4, 14]), (INT8_MS, [1, 1, 2, 4, 8, 31])],
)
def test_neither_side_waits_for_the_other(worker_ms: float, expected: list[int]) -> None:
    assert [on_a_cpu(cores, worker_ms) for cores in CORES] == expected
    for cores, count in zip(CORES, expected, strict=True):
        rate = cores / (worker_ms + WEB_MS)  # where every core is always busy
        assert count / WEB_MS >= rate
        assert count == 1 or (count - 1) / WEB_MS < rate


def test_few_workers_need_few_web_processes() -> None:
    assert topology.balanced_web_processes(64, 1, 1, FP32_MS, WEB_MS) == 1
    assert topology.balanced_web_processes(64, 16, 4, INT8_MS, WEB_MS) == 13  # of 4 threads each


def test_there_is_at_least_one_and_there_are_not_too_many() -> None:
    assert on_a_cpu(1, 1000.0) == 1
    assert on_a_cpu(4, 0.001) == 4
    assert on_a_cpu(1024, 0.001) == topology.MAX_WEB_PROCESSES


def most(monkeypatch: pytest.MonkeyPatch, cores: int, **values: object) -> int:
    monkeypatch.setattr(cpus, "usable", lambda: cores)
    return topology.most_web_processes(Settings.model_validate(values))


def test_two_cores_have_one_web_process_and_more_cores_may_have_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology, "gpu_is_possible", lambda: False)
    assert [most(monkeypatch, cores) for cores in (1, 2, 3, 16, 192)] == [1, 1, 3, 16, 64]
    assert most(monkeypatch, 2, web_processes=3) == most(monkeypatch, 64, web_processes=3) == 3
    assert most(monkeypatch, 16, tcp_port=0) == 1


def test_beside_a_gpu_they_take_the_cores_that_workers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "gpu_is_possible", lambda: True)
    assert most(monkeypatch, 2, device="cuda") == 1
    assert most(monkeypatch, 16, device="cuda") == most(monkeypatch, 16, device="auto") == 15
    assert most(monkeypatch, 16, device="cuda", devices="0,1", instances=2) == 12
    assert most(monkeypatch, 16, device="cuda", web_processes=3) == 3
    assert most(monkeypatch, 16, device="cuda", instances=20) == 1
    assert most(monkeypatch, 16, device="cpu") == 16


@pytest.mark.parametrize(
    ("cores", "web_processes", "threads"),
    [(16, 1, 16), (16, 15, 2), (16, 4, 4), (2, 1, 2), (2, 2, 2), (1, 1, 1), (1, 4, 1)],
)
def test_web_processes_share_the_decoding_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, web_processes: int, threads: int
) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: cores)
    assert topology.decoding_threads(Settings(web_processes=web_processes)) == threads


def test_a_lone_input_has_threads_of_its_own_where_they_are_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores, threads in ((1, None), (2, 2), (16, 16), (64, 16)):
        monkeypatch.setattr(cpus, "usable", lambda now=cores: now)
        assert topology.single_request_threads(Settings()) == threads
    assert topology.single_request_threads(Settings(intra_op_threads=16)) is None
    assert topology.single_request_threads(Settings(idle_threads=20)) == 20

"""The counters of `/metrics`, which never fall while the service runs."""

import os
from functools import partial

import pytest

from smallplates.engine.memory import Memory
from smallplates.web import metrics
from smallplates.web.metrics import Metrics
from tests.unit.engine.conftest import memory

__all__ = ["memory"]


def test_the_counters_of_a_model_stay_while_it_is_unloaded(memory: Memory) -> None:
    made = Metrics()
    made.engines.follow("one", memory, web_processes=1)
    memory.restarts[0], memory.out_of_memory[0] = 3, 2
    made.engines.withdraw("one", failed=False)
    values = dict(line.rsplit(" ", 1) for line in made.text().decode().splitlines())
    assert float(values['serving_worker_restarts_total{model="one"}']) == 3
    assert float(values['serving_out_of_memory_total{model="one"}']) == 2
    assert float(values["serving_web_cpu_seconds_total"]) > 0
    memory.continue_counters(memory.counters)  # as of the engine before it
    made.engines.follow("one", memory, web_processes=1)
    assert b'serving_worker_restarts_total{model="one"} 6.0' in made.text()


def test_the_time_of_web_processes_never_falls(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    used = {os.getpid(): 5.0}
    monkeypatch.setattr(metrics, "_cpu_seconds", lambda process: used.get(process, 0.0))
    seconds = partial(metrics.web_cpu_seconds, memory.counts)
    assert seconds() == 5
    used.clear()
    assert seconds() == 5  # it has just ended
    memory.counts.web_cpu_s[0] += 5
    used[os.getpid()] = 1.0
    assert seconds() == 6

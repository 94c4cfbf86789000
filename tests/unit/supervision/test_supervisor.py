"""The supervisor where a worker has died, without workers that compute."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from smallplates.engine.client import EngineClient
from smallplates.engine.memory import (
    EngineFds,
    Memory,
    ServiceCounts,
    State,
    generation_of,
    send,
    slot_of,
)
from smallplates.engine.statistics import Statistics
from smallplates.engine.worker_args import REFRESH_HEARTBEAT
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model, configured_models
from smallplates.models.tensors import Signature, TensorSpec, axes_of
from smallplates.settings import Settings
from smallplates.supervision.registry import EnginePlan, Registry
from smallplates.supervision.supervisor import Supervisor
from smallplates.supervision.worker_process import WorkerProcess
from smallplates.tasks.image_classification import ImageClassification, image_signatures
from tests import killing


@pytest.fixture
def supervisor(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """With three places for workers; its thread starts none of them."""
    monkeypatch.setattr(Supervisor, "_start_due", lambda _: None)
    made = Supervisor(
        "no:Backend",
        model,
        ImageClassification.plan(model, Settings()),
        Settings(instances=3),
        ServiceCounts(),
    )
    made._allocate()
    made._startup_over.set()
    yield made
    made.close()


def test_an_engine_that_is_abandoned_before_it_is_made_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Supervisor] = []
    monkeypatch.setattr(Supervisor, "_start_due", started.append)
    models = configured_models(Settings())
    registry = Registry(Settings(), lambda *_: EnginePlan("no:Backend", abandoning(registry)), models)
    with pytest.raises(ConfigurationError, match="shutting down"):
        asyncio.run(registry.start())
    assert not started


@pytest.mark.parametrize("limit", [1000, 2**16])
def test_a_queue_of_larger_items_than_memory_can_be_reserved_for(model: Model, limit: int) -> None:
    picture = TensorSpec("x", "float32", ("n", "channels", "height", "width"))
    limits = dict.fromkeys(axes_of([picture]), limit)
    signatures = (Signature("tensor", (picture,), (picture,), limits=limits, is_batched=False),)
    made = Supervisor("no:Backend", model, signatures, Settings(), ServiceCounts())
    with pytest.raises(
        ConfigurationError, match=r"GB: lower SERVING_QUEUE_SIZE.* limits for n, channels, height, width"
    ):
        made.start()


def test_batches_of_a_fixed_size_beyond_the_largest_of_the_settings_are_counted(model: Model) -> None:
    signatures = [replace(each, batch_size=100) for each in ImageClassification.plan(model, Settings())]
    settings = Settings(max_batch_size=4)
    made = Supervisor("no:Backend", model, (*signatures,), settings, ServiceCounts())
    memory = Memory.create(made.layout)
    statistics = Statistics(memory, 0)
    statistics.count_batch(0, 100, infer_s=0.5)
    assert statistics.by_batch_size(0)[100].executions == 1
    memory.close()


def abandoning(registry: Registry) -> tuple[Signature, ...]:
    """The signatures of a model whose service is ended while they are read."""
    registry.stop()
    return image_signatures((2, 2), 2)


async def queue_two(fds: EngineFds, lines: int) -> None:
    """Plays a web process that queues two items, and is killed after so many lines of that."""
    client = EngineClient(fds, lambda *_: None)
    client.open()
    image = [np.zeros(spec.shape_at({}), spec.dtype) for spec in fds.layout.signatures[0].inputs]
    killing.after(lines, {"enqueue", "_queue", "send"})
    await client.acquire(count=2).submit(0, [image, image], time.monotonic() + 60, bulk=False)
    await asyncio.sleep(0)  # lets the event loop queue them
    os._exit(0)


async def free_slots_of_successor(made: Supervisor) -> int:
    """Plays a worker and the next web process; returns how many slots of this one are free then."""
    client = EngineClient(made.engine_fds(0), lambda *_: None)
    client.open()
    with contextlib.suppress(BlockingIOError):
        for value in memoryview(os.read(made._work[0][0], 4096)).cast("Q"):
            slot = slot_of(value)
            if made.memory.generation[slot] == generation_of(value):
                assert made.memory.cancelled[slot]
                made.memory.state[slot] = State.SKIPPED
                send(made._done_fds[0], value)
    client._on_done()
    free = client.free_slots(bulk=False)
    client.close()
    return free


def without_thread(model: Model, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """An engine with two slots, whose wake-ups nothing reads."""
    monkeypatch.setattr(threading, "Thread", Mock())
    signatures = ImageClassification.plan(model, Settings())
    made = Supervisor("no:Backend", model, signatures, Settings(queue_size=2), ServiceCounts())
    made._allocate()
    return made


def test_wherever_a_web_process_is_killed_all_its_slots_come_back(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = without_thread(model, monkeypatch)
    made.memory.serving_workers[0] = 2  # each item has a write of its own
    lines, code = 0, 1
    while code:
        if not (child := os.fork()):
            asyncio.run(queue_two(made.engine_fds(0), lines))
        _, code = os.waitpid(child, 0)
        made.cancel_requests_of(0)
        assert asyncio.run(free_slots_of_successor(made)) == 2, lines
        lines += 1
    assert lines > 30
    made.close()


def test_an_engine_ends_though_many_have_woken_a_supervisor_that_was_busy(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = without_thread(model, monkeypatch)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(made._wakeup[1], bytes(4096))
    made.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made.memory.fd)


def control_pipe(process: WorkerProcess) -> int:
    reader, process.control_fd = os.pipe()
    os.set_blocking(reader, False)
    return reader


def test_after_a_death_the_other_workers_look_for_the_record_that_had_woken_the_dead_one(
    supervisor: Supervisor,
) -> None:
    supervisor.stop()
    supervisor._thread.join()  # it would find the death, too
    dead, ready, loading = supervisor._processes
    dead.popen = subprocess.Popen([sys.executable, "-c", ""])
    dead.status_fd = os.open(os.devnull, os.O_RDONLY)
    ends = [control_pipe(process) for process in (dead, ready, loading)]
    dead.ready = ready.ready = True
    supervisor._on_death(dead)
    assert os.read(ends[1], 64) == REFRESH_HEARTBEAT
    with pytest.raises(BlockingIOError):
        os.read(ends[2], 64)
    for fd in (*ends, ready.control_fd, loading.control_fd):
        os.close(fd)


def test_the_start_fails_for_the_reason_of_the_first_worker_though_others_end_at_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(supervisor: Supervisor) -> None:
        for process in supervisor._processes:
            process.popen = subprocess.Popen([sys.executable, "-c", ""])
            process.control_fd = os.open(os.devnull, os.O_WRONLY)
            process.status_fd, writer = os.pipe()
            os.write(writer, b'{"error": "cannot be loaded"}\n')
            os.close(writer)
            process.start_at = None
        monkeypatch.setattr(Supervisor, "_start_due", lambda _: None)

    monkeypatch.setattr(Supervisor, "_start_due", start)
    signatures = ImageClassification.plan(model, Settings())
    made = Supervisor("no:Backend", model, signatures, Settings(instances=2), ServiceCounts())
    made._allocate()
    made._thread.join()
    assert made._error == "cannot be loaded"
    made.close()

"""The slots of several web processes: each owns as many as the service admits; all share the bound."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import numpy as np
import pytest

from smallplates.engine import client as engine_client
from smallplates.engine.client import EngineClient, ItemResult, Slots, error_for
from smallplates.engine.memory import EngineFds, Memory, ServiceCounts, SlotLayout, State, slot_of
from smallplates.errors import (
    InternalError,
    OverloadedError,
    PayloadTooLargeError,
    RejectedError,
    ServingError,
)
from smallplates.tasks.image_classification import image_signatures

pytestmark = pytest.mark.anyio
LAYOUT = SlotLayout(
    slots=12, web_processes=3, workers=1, max_batch=1, signatures=image_signatures((2, 2), 2)
)


@contextmanager
def clients(counts_fd: int | None = None) -> Iterator[list[EngineClient]]:
    """One for each web process, over one mapping that admits four requests; inside an event loop."""
    with ExitStack() as held:
        memory = Memory.create(LAYOUT, counts_fd)
        held.callback(memory.close)
        done = [os.pipe() for _ in range(LAYOUT.web_processes)]
        made = []
        for index, (reader, writer) in enumerate(done):
            held.callback(os.close, reader)
            held.callback(os.close, writer)
            shared = memory.fd, memory.counts.fd
            fds = EngineFds(index, LAYOUT, *shared, (writer, writer), reader, writer)
            client = EngineClient(fds, lambda *_: None)
            client.open()
            held.callback(client.close)
            made.append(client)
        yield made


async def test_one_web_process_may_take_all_and_then_nobody_gets_more() -> None:
    with clients() as (first, second, _):
        taken = first.acquire(count=4)
        assert first.memory.free_slots == 0
        for client in (first, second):
            with pytest.raises(OverloadedError, match="all slots are taken"):
                client.acquire()
        first.free(taken.indices[:1])
        second.acquire()
        assert sum(first.memory.in_flight) == 4
        with pytest.raises(OverloadedError):
            first.acquire()


async def test_slots_of_all_web_processes_are_ahead_unless_a_worker_is_idle_or_none_is_ready() -> None:
    with clients() as (first, second, third):
        first.acquire()
        assert third.ahead == 0
        for ready, expected in ((1, 1), (2, 0)):
            first.memory.serving_workers[0] = ready
            assert third.ahead == expected
        second.acquire(count=2)
        assert [client.ahead for client in (first, second, third)] == [3, 3, 3]


async def test_several_slots_are_taken_all_or_none() -> None:
    with clients() as (first, second, third):
        first.acquire(count=2)
        with pytest.raises(OverloadedError):
            second.acquire(count=3)
        assert list(first.memory.in_flight) == [2, 0, 0]
        third.acquire(count=2)


async def test_slots_are_added_as_far_as_there_are_any() -> None:
    with clients() as (first, *_), first.acquire() as slots:
        for wanted, bulk, free in ((3, True, 2), (1, False, 3), (9, False, 0)):
            slots.resize(wanted, bulk)
            assert first.memory.free_slots == free


@pytest.mark.parametrize(
    ("items", "workers", "fewest", "expected"),
    [
        (4, 2, 1, [2, 2]),
        (3, 2, 1, [2, 1]),
        (1, 2, 1, [1]),
        (4, 1, 1, [4]),
        (3, 0, 1, [3]),
        (4, 2, 3, [3, 1]),
        (4, 2, 100, [4]),
    ],
)
async def test_items_are_queued_together_with_a_write_for_each_worker(
    monkeypatch: pytest.MonkeyPatch, items: int, workers: int, fewest: int, expected: list[int]
) -> None:
    """A write wakes one worker, which takes what it finds; one iteration of the loop has all in it."""
    written: list[list[int]] = []
    write = lambda _, *values: written.append([*map(slot_of, values)])  # noqa: E731
    monkeypatch.setattr(engine_client, "send", write)
    with clients() as (first, *_):
        memory, first.fewest = first.memory, fewest
        memory.batch_cap[0], memory.serving_workers[0] = 4, workers
        pixels = [np.full((2, 2, 3), number, np.uint8) for number in range(items)]
        with first.acquire(count=items) as slots:
            await slots.submit(0, [[each] for each in pixels], time.monotonic() + 60, bulk=False)
            assert not written
            await asyncio.sleep(0)
            assert [*map(len, written)] == expected
            order = [*chain(*written)]
            assert sorted(order) == sorted(slots.indices)
            assert [memory.state[slot] for slot in order] == [State.QUEUED] * items
            array = memory.signatures[0].inputs[0].array
            assert [int(array[slot].max()) for slot in order] == [*range(items)]


async def finish(client: EngineClient, slots: Slots, failed: int | None = None) -> list[ItemResult]:
    """Queues items 0 to 5 and reports whatever is queued, later slots first; each returns its number."""
    memory, items = client.memory, [[np.full((2, 2, 3), number, np.uint8)] for number in range(6)]
    inputs, outputs = (
        each[0].array for each in (memory.signatures[0].inputs, memory.signatures[0].outputs)
    )

    async def all_items() -> list[ItemResult]:
        await slots.submit(0, items, time.monotonic() + 60, bulk=False)
        return await slots.results()

    request = asyncio.create_task(all_items())
    while not request.done():
        await asyncio.sleep(0)
        for slot in reversed([slot for slot in slots.indices if memory.state[slot] == State.QUEUED]):
            outputs[slot] = number = int(inputs[slot].max())
            memory.state[slot] = State.FAILED if number == failed else State.DONE
            client._finish(slot, memory.generation[slot])
    return await request


async def test_slots_are_used_again_and_results_have_the_order_of_the_items() -> None:
    with clients() as (first, *_):
        first.memory.batch_cap[0] = 1  # so that two items are queued at a time
        with first.acquire(count=3) as slots:
            results = await finish(first, slots)
        assert [result.outputs[0].tolist() for result in results] == [[n, n] for n in range(6)]
        assert first.memory.free_slots == 4


@pytest.mark.parametrize(
    ("state", "is_client_error", "kind"),
    [
        (State.REFUSED, True, RejectedError),
        (State.REFUSED, False, InternalError),
        (State.FAILED, True, InternalError),
    ],
)
async def test_only_what_the_model_refuses_may_be_the_clients_error(
    state: State, is_client_error: bool, kind: type[Exception]
) -> None:
    assert type(error_for(state, is_client_error, hang_limit_s=3)) is kind


async def test_nothing_is_queued_after_an_item_has_failed() -> None:
    with clients() as (first, *_):
        first.memory.batch_cap[0] = 1
        with pytest.raises(InternalError), first.acquire(count=3) as slots:
            await finish(first, slots, failed=1)
        taken = [number for number in first.memory.generation if number]
        assert len(taken) == 2
        assert first.memory.free_slots == 4


async def test_bulk_leaves_half_of_all_slots_free() -> None:
    with clients() as (first, second, third):
        first.acquire(bulk=True)
        second.acquire(bulk=True)
        with pytest.raises(OverloadedError, match="all slots for bulk requests are taken"):
            third.acquire(bulk=True)
        third.acquire(count=2)


async def test_what_a_dead_web_process_left_counts_until_a_worker_has_come_across_it() -> None:
    with clients() as (first, second, _):
        (slot,) = first.acquire().indices
        first.memory.state[slot] = State.QUEUED
        first.close()
        successor = EngineClient(first._fds, lambda *_: None)
        successor.open()
        assert first.memory.cancelled[slot] == 1
        assert successor.memory.free_slots == 3
        with pytest.raises(OverloadedError):
            second.acquire(count=4)
        successor.close()


async def test_a_request_is_alone_only_if_no_engine_of_the_service_has_another() -> None:
    counts = ServiceCounts(LAYOUT.web_processes)
    with clients(counts.fd) as (first, _, third), clients(counts.fd) as (other, *_):
        taken = first.acquire()
        assert counts.alone
        with other.acquire():
            assert list(counts.in_flight) == [2, 0, 0]
            assert not first.memory.counts.alone
            assert other.memory.free_slots == 3  # every engine admits as many
        with third.acquire():
            assert not other.memory.counts.alone
        first.free(taken.indices)
        assert list(counts.in_flight) == [0, 0, 0]


async def test_an_engine_that_is_given_back_takes_its_requests_out_of_the_count() -> None:
    counts = ServiceCounts(LAYOUT.web_processes)
    with clients(counts.fd) as (first, second, _):
        first.acquire(count=2)
        second.acquire()
        first.close()
        assert list(counts.in_flight) == [0, 1, 0]


@pytest.mark.parametrize("refused", [PayloadTooLargeError, OverloadedError])
async def test_an_answer_that_takes_too_much_memory_fails_its_request(
    monkeypatch: pytest.MonkeyPatch, refused: type[ServingError]
) -> None:
    def hold(size: int) -> None:
        if refused is OverloadedError and size > 24:
            raise OverloadedError("no room")

    result = ItemResult([np.zeros(3)], 0.0, 0.0, 0.0, 1, True)
    monkeypatch.setattr(engine_client, "send", lambda *_: None)
    with clients() as (first, *_):
        first._max_answer_bytes = 30 if refused is PayloadTooLargeError else 1000
        with first.acquire(count=2) as slots:
            slots.hold = hold
            items = [[np.zeros((2, 2, 3), np.uint8)]] * 2
            first.memory.batch_cap[0] = 4
            await slots.submit(0, items, time.monotonic() + 60, bulk=False)
            for slot in [*slots.indices]:
                first._requests.pop(slot)
                slots.report(slot, result)
            with pytest.raises(refused):
                await slots.results()

"""The slots of several web processes: each owns as many as the service admits; all share the bound."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from smallplates.engine.client import EngineClient
from smallplates.engine.memory import EngineFds, Memory, ServiceCounts, SlotLayout, State
from smallplates.errors import OverloadedError
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


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that the service runs on."""
    return "asyncio"


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

"""The engine's promises hold for whatever a network takes: pictures, several tensors, varying lengths.

The engine's client runs in this process, its workers in processes of their own.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from smallplates.engine.client import EngineClient, ItemResult
from smallplates.engine.memory import State
from smallplates.errors import DeadlineExceededError, InternalError, ServingError, WorkerCrashedError
from smallplates.models.tensors import Item, Signature
from smallplates.settings import Settings
from smallplates.supervision.registry import EngineHandle, EnginePlan
from smallplates.tasks.image_classification import image_signatures
from tests.e2e.conftest import obedient
from tests.e2e.services import local_engine, until
from tests.fake import BACKEND
from tests.fake.backend import LENGTHS, SEVERAL, Failure, colour, command_numbers, command_several
from tests.fake.model import CLASSES

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Kind:
    """A signature, and how to command through it."""

    signature: Signature
    item: Callable[[bool, Failure, int], Item]
    answer: Callable[[Item, ItemResult], int]
    """The class that was answered; all other outputs have been checked."""


def picture(held: bool, failure: Failure, index: int) -> Item:
    return [np.full((8, 8, 3), colour(held, failure, index), np.uint8)]


def picture_answer(_: Item, outcome: ItemResult) -> int:
    (logits,) = outcome.outputs
    assert logits.shape == (CLASSES,)
    return int(logits.argmax())


def several(held: bool, failure: Failure, index: int) -> Item:
    """Every other one is asked for the other sign."""
    return command_several(held, failure, index, negative=index % 2 == 1)


def several_answer(item: Item, outcome: ItemResult) -> int:
    class_index, score, echo = outcome.outputs
    assert [(array.shape, str(array.dtype)) for array in (class_index, score, echo)] == [
        ((), "int64"),
        ((1,), "float32"),
        ((2, 2), "float16"),
    ]
    assert np.array_equal(echo, -item[1] if item[2] else item[1])
    return int(class_index)


def numbers(held: bool, failure: Failure, index: int) -> Item:
    """Neighbours are of very different lengths."""
    return command_numbers(held, failure, index, length=3 + index * 29 % 62)


def numbers_answer(item: Item, outcome: ItemResult) -> int:
    """Checks that the echo is as long as the item was."""
    class_index, echo = outcome.outputs
    assert np.array_equal(echo, item[0])
    return int(class_index)


KINDS = {
    "picture": Kind(image_signatures((8, 8), CLASSES)[0], picture, picture_answer),
    "several": Kind(SEVERAL, several, several_answer),
    "lengths": Kind(LENGTHS, numbers, numbers_answer),
}


class Engine:
    """One running engine, asked through the signature at `place` unless another is named."""

    def __init__(self, handle: EngineHandle, kinds: list[Kind], gate: Path) -> None:
        self.kinds = kinds
        self.gate = gate
        self.place = 0
        self.workers: list[psutil.Process] = []
        self.states: Counter[int] = Counter()
        self.before: dict[int, Counter[int]] = {}
        self.client = EngineClient(handle.fds, lambda state, _: self.states.update([state]))
        self.client.open()
        self.memory = self.client.memory

    async def ask(
        self,
        *indices: int,
        held: bool = False,
        failure: Failure = Failure.NONE,
        seconds: float = 30,
        bulk: bool = False,
        place: int | None = None,
    ) -> list[int]:
        """The classes that are answered to these commands."""
        place = self.place if place is None else place
        kind = self.kinds[place]
        items = [kind.item(held, failure, index) for index in indices]
        with self.client.acquire(bulk, len(items)) as slots:
            await slots.submit(place, items, time.monotonic() + seconds, bulk)
            outcomes = await slots.results()
        return [kind.answer(*pair) for pair in zip(items, outcomes, strict=True)]

    def open_gate(self) -> None:
        self.gate.touch()

    async def waiting(self, count: int) -> None:
        """Returns as soon as so many items wait."""
        await until(lambda: self.memory.state.tolist().count(State.QUEUED) == count)

    def executions(self, place: int | None = None) -> dict[int, int]:
        """How many batches there were of each size since the test began."""
        place = self.place if place is None else place
        batches = self.client.statistics.by_batch_size(place)
        now = Counter({size: batch.executions for size, batch in batches.items()})
        return dict(now - self.before.get(place, Counter()))

    @asynccontextmanager
    async def used(self, kind: Kind) -> AsyncIterator["Engine"]:
        """Closes the gate for one test that asks through this signature; opens it after."""
        for file in (self.gate, self.gate.with_suffix(".held")):
            file.unlink(missing_ok=True)
        self.place = self.kinds.index(kind)
        self.states.clear()
        self.before = {}
        self.before = {place: Counter(self.executions(place)) for place in range(len(self.kinds))}
        try:
            yield self
            await asyncio.wait_for(self.client.drain(), 60)
        finally:
            self.open_gate()


def workers() -> list[psutil.Process]:
    """Those of all engines in this process."""
    children = psutil.Process(os.getpid()).children()
    return [child for child in children if "smallplates.worker.process" in child.cmdline()]


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], *kinds: Kind, **more: str
) -> AsyncIterator[Engine]:
    """An engine of one worker that obeys; the worker reads the same environment."""
    named = {"instances": "1", "queue_size": "16", "max_batch_size": "4", **more}
    named = {f"SERVING_{name.upper()}": value for name, value in named.items()}
    for name, value in {**settings, **named}.items():
        monkeypatch.setenv(name, value)
    plan = EnginePlan(BACKEND, tuple(kind.signature for kind in kinds))
    others = workers()
    async with local_engine(Settings(), lambda _: plan) as handle:
        engine = Engine(handle, list(kinds), Path(settings["FAKE_GATE"]))
        engine.workers = [worker for worker in workers() if worker not in others]
        try:
            async with engine.used(kinds[0]):
                yield engine
        finally:
            engine.client.close()


@pytest.fixture(scope="module")
async def all_kinds(fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """An engine with every signature, for the tests that break no worker."""
    settings = obedient(fake_model, tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with running(monkeypatch, settings, *KINDS.values()) as engine:
            yield engine


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


async def held_by(engine: Engine) -> "asyncio.Task[list[int]]":
    """A computation that lasts until the gate is there; it has begun."""
    task = asyncio.ensure_future(engine.ask(99, held=True))
    await until(engine.gate.with_suffix(".held").exists)
    return task


async def test_answers_come_back_in_order_and_in_batches(all_kinds: Engine, kind: Kind) -> None:
    async with all_kinds.used(kind) as engine:
        first = await held_by(engine)
        many = asyncio.ensure_future(engine.ask(3, 1, 4, 1, 5))
        await engine.waiting(5)
        engine.open_gate()
        assert await first == [99]
        assert await many == [3, 1, 4, 1, 5]
        assert engine.executions() == {1: 2, 4: 1}
        assert engine.states == {State.DONE: 6}
        assert engine.memory.smallest_cap == 4


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure.RAISE, InternalError),
        (Failure.TOO_FEW_OUTPUTS, InternalError),
        (Failure.EXIT, WorkerCrashedError),
    ],
)
async def test_one_poisonous_item_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
    fake_settings: dict[str, str],
    all_kinds: Engine,
    kind: Kind,
    failure: Failure,
    error: type[ServingError],
) -> None:
    crashes = failure is Failure.EXIT
    chosen = running(monkeypatch, fake_settings, kind) if crashes else all_kinds.used(kind)
    async with chosen as engine:
        first = await held_by(engine)
        asked = [engine.ask(1, 2), engine.ask(7, failure=failure), engine.ask(3)]
        tasks = [asyncio.ensure_future(question) for question in asked]
        await engine.waiting(4)
        engine.open_gate()
        assert await first == [99]
        before, failed, after = await asyncio.gather(*tasks, return_exceptions=True)
        assert (before, type(failed), after) == ([1, 2], error, [3])


async def test_a_worker_that_is_killed_costs_no_item(
    monkeypatch: pytest.MonkeyPatch, fake_settings: dict[str, str], kind: Kind
) -> None:
    async with running(monkeypatch, fake_settings, kind) as engine:
        first = await held_by(engine)
        many = asyncio.ensure_future(engine.ask(*range(6)))
        await engine.waiting(6)
        engine.open_gate()
        for worker in engine.workers:
            worker.kill()
        assert await first == [99]
        assert await many == list(range(6))


async def test_deadline_and_cancellation_leave_nothing_behind(all_kinds: Engine, kind: Kind) -> None:
    async with all_kinds.used(kind) as engine:
        first = await held_by(engine)
        late = asyncio.ensure_future(engine.ask(1, 2, 3, seconds=-1))
        leaving = asyncio.ensure_future(engine.ask(4, 5))
        await engine.waiting(5)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        engine.open_gate()
        assert await first == [99]
        with pytest.raises(DeadlineExceededError):
            await late
        await asyncio.wait_for(engine.client.drain(), 60)
        assert engine.states[State.DONE] == 1
        assert engine.states[State.SKIPPED] >= 2
        assert engine.states[State.EXPIRED] >= 1
        assert await engine.ask(6) == [6]


async def test_slots_are_added_as_far_as_there_are_any(all_kinds: Engine, kind: Kind) -> None:
    async with all_kinds.used(kind) as engine:
        items = [kind.item(False, Failure.NONE, index) for index in range(16)]
        with engine.client.acquire(count=4) as slots:
            slots.resize(9, bulk=True)
            assert engine.memory.free_slots == 8
            slots.resize(2, bulk=False)
            assert engine.memory.free_slots == 14
            slots.resize(17, bulk=False)
            assert engine.memory.free_slots == 0
            await slots.submit(engine.place, items, time.monotonic() + 30, False)
            outcomes = await slots.results()
        answers = [kind.answer(*pair) for pair in zip(items, outcomes, strict=True)]
        assert answers == list(range(16))


async def test_a_full_device_halves_the_batches_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, fake_settings: dict[str, str], kind: Kind, tmp_path: Path
) -> None:
    settings = {**fake_settings, "FAKE_DEVICE": "cuda:0", "FAKE_SIZES": str(tmp_path / "sizes")}
    async with running(monkeypatch, settings, kind, max_batch_size="8") as engine:
        warmed_up = len((tmp_path / "sizes").read_text().split())
        first = await held_by(engine)
        full = asyncio.ensure_future(engine.ask(5, failure=Failure.FULL))
        many = asyncio.ensure_future(engine.ask(*range(7)))
        await engine.waiting(8)
        engine.open_gate()
        assert (await first, await full, await many) == ([99], [5], list(range(7)))
        sizes = (tmp_path / "sizes").read_text().split()[warmed_up:]
        assert sizes[:3] == ["1", "8", "4"]
        assert {"2", "4"} <= set(sizes[3:]) <= {"1", "2", "4"}  # an item of another length is alone
        assert engine.memory.out_of_memory[0] == 2
        assert engine.memory.smallest_cap == 2


async def test_signatures_that_wait_together_are_computed_apart(all_kinds: Engine) -> None:
    async with all_kinds.used(KINDS["picture"]) as engine:
        first = await held_by(engine)
        asked = [asyncio.ensure_future(engine.ask(5, 5, place=place)) for place in (2, 1, 0)]
        await engine.waiting(6)
        engine.open_gate()
        await first
        assert await asyncio.gather(*asked) == [[5, 5]] * 3
        assert [engine.executions(place) for place in range(3)] == [{1: 1, 2: 1}, {2: 1}, {2: 1}]

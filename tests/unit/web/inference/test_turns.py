"""Inputs that an overloaded event loop prepares in turns."""

import asyncio
import itertools

import pytest

from smallplates.web.inference.admission import Turns


async def rounds(
    monkeypatch: pytest.MonkeyPatch, tick_s: float, count: int, cancelled: int
) -> list[list[int]]:
    """Returns which of `count` inputs of 10 ms each round of the event loop prepared.

    A round takes `tick_s` seconds. The clients of the first `cancelled` requests have gone.
    """
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) * tick_s)
    turns, order, result = Turns(), list[int](), list[list[int]]()

    async def prepare(index: int) -> None:
        await turns.wait(0.010)
        order.append(index)

    tasks = [asyncio.ensure_future(prepare(index)) for index in range(count)]
    await asyncio.sleep(0)
    for task in tasks[:cancelled]:
        task.cancel()
    while not all(task.done() for task in tasks):
        before = len(order)
        await asyncio.sleep(0)
        result.append(order[before:])
    return [indices for indices in result if indices]


@pytest.mark.parametrize(
    ("tick_s", "expected"),
    [
        (0.001, [16, 16, 8]),  # so many at least
        (0.300, [21, 19]),  # 210 of 300 ms
        (1.000, [40]),
    ],
)
def test_inputs_get_a_share_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tick_s: float, expected: list[int]
) -> None:
    result = asyncio.run(rounds(monkeypatch, tick_s, 40, 0))
    assert [len(indices) for indices in result] == expected
    assert [*itertools.chain(*result)] == [*range(40)]


def test_a_request_without_a_client_has_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(rounds(monkeypatch, 0.001, 4, 2)) == [[2, 3]]

"""`smallplates.worker.layout`: how many workers compute at a time, and with how many threads."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smallplates.models.tensors import Array, Signature, TensorSpec
from smallplates.worker import layout
from smallplates.worker.layout import Layout, choose_layout

TEXT = Signature("text", (TensorSpec("x", "int64", ("n",)),), (), limits={"n": 64}, pads=True)


class Counting:
    """A backend that computes nothing, and notes its batches' sizes and threads."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.threads: list[threading.Thread] = []

    def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
        self.sizes.add(len(inputs[0]))
        self.threads.append(threading.current_thread())
        return []


def refused(_: int) -> Any:
    """Loads nothing where nothing should be measured."""
    raise AssertionError


@pytest.mark.parametrize(
    ("cores", "ms", "expected"),
    [
        (2, {1: 4.0, 2: 2.9}, (1, 2)),
        (2, {1: 4.0, 2: 3.7}, (2, 1)),  # less than a tenth faster
        (2, {1: 0.4}, (2, 1)),  # HTTP takes longer
        (2, {1: None}, (2, 1)),  # loading it will show why
        (2, {1: 4.0, 2: None}, (2, 1)),
        (4, {1: 8.0, 2: 5.0, 4: 4.8}, (2, 2)),
        (4, {1: 8.0, 2: 5.0, 4: 3.0}, (1, 4)),
        (6, {1: 8.0, 2: 9.0}, (6, 1)),  # more threads are not tried
    ],
)
def test_the_fastest_layout_is_chosen_and_more_threads_must_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cores: int,
    ms: dict[int, float | None],
    expected: tuple[int, int],
) -> None:
    def in_a_fork(measure: Callable[[], float]) -> tuple[float | None, str]:
        assert isinstance(measure, partial)
        return ms[measure.args[2].threads], ""

    monkeypatch.setattr(layout, "in_a_fork", in_a_fork)
    chosen = choose_layout(refused, TEXT, cores, 8, tmp_path)
    assert chosen[:2] == expected
    assert f"{cores} x 1" in str(chosen.reason)
    monkeypatch.delattr(layout, "in_a_fork")
    assert choose_layout(refused, TEXT, cores, 8, tmp_path) == chosen  # another instance


def test_nothing_is_measured_on_one_core_or_without_a_folder(tmp_path: Path) -> None:
    assert choose_layout(refused, TEXT, 1, 8, tmp_path) == Layout(1, 1)
    assert choose_layout(refused, TEXT, 4, 8, None) == Layout(4, 1)


def test_all_workers_of_a_layout_compute_batches_that_grow_with_their_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "WINDOW_S", 0.0)
    loaded: list[tuple[int, Counting]] = []

    def load(threads: int) -> Any:
        loaded.append((threads, Counting()))
        return loaded[-1][1]

    assert layout.item_ms(load, TEXT, Layout(2, 3), most=8) > 0
    assert [(threads, backend.sizes) for threads, backend in loaded] == [(3, {1, 3, 8}), (3, {3, 8})]
    assert loaded[0][1].threads[0] is threading.current_thread()  # before any other thread calls
    loaded.clear()
    assert layout.item_ms(load, TEXT, Layout(1, 2), most=1) > 0
    assert loaded[0][1].sizes == {1}

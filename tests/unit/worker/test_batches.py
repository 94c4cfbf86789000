"""Batches of items of varying sizes: how they are divided, padded, computed and cut; their memory."""

import gc
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from structlog.testing import capture_logs

from smallplates.engine.memory import KEPT_BYTES, Memory, SlotLayout, State
from smallplates.errors import ConfigurationError, InvalidTensorError
from smallplates.models.tensors import Array, Item, Signature, TensorSpec, check_outputs
from smallplates.settings import Settings
from smallplates.supervision.worker_process import hang_limit
from smallplates.tasks.image_classification import image_signatures
from smallplates.worker import warmup
from smallplates.worker.device_errors import OutOfDeviceMemoryError, translate_errors
from smallplates.worker.executor import BatchExecutor
from smallplates.worker.queue import WorkQueue
from tests.batches import divided
from tests.reports import reported

TEXT = Signature(
    "text",
    (TensorSpec("ids", "int64", ("n",), padding=-1), TensorSpec("image", "float32", ("h", "w"))),
    (
        TensorSpec("same", "int64", ("n",)),
        TensorSpec("sums", "float32", ("h",)),
        TensorSpec("k", "int8", ("k",)),
    ),
    limits={"n": 100, "h": 50, "w": 50, "k": 4},
    pads=True,
)
FIXED = Signature(
    "fixed",
    (TensorSpec("a", "int32", ()), TensorSpec("b", "bool", (2,))),
    (TensorSpec("both", "int32", ()),),
    batch_size=4,
)


class Echo:
    """A backend that answers with its inputs, and keeps them; -9 among the ids is poison."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Array]] = []
        self.full = False

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> list[Array]:
        self.batches.append([array.copy() for array in inputs])
        if self.full:
            raise OutOfDeviceMemoryError("full")
        if (inputs[0] == -9).any():
            raise ValueError("poison")
        if len(signature.inputs[0].shape) == 0:
            return [inputs[0] + inputs[1].sum(axis=1).astype(np.int32)]
        length = int(inputs[0].max()) % 5  # up to one more than the limit
        return [inputs[0], inputs[1].sum(axis=2), np.full((len(inputs[0]), length), 3, np.int8)]

    def close(self) -> None:
        """Nothing to free."""


class Worker:
    """An executor, its memory and its backend, in this process."""

    def __init__(self, memory: Memory, executor: BatchExecutor, backend: Echo) -> None:
        self.memory, self.executor, self.backend = memory, executor, backend

    def put(self, *items: Item, signature: int = 0) -> list[int]:
        """Writes items into the first slots; returns these."""
        for slot, item in enumerate(items):
            self.memory.write_inputs(slot, signature, item)
        return list(range(len(items)))

    def compute(self, *items: Item, signature: int = 0) -> list[State]:
        """Computes them in the batches into which they are divided; returns their states."""
        slots = self.put(*items, signature=signature)
        for batch in divided(self.executor, slots):
            self.executor.mark(batch)
            self.executor.finish(self.executor.begin(batch))
        return [State(self.memory.state[slot]) for slot in slots]


@contextmanager
def working(*signatures: Signature, element_cap: int = 10**6, gpu: bool = False) -> Iterator[Worker]:
    """A worker of these signatures, for batches of up to eight; on a GPU it runs four sizes."""
    with ExitStack() as held:
        layout = SlotLayout(slots=8, web_processes=1, workers=1, max_batch=8, signatures=signatures)
        memory = Memory.create(layout)
        held.callback(memory.close)
        work, control, done = (os.pipe() for _ in range(3))
        for fd in (*work, *control, *done):
            held.callback(os.close, fd)
        queue = WorkQueue(memory, 0, (work, work), control[0], Settings())
        executor = BatchExecutor(memory, 0, queue, (done[1],))
        executor.backend = backend = Echo()  # type: ignore[assignment]  # all that is called of one
        if gpu:
            executor.buckets = [1, 2, 4, 8]
            executor.device = ThreadPoolExecutor(1)
        memory.max_batch_elements[0] = element_cap
        executor.open(8)
        held.callback(executor.close)
        yield Worker(memory, executor, backend)


def text(n: int, h: int = 1, w: int = 1, first: int = 0) -> Item:
    ids = np.arange(n)
    ids[0] = first
    return [ids, np.full((h, w), n, np.float32)]


def test_a_batch_has_the_oldest_item_and_those_nearest_in_size() -> None:
    with working(TEXT) as worker:
        items = [text(n) for n in (50, 5, 60, 6, 52)]
        assert divided(worker.executor, worker.put(*items)) == [[0, 4, 2], [1, 3]]
        worker.executor.set_cap(2)
        assert divided(worker.executor, worker.put(*items)) == [[0, 4], [1, 3], [2]]
        worker.memory.serving_workers[0] = 3  # which leaves the others their share
        assert divided(worker.executor, worker.put(*items)) == [[0, 4], [1], [2], [3]]


def test_a_value_is_equally_often_in_the_items_of_a_batch() -> None:
    ids, image = TEXT.inputs
    with working(replace(TEXT, inputs=(replace(ids, equal_count=3), image))) as worker:
        slots = worker.put(text(4), text(3), text(5), text(4, first=3), text(2), text(6))
        assert divided(worker.executor, slots) == [[0, 2, 5], [1, 4], [3]]


def test_an_item_whose_worker_has_died_is_computed_alone_and_first() -> None:
    with working(TEXT) as worker:
        slots = worker.put(*(text(5) for _ in range(4)))
        worker.memory.attempts[2] = 1
        assert divided(worker.executor, slots) == [[2], [0, 1, 3]]


def test_signatures_that_wait_together_are_computed_apart() -> None:
    with working(TEXT, FIXED) as worker:
        slots = worker.put(*(text(5) for _ in range(4)))
        for slot in (1, 2):
            worker.memory.write_inputs(slot, 1, [np.array(1, np.int32), np.zeros(2, bool)])
        assert divided(worker.executor, slots) == [[0, 3], [1, 2]]


@pytest.mark.parametrize("is_client_error", [True, False])
def test_the_log_says_whether_a_failure_is_the_clients_fault(is_client_error: bool) -> None:
    with (
        working(replace(FIXED, failure_is_client_error=is_client_error)) as worker,
        capture_logs() as lines,
    ):
        assert worker.compute([np.array(-9, np.int32), np.zeros(2, bool)], signature=0) == [
            State.REFUSED
        ]
    (line,) = lines
    assert line["log_level"] == ("info" if is_client_error else "error")
    assert line.get("reason") == ("poison" if is_client_error else None)


def test_items_are_padded_to_the_largest_and_outputs_cut_back() -> None:
    items = [text(10, 2, 3), text(8, 3, 2), text(9, 1, 3)]
    with working(TEXT) as worker:
        assert worker.compute(*items) == [State.DONE] * 3
        (inputs,) = worker.backend.batches
        assert [array.shape for array in inputs] == [(3, 10), (3, 3, 3)]
        assert {-1} == set(inputs[0][inputs[0] < 0].tolist())
        for slot, (ids, image) in enumerate(items):
            same, sums, few = worker.memory.read_outputs(slot)
            assert np.array_equal(same, ids)
            assert np.array_equal(sums, image.sum(axis=1))
            assert few.tolist() == [3] * 4  # as large as the data of the batch made it
            assert few.dtype == np.int8


def test_what_the_data_make_too_large_fails_alone() -> None:
    with working(replace(TEXT, limits={**TEXT.limits, "k": 3})) as worker:
        assert worker.compute(text(3, first=4), text(3)) == [State.REFUSED, State.DONE]
        assert worker.memory.read_outputs(1)[2].tolist() == [3, 3]
        assert worker.compute(text(1)) == [State.DONE]
        assert worker.memory.read_outputs(0)[2].size == 0


def test_only_equal_sizes_share_a_batch_unless_they_are_padded() -> None:
    items = [text(3, 2, 2), text(5), text(3, 2, 2), text(5, 1, 2), text(5)]
    with working(replace(TEXT, pads=False)) as worker:
        worker.memory.sizes[:] = 1  # what earlier items have left, for the axis that only an output has
        worker.memory.sizes[2] = 2
        slots = worker.put(*items)
        assert sorted(map(sorted, divided(worker.executor, slots))) == [[0, 2], [1, 4], [3]]
    with working(TEXT) as worker:
        (batch, *_) = divided(worker.executor, worker.put(text(3, 2, 2), text(3, 2, 2), text(4)))
        assert sorted(batch) == [0, 1, 2]


def test_a_padded_batch_stays_under_the_cap_of_elements() -> None:
    long_and_wide = [text(1, 50, 1), text(1, 1, 50), text(1, 50, 1)]  # 2500 elements each, if together
    with working(TEXT, element_cap=2600) as worker:
        batches = divided(worker.executor, worker.put(*long_and_wide))
        assert sorted(map(sorted, batches)) == [[0, 2], [1]]
    with working(TEXT, element_cap=100) as worker:
        batches = divided(worker.executor, worker.put(*(text(n) for n in (100, 10, 40, 9, 50, 11))))
        assert batches == [[0], [1, 3, 5], [2, 4]]
    with working(TEXT, element_cap=1) as worker:
        assert divided(worker.executor, worker.put(text(100), text(100))) == [
            [0],
            [1],
        ]  # alone, whatever


@given(
    sizes=st.lists(st.tuples(*(st.integers(1, 50) for _ in range(3))), min_size=1, max_size=8),
    cap=st.integers(1, 10_000),
    pads=st.booleans(),
    batch_size=st.integers(0, 3),
)
@settings(max_examples=60)
def test_no_division_loses_an_item_or_exceeds_a_bound(
    sizes: list[tuple[int, int, int]], cap: int, pads: bool, batch_size: int
) -> None:
    signature = replace(TEXT, pads=pads, batch_size=batch_size)
    with working(signature, element_cap=cap) as worker:
        batches = divided(worker.executor, worker.put(*(text(*fields) for fields in sizes)))
        assert sorted(slot for batch in batches for slot in batch) == list(range(len(sizes)))
        for batch in batches:
            n, h, w = (max(sizes[slot][axis] for slot in batch) for axis in range(3))
            assert len(batch) == 1 or len(batch) * max(n, h * w) <= cap
            assert len(batch) <= (batch_size or len(batch))
            assert pads or len({sizes[slot] for slot in batch}) == 1


@pytest.mark.parametrize("pads", [True, False])
def test_a_gpu_gets_few_sizes_of_what_is_padded_anyway(pads: bool) -> None:
    with working(replace(TEXT, pads=pads), gpu=True) as worker:
        assert set(worker.compute(*(text(20, 1, 40) for _ in range(3)))) == {State.DONE}
        (inputs,) = worker.backend.batches
        sizes = [(4, 32), (4, 16, 50)] if pads else [(4, 20), (4, 1, 40)]  # never beyond a limit
        assert [array.shape for array in inputs] == sizes
        assert np.array_equal(inputs[0][3], inputs[0][0])  # the rows that fill up are copies
        assert np.array_equal(worker.memory.read_outputs(2)[0], np.r_[0, 1:20])


@pytest.mark.parametrize("gpu", [False, True])
def test_a_fixed_batch_size_is_filled_up_with_the_batchs_own_items(gpu: bool) -> None:
    def item(number: int) -> Item:
        return [np.array(number, np.int32), np.array([True, False])]

    with working(FIXED, gpu=gpu) as worker:
        states = worker.compute(*(item(number) for number in (1, 2, -9, 4, 5, 6)))
        assert states == [State.DONE, State.DONE, State.REFUSED, State.DONE, State.DONE, State.DONE]
        assert {len(array) for batch in worker.backend.batches for array in batch} == {4}
        assert [worker.memory.read_outputs(slot)[0].tolist() for slot in (0, 5)] == [2, 7]
        assert worker.memory.batch_size[5] == 2  # what was asked for
        assert worker.compute(item(7)) == [State.DONE]
        assert worker.backend.batches[-1][0].tolist() == [7] * 4  # nothing of others


def test_items_that_do_not_fit_into_memory_together_are_computed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = np.full

    def refuse(shape: tuple[int, ...], *rest: Any) -> Array:
        if shape[0] > 1:
            raise MemoryError
        array: Array = full(shape, *rest)
        return array

    with working(TEXT) as worker:
        items = [text(n) for n in (3, 4, 5)]
        monkeypatch.setattr(np, "full", refuse)
        assert worker.compute(*items) == [State.DONE] * 3


@pytest.mark.parametrize("signature", [FIXED, TEXT])
def test_a_device_that_stays_full_fails_every_item_and_ends(signature: Signature) -> None:
    with working(signature, gpu=True) as worker:
        worker.backend.full = True
        item: Item = text(3) if signature is TEXT else [np.array(1, np.int32), np.zeros(2, bool)]
        assert worker.compute(*[item] * 4) == [State.FAILED] * 4
        assert worker.memory.cap[0] == (1 if signature is TEXT else 2)


class Forgetful:
    """A device that is full for batches of two; `held` is what the last attempt had in its hands."""

    def __init__(self) -> None:
        self.held: weakref.ref[Array] | None = None

    def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
        """Zeros [1, 3]; by then the attempt with two has let go of everything."""
        if len(inputs[0]) == 1:
            assert self.held is not None
            assert self.held() is None
            return [np.zeros((1, 3), np.float32)]
        activations = np.zeros(1, np.float32)
        self.held = weakref.ref(activations)
        with translate_errors():
            raise RuntimeError("CUDA out of memory")

    def close(self) -> None:
        """Nothing to free."""


def test_what_did_not_fit_is_let_go_before_its_parts_are_tried() -> None:
    photo: Item = [np.zeros((2, 2, 3), np.uint8)]
    with working(*image_signatures((2, 2), 3), gpu=True) as worker:
        worker.executor.backend = Forgetful()  # type: ignore[assignment]  # all that is called
        gc.disable()  # what a cycle held would be free by chance only
        try:
            assert worker.compute(photo, photo) == [State.DONE] * 2
        finally:
            gc.enable()
        assert worker.memory.cap[0] == 1


def test_pages_of_large_items_are_given_back() -> None:
    signature = Signature(
        "large",
        (TensorSpec("x", "uint8", ("n",)),),
        (TensorSpec("y", "uint8", ("n",)),),
        limits={"n": 4 * KEPT_BYTES},
    )
    memory = Memory.create(SlotLayout(2, 1, 1, 1, (signature,)))

    def used() -> int:
        return os.fstat(memory.fd).st_blocks * 512

    before = used()
    large = np.ones(4 * KEPT_BYTES - 1, np.uint8)
    for slot in (0, 1):
        memory.write_inputs(slot, 0, [large])
        memory.signatures[0].outputs[0].write(slot, large)
    assert used() >= before + 4 * large.nbytes
    memory.discard(0)
    assert np.array_equal(memory.read_outputs(1)[0], large)  # a neighbour's are kept
    memory.discard(1)
    assert used() <= before + 64 * 1024
    memory.write_inputs(0, 0, [large[:5]])
    assert memory.signatures[0].inputs[0].read(0, {"n": 5}).tolist() == [1] * 5
    memory.close()


SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
LIMITED = replace(TEXT, limits={"n": 4, "h": 3, "w": 5, "k": 1})


@given(
    ids=hnp.arrays(
        st.sampled_from(["int64", "int32", "float64", ">i8", "bool"]), SHAPES, fill=st.just(0)
    ),
    image=hnp.arrays(st.sampled_from(["float32", "float64"]), SHAPES, fill=st.just(0)),
)
@settings(max_examples=400)
def test_hostile_shapes_are_refused_or_fit_into_the_slots(ids: Array, image: Array) -> None:
    try:
        items = LIMITED.items([ids, image])
    except InvalidTensorError:
        return
    assert len(items) == len(ids) == len(image)
    assert (str(ids.dtype), str(image.dtype)) == ("int64", "float32")
    for first, second in items:
        assert 1 <= first.shape[0] <= 4
        assert all(1 <= size <= most for size, most in zip(second.shape, (3, 5), strict=True))


@given(
    length=st.integers(1, 4), height=st.integers(1, 3), width=st.integers(1, 5), count=st.integers(0, 3)
)
@settings(max_examples=30)
def test_what_is_within_the_limits_is_taken(length: int, height: int, width: int, count: int) -> None:
    batch: list[Array] = [
        np.zeros((count, length), np.int64),
        np.zeros((count, height, width), np.float32),
    ]
    assert len(LIMITED.items(batch)) == count


@pytest.mark.parametrize(
    ("ids", "image", "said"),
    [
        ((1, 0), (1, 1, 1), "ids has the size 0 along n; 1 to 4 are accepted"),
        ((1, 5), (1, 1, 1), "ids has the size 5 along n; 1 to 4 are accepted"),
        ((1, 1), (2, 1, 1), "image has a different number of rows"),
        ((), (1, 1, 1), "ids needs a batch dimension"),
        ((1, 1), (), "image has a different number of rows"),
        ((1, 1, 1), (1, 1, 1), "must have the shape"),
    ],
)
def test_what_is_wrong_with_a_shape_is_said(
    ids: tuple[int, ...], image: tuple[int, ...], said: str
) -> None:
    with pytest.raises(InvalidTensorError) as caught:
        LIMITED.items([np.zeros(ids, np.int64), np.zeros(image, np.float32)])
    assert said in caught.value.detail


def test_inputs_that_share_an_axis_agree_on_its_size() -> None:
    zeros = partial(np.zeros, dtype=np.int8)
    pair = Signature(
        "pair", (TensorSpec("a", "int8", ("n",)), TensorSpec("b", "int8", ("n", 2))), (), limits={"n": 9}
    )
    assert len(pair.items([zeros((2, 3)), zeros((2, 3, 2))])) == 2
    with pytest.raises(InvalidTensorError, match="shape"):
        pair.items([zeros((2, 3)), zeros((2, 4, 2))])


def test_outputs_of_another_shape_or_type_are_refused() -> None:
    sizes = {"n": 2, "h": 3, "w": 4}
    right: list[Array] = [
        np.zeros((1, 2), np.int64),
        np.zeros((1, 3), np.float32),
        np.zeros((1, 4), np.int8),
    ]
    check_outputs(TEXT, right, 1, sizes)
    wrong = [
        right[:2],
        [right[0][:, :1], *right[1:]],
        [right[0].astype(np.int32), *right[1:]],
        [*right[:2], np.zeros((1, 5), np.int8)],
        [*right[:2], np.zeros((1, 4, 1), np.int8)],
        [*right[:2], np.zeros((4,), np.int8)],
    ]
    for outputs in wrong:
        with pytest.raises(ValueError, match="the model returned"):
            check_outputs(TEXT, outputs, 1, sizes)


class Choosy(Echo):
    """Takes only multiples of 64."""

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> list[Array]:
        if inputs[0].shape[1] % 64:
            raise ValueError("not a multiple of 64")
        return super().infer(signature, inputs)


LINE = Signature(
    "line",
    (TensorSpec("x", "int64", ("n",)), TensorSpec("y", "float32", (1, 1))),
    (
        TensorSpec("same", "int64", ("n",)),
        TensorSpec("sum", "float32", (1,)),
        TensorSpec("k", "int8", (0,)),
    ),
    limits={"n": 200},
)


def test_warm_up_measures_the_lengths_that_a_network_takes() -> None:
    chosen = Settings(max_batch_size=4)
    for backend, most in ((Echo(), 200), (Choosy(), 64)):
        profile = warmup.warm_up(backend, [LINE], [1, 2, 4], chosen)  # type: ignore[arg-type]
        assert (profile.batch_cap, len(profile.max_batch_elements)) == (4, 1)
        assert most == max(batch[0].shape[1] for batch in backend.batches[:-1])
        assert backend.batches[-1][0].shape == ((1, 200) if most == 200 else (4, 64))
    short = replace(LINE, limits={"n": 63})
    with pytest.raises(ConfigurationError, match="not a multiple"):
        warmup.warm_up(Choosy(), [short], [1, 2, 4], chosen)  # type: ignore[arg-type]


def test_a_worker_has_time_for_the_largest_item() -> None:
    report = reported(batch_ms={1: 10.0}, largest_ms=1000.0)
    assert hang_limit(Settings(), report) == 20 * 1
    assert warmup.largest_ms(Echo(), LINE) > 0  # type: ignore[arg-type]


def test_warm_up_runs_only_the_size_that_a_network_computes() -> None:
    backend = Echo()
    fixed = replace(LINE, batch_size=1)
    profile = warmup.warm_up(backend, [FIXED, fixed], [1, 2, 4, 8], Settings())  # type: ignore[arg-type]
    assert list(profile.batch_ms) == [4]
    assert (profile.batch_cap, profile.max_batch_elements[0]) == (4, 4)
    assert {len(batch[0]) for batch in backend.batches} == {4, 1}


class Timed(Echo):
    """Takes a set time for a call and for each element, of a clock that stands still meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_ms: float, item_ms: float) -> None:
        super().__init__()
        self.now = 0.0
        self._ms = call_ms, item_ms
        monkeypatch.setattr(warmup, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> list[Array]:
        call, item = self._ms
        self.now += (call + item * inputs[0].size) / 1000
        return super().infer(signature, inputs)


@pytest.mark.parametrize(
    ("call_ms", "item_ms", "largest", "cap"),
    [(1.0, 0.01, 64, 64), (0.1, 0.1, 32, 16), (0.001, 1.0, 8, 1), (12.0, 0.01, 8, 8)],
    ids=["all gain", "until it gains less than a twentieth", "nothing gains", "calls are slow"],
)
def test_batches_are_doubled_while_that_gains(
    monkeypatch: pytest.MonkeyPatch, call_ms: float, item_ms: float, largest: int, cap: int
) -> None:
    flexible = replace(FIXED, batch_size=0)
    backend: Any = Timed(monkeypatch, call_ms, item_ms)
    profile = warmup.warm_up(backend, [flexible], [1, 2, 4, 8], Settings(), largest_size=64)
    assert (max(profile.batch_ms), profile.batch_cap) == (largest, cap)
    declared: Any = Timed(monkeypatch, call_ms, item_ms)
    assert max(warmup.warm_up(declared, [flexible], [1, 2], Settings()).batch_ms) == 2


@pytest.mark.parametrize(
    ("call_ms", "item_ms", "elements"),
    [(0.2, 0.01, 400), (0.0, 1.0, 64), (0.0, 10.0, 16)],
    ids=["2 of 200 elements are nearly best", "200 take too long", "even 16 take long"],
)
def test_a_batch_has_as_many_elements_as_are_nearly_best_and_quick(
    monkeypatch: pytest.MonkeyPatch, call_ms: float, item_ms: float, elements: int
) -> None:
    backend: Any = Timed(monkeypatch, call_ms, item_ms)
    profile = warmup.warm_up(backend, [LINE], [1, 2, 4, 8], Settings())
    assert profile.max_batch_elements == [elements]

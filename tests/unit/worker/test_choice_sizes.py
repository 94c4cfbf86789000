"""The choice compares at several sizes and from call to call; candidates may end their process."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastapi_onnx.backend import OnnxBackend
from smallplates.engine.backend import Trial
from smallplates.models.comparison import Compare, independent, probabilities, relative
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature, TensorSpec
from smallplates.settings import ROOT, Settings
from smallplates.worker import choice, precision_check
from smallplates.worker.choice import MAX_ITEM_EXCESS, Candidate, choose, measure
from smallplates.worker.precision_check import NARROW, Infer, Samples, random_inputs

pytestmark = pytest.mark.usefixtures("any_speed")
OPEN = Signature(
    "open",
    (TensorSpec("x", "float32", (3, "height", "width")),),
    (TensorSpec("y", "float32", (2,)),),
    {"height": 128, "width": 40},
)
REFERENCE, GOOD = Candidate("a", "fp32"), Candidate("good", "fp32", max_difference=0.001)
Change = Callable[[Array, Array], Array]
"""Makes other outputs [N, 2] of a batch's inputs and outputs."""


def computing(change: Change | None = None) -> Infer:
    def infer(inputs: Sequence[Array]) -> list[Array]:
        (batch,) = inputs
        means = batch.mean((1, 2, 3))
        logits = np.stack([means + 1, -means], axis=1)
        return [change(batch, logits) if change else logits]

    return infer


def samples(signature: Signature = OPEN, compare: Compare = relative) -> Samples:
    """Returns eight random inputs of the usual size."""
    make = partial(random_inputs, signature, signature.batch_size or 8, 16)
    return Samples(make, compare, signature)


def compare_with(candidate: Candidate, other: Infer, reference: Infer | None = None) -> Trial:
    networks = {REFERENCE: reference or computing(), candidate: other}
    kind = probabilities if candidate.precision == "int8" else relative
    _, trial = measure(list(networks), networks.__getitem__, lambda: samples(compare=kind))
    return trial


def at(height: int, width: int, change: Change) -> Change:
    def changed(batch: Array, logits: Array) -> Array:
        return change(batch, logits) if batch.shape[2:] == (height, width) else logits

    return changed


def further_sizes(signature: Signature) -> list[tuple[int, ...]]:
    """Returns the sizes of the first input's varying axes in `further`, after the usual ones."""
    batches = list(samples(signature).further())[2 + len(precision_check.SCALES) :]
    return [batch[0].shape[2:] for _, batch in batches]


def test_every_open_axis_is_small_and_large_and_narrow_beside_a_long_one() -> None:
    sizes = further_sizes(OPEN)
    assert {(size, size) for size in (*NARROW, 16, 32)} < set(sizes)
    assert {(128, size) for size in NARROW} < set(sizes)
    assert {(size, 40) for size in NARROW} < set(sizes)
    assert sizes[0] == (1, 1)
    assert sizes[-1] == (128, 40)
    assert max(size for size, _ in samples().further()) == 128


def test_one_open_axis_has_all_its_sizes_once_and_fixed_sizes_none() -> None:
    texts = Signature("text", (TensorSpec("x", "float32", (1, "n")),), (), {"n": 50})
    assert [width for (width,) in further_sizes(texts)] == [1, 2, 3, 7, 16, 32, 50]
    image = Signature("image", (TensorSpec("x", "float32", (3, 8, 8)),), ())
    batches = [batch[0].shape for _, batch in samples(image).further()]
    assert batches == [(1, 3, 8, 8), (4, 3, 8, 8), *[(1, 3, 8, 8)] * len(precision_check.SCALES)]
    pairs = Signature("pairs", image.inputs, (), batch_size=2)
    assert {batch[0].shape for _, batch in samples(pairs).further()} == {(2, 3, 8, 8)}


def test_texts_are_compared_up_to_their_most_tokens() -> None:
    model = Model.read(ROOT / "models" / "sentiment")
    signature = OnnxBackend().signature(model)
    made = precision_check.samples(model, signature)
    assert model.description.text_pipeline.max_tokens == 256
    assert [size for size, _ in made.further()][2:] == [1, 2, 3, 7, 16, 32, 64, 256]
    assert {array.shape for array in made.inputs} == {(8, 32)}


@pytest.mark.parametrize(("name", "field"), [("sentiment", "text"), ("food11", "image")])
def test_classes_of_a_sigmoid_are_compared_one_by_one(name: str, field: str) -> None:
    model = Model.read(ROOT / "models" / name)
    assert precision_check.comparison_for(model) is probabilities
    changed = getattr(model.description, field).model_copy(update={"activation": "sigmoid"})
    model.description = model.description.model_copy(update={field: changed})
    assert precision_check.comparison_for(model) is independent


def test_what_needs_too_much_memory_is_not_made_up() -> None:
    cube = Signature(
        "cube", (TensorSpec("x", "float32", ("a", "b", "c")),), (), dict.fromkeys("abc", 4096)
    )
    assert max(size for size, _ in samples(cube).further()) == 256
    assert cube.example_lengths == (16, 64, 256)
    sound = Signature("sound", (TensorSpec("x", "float32", ("a",)),), (), {"a": 48000})
    assert sound.example_lengths == (16, 64, 256, 48000)
    assert replace(sound, limits={"a": 20}).example_lengths == (16, 20)


def jittered(_: Array, logits: Array) -> Array:
    """Changes every call's outputs by about a millionth."""
    noise: Array = np.random.default_rng().normal(scale=1e-6, size=logits.shape).astype(np.float32)
    return logits + noise


def refused(batch: Array, _: Array) -> Array:
    """Fails as a library does whose kernel is missing."""
    raise RuntimeError(f"no kernel for {batch.shape}")


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (at(1, 1, lambda _, logits: logits * 1.2), ["differs by 0.2", "[1, 3, 1, 1]"]),
        (at(128, 1, lambda _, logits: logits * 1.2), ["differs by 0.2", "[1, 3, 128, 1]", "0.001"]),
        (at(2, 40, lambda _, logits: logits * 1.2), ["differs by 0.2", "[1, 3, 2, 40]"]),
        (at(7, 7, lambda _, logits: logits * np.float32(1e36)), ["differs by ", "[1, 3, 7, 7]"]),
        (at(16, 3, lambda _, logits: logits / 0), ["differs by inf", "[1, 3, 16, 3]"]),
        (at(3, 3, jittered), ["[1, 3, 3, 3]", "differ from call to call"]),
        (at(16, 16, jittered), ["[1, 3, 16, 16]", "differ from call to call"]),
        (at(128, 40, refused), ["it cannot be used", "no kernel for (1, 3, 128, 40)"]),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_candidate_that_is_wrong_at_a_single_size_is_not_chosen(
    change: Change, reasons: list[str]
) -> None:
    trial = compare_with(GOOD, computing(change))
    assert not trial.chosen
    for reason in reasons:
        assert reason in trial.reason


@pytest.mark.parametrize("scale", precision_check.SCALES)
def test_a_candidate_that_makes_numbers_of_nan_is_not_chosen(scale: int) -> None:
    """As in OpenVINO's ReLU: the reference computes NaN of zeros, or of large numbers."""

    def broken(batch: Array, logits: Array) -> Array:
        usual = samples().inputs[0][:1]
        return logits * np.nan if np.array_equal(batch, usual * np.float32(scale)) else logits

    trial = compare_with(GOOD, computing(), computing(broken))
    assert not trial.chosen
    assert "differs by inf" in trial.reason


def test_a_candidate_that_leaves_its_output_as_it_was_is_not_chosen() -> None:
    """As OpenVINO's Resize does whose first axis was another before."""
    last: list[Array] = []

    def stale(batch: Array, logits: Array) -> Array:
        if min(batch.shape[2:]) <= 16:
            last[:] = [logits]
        return last[0]

    def first(batch: Array, _: Array) -> Array:
        numbers: Array = batch.reshape(len(batch), -1)[:, :2]
        return np.pad(numbers, [(0, 0), (0, 2 - numbers.shape[1])])

    candidate = computing(lambda batch, logits: stale(batch, first(batch, logits)))
    assert not compare_with(GOOD, candidate, computing(first)).chosen


def test_a_batch_of_several_is_compared() -> None:
    def together(batch: Array, logits: Array) -> Array:
        return logits * (1.2 if len(batch) > 1 else 1)

    assert "differs by 0.2" in compare_with(GOOD, computing(together)).reason


def test_a_good_candidate_is_chosen_and_the_largest_compared_size_is_kept() -> None:
    trial = compare_with(GOOD, computing())
    assert (trial.chosen, trial.largest_size) == (True, 128)


def test_a_size_that_the_reference_refuses_is_left_out_unless_the_candidate_answers() -> None:
    """It may answer what lies behind a tensor in memory; larger sizes are left to the reference."""

    def picky(batch: Array, logits: Array) -> Array:
        return refused(batch, logits) if batch.shape[2:] in ((7, 7), (128, 40)) else logits

    trial = compare_with(GOOD, computing(at(7, 7, refused)), computing(picky))
    assert (trial.chosen, trial.largest_size) == (True, 64)

    def of_another_shape(*_: Array) -> Array:
        raise ValueError("the model returned y of the last call")

    for other in (computing(), computing(at(7, 7, of_another_shape))):
        trial = compare_with(GOOD, other, computing(picky))
        assert not trial.chosen
        assert "[1, 3, 7, 7]" in trial.reason


def test_sizes_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(choice, "MAX_FURTHER_ITEMS", 0)
    needed = sum(batch[0].size for _, batch in samples().further())

    def slow(batch: Array, logits: Array) -> Array:
        clock.now += batch.size
        return logits

    wrong = computing(at(128, 40, lambda _, logits: logits * 2))
    monkeypatch.setattr(choice, "MAX_FURTHER_S", needed - 1)
    trial = compare_with(GOOD, wrong, computing(slow))
    assert (trial.chosen, trial.largest_size) == (True, 64)
    monkeypatch.setattr(choice, "MAX_FURTHER_S", needed + 1)
    assert "[1, 3, 128, 40]" in compare_with(GOOD, wrong, computing(slow)).reason


def test_int8_may_differ_more_in_a_single_item_but_not_at_random() -> None:
    int8 = Candidate("b", "int8", max_difference=0.01)

    def shifted(by: float) -> Infer:
        return computing(at(7, 7, lambda _, logits: logits + np.array([by, 0], np.float32)))

    assert compare_with(int8, shifted(0.2)).chosen
    trial = compare_with(int8, shifted(1.0))
    assert not trial.chosen
    assert f"at most {0.01 + MAX_ITEM_EXCESS:.3f} is accepted" in trial.reason
    assert "differ from call to call" in compare_with(int8, computing(at(7, 7, jittered))).reason


def test_a_tie_at_a_further_size_may_have_another_most_probable_class() -> None:
    def tie(by: float) -> Change:
        return at(7, 7, lambda _, logits: np.zeros_like(logits) + np.array([by, 0], np.float32))

    networks = {REFERENCE: computing(tie(0)), GOOD: computing(tie(-0.002))}
    for limit, is_chosen in ((0.02, True), (0.0001, False)):
        candidate = Candidate("b", "bf16", max_difference=limit)
        networks[candidate] = networks[GOOD]
        network = networks.__getitem__
        trials = measure([REFERENCE, candidate], network, lambda: samples(compare=probabilities))
        assert trials[1].chosen == is_chosen


def kills(kind: str) -> Change:
    def change(_: Array, logits: Array) -> Array:
        if kind == "exit":
            os._exit(7)
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without pytest's report
        os.kill(os.getpid(), signal.SIGSEGV)
        return logits

    return change


@pytest.mark.parametrize(("kind", "code"), [("exit", "7"), ("fault", "-11")])
@pytest.mark.parametrize("is_refused", [False, True], ids=["", "where the reference refuses"])
def test_a_candidate_that_ends_its_process_is_named_and_the_others_are_tried(
    tmp_path: Path, kind: str, code: str, is_refused: bool
) -> None:
    deadly = Candidate("deadly", "fp32", max_difference=0.001)
    networks = {
        REFERENCE: computing(at(3, 3, refused) if is_refused else None),
        deadly: computing(at(3, 3, kills(kind))),
        GOOD: computing(at(3, 3, refused) if is_refused else None),
    }
    taken = choose(list(networks), Settings(), tmp_path, networks.__getitem__, samples)
    reference, dead, good = taken.trials
    assert (taken.runtime, taken.largest_size, good.chosen) == ("good", 128, True)
    assert not reference.chosen
    assert dead.reason == (
        f"it cannot be used: its process ended with code {code}; a negative one is a signal"
    )


def test_a_candidate_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, in_a_fork = iter([180, 0.5, 180]), choice.in_a_fork  # in seconds; the second one hangs

    def limited(compute: Callable[[], Any]) -> tuple[Any, str]:
        monkeypatch.setattr(choice, "MAX_PROCESS_S", next(limits))
        return in_a_fork(compute)

    monkeypatch.setattr(choice, "in_a_fork", limited)
    endless = Candidate("endless", "fp32", max_difference=0.001)

    def hang(_: Array, logits: Array) -> Array:
        signal.pause()
        return logits

    networks = {REFERENCE: computing(), endless: computing(at(1, 1, hang)), GOOD: computing()}
    taken = choose(list(networks), Settings(), tmp_path, networks.__getitem__, samples)
    assert taken.runtime == "good"
    assert taken.trials[1].reason == "it cannot be used: it takes too long"


def fails_silently(_: Array, __: Array) -> Array:
    raise AssertionError


@pytest.mark.parametrize("change", [refused, fails_silently, kills("fault")])
def test_a_reference_that_fails_is_left_to_load(tmp_path: Path, change: Change) -> None:
    networks = {REFERENCE: computing(change), GOOD: computing()}
    taken = choose(list(networks), Settings(), tmp_path, networks.__getitem__, samples)
    assert (taken.runtime, taken.largest_size) == ("a", None)
    assert [trial.chosen for trial in taken.trials] == [True, False]
    for trial in taken.trials:
        assert trial.reason.startswith("not tried: fp32 in a cannot be measured: ")
        assert trial.reason in taken.reason

"""`smallplates.worker.warmup`: what is measured, which batch size is chosen, which models are
refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smallplates.errors import ConfigurationError
from smallplates.models.tensors import Array, Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.worker import warmup
from tests.unit.engine.conftest import IMAGES


@pytest.mark.parametrize(
    ("profile", "cap"),
    [
        ({1: 5.0, 2: 10.0, 4: 20.0}, 1),
        ({1: 5.0, 2: 9.6, 4: 19.2}, 1),  # 4 % more throughput is not worth it
        ({1: 5.0, 2: 9.0, 4: 18.0}, 2),
        ({1: 4.4, 2: 7.5, 4: 13.6, 8: 25.0}, 8),
        ({1: 2.0, 8: 2.5, 64: 4.0}, 64),
    ],
)
def test_the_cap_is_the_smallest_size_that_is_nearly_best(profile: dict[int, float], cap: int) -> None:
    assert warmup.choose_cap(Settings(), profile) == cap
    assert warmup.choose_cap(Settings(max_batch_size=3), profile) == 3


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([4.4, 3.8, 3.4, 3.1], True),
        ([4.4, 4.5, 5.1, 5.5], True),
        ([4.4, 3.8, 3.9, 3.8], True),  # within what a repetition differs by
        ([4.9, 5.95, 5.2, 4.86], False),
        ([4.4, 3.1, 3.8, 3.3], False),
        ([4.4], True),
    ],
)
def test_a_disturbed_profile_is_known_by_its_shape(seconds: list[float], expected: bool) -> None:
    assert warmup.is_smooth(seconds) is expected


def test_what_disturbs_warm_up_for_a_while_does_not_choose_the_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Disturbed:
        calls = 0
        now = 0.0

        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            (batch,) = inputs
            self.calls += len(batch) == 2
            self.now += 0.08 if len(batch) == 2 and self.calls <= warmup.MIN_ROUNDS else 0.002
            return [np.zeros((len(batch), 11), np.float32)]

    network = Disturbed()
    monkeypatch.setattr("smallplates.worker.warmup.time.perf_counter", lambda: network.now)
    profile = warmup.measure(network, IMAGES, [1, 2, 4])  # type: ignore[arg-type]
    assert profile[2] < 80
    assert warmup.choose_cap(Settings(), profile) == 4


def test_measuring_needs_outputs_of_the_right_shape() -> None:
    wrong: Any = SimpleNamespace(infer=lambda _, inputs: [np.zeros((len(inputs[0]), 3), np.float32)])
    with pytest.raises(ConfigurationError, match=r"\[1, 3\], not .* \[1, 11\]: there are 11 labels"):
        warmup.measure(wrong, IMAGES, [1])


@pytest.mark.parametrize(
    ("most", "words"), [(1, "SERVING_MAX_BATCH_SIZE=1"), (0, "cannot compute an input"), (4, "finite")]
)
def test_warm_up_says_what_a_model_cannot(most: int, words: str) -> None:
    class Limited:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            (batch,) = inputs
            if len(batch) > most:
                raise RuntimeError("a reason\nof many\nlines")
            return [np.full((len(batch), 11), 1.0 if most == 1 else np.nan, np.float32)]

    with pytest.raises(ConfigurationError, match=words) as caught:
        warmup.measure(Limited(), IMAGES, [1, 2])  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_slow_batches_are_measured_seldom_and_the_slowest_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    ran: list[int] = []

    class Slow:
        """0.1 s an item, and half a second more the first time, on a clock that only it moves."""

        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            nonlocal now
            now += 0.1 * len(inputs[0]) + 0.5 * (not ran)
            ran.append(len(inputs[0]))
            return [np.zeros((len(inputs[0]), 2), np.float32)]

    monkeypatch.setattr("smallplates.worker.warmup.time.perf_counter", lambda: now)
    text = Signature(
        "text",
        (TensorSpec("ids", "int64", ("tokens",)),),
        (TensorSpec("logits", "float32", (2,)),),
        limits={"tokens": 512},
        pads=True,
    )
    profile = warmup.measure(Slow(), text, [1, 2, 4, 8, 16], 64)  # type: ignore[arg-type]
    assert profile == {1: 100.0, 2: 200.0}
    assert ran == [1, 1, 2, 4, 1, 2]


@pytest.mark.parametrize(("largest_size", "longest"), [(64, {1}), (0, {1, 2, 4})])
def test_batches_of_long_texts_are_not_measured_where_those_of_short_ones_have_shown_no_gain(
    monkeypatch: pytest.MonkeyPatch, largest_size: int, longest: set[int]
) -> None:
    now, ran = 0.0, set()

    class Even:
        """A millisecond for 16 tokens, whatever the batch, on a clock that only it moves."""

        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            nonlocal now
            count, tokens = inputs[0].shape
            now += 0.001 * count * tokens / 16
            ran.add((count, tokens))
            return [np.zeros((count, 2), np.float32)]

    monkeypatch.setattr("smallplates.worker.warmup.time.perf_counter", lambda: now)
    inputs = (TensorSpec("ids", "int64", ("tokens",)),)
    outputs = (TensorSpec("logits", "float32", (2,)),)
    text = Signature("tokens", inputs, outputs, limits={"tokens": 512}, pads=True)
    own = Signature("tensor", inputs, outputs, limits={"tokens": 512})
    profile = warmup.warm_up(Even(), [text, own], [1, 2, 4], Settings(), largest_size)  # type: ignore[arg-type]
    assert {count for count, tokens in ran if tokens == 256} == longest
    assert {count for count, tokens in ran if tokens == 16} >= {1, 2, 4}
    assert (profile.batch_cap, profile.max_batch_elements) == (1, [256, 256])
    assert profile.largest_ms == 32.0


@pytest.mark.parametrize(
    ("needed", "is_float", "used", "lengths"),
    [
        (0, False, {0}, 0),
        (1, False, {0, 1}, 1),
        (2, False, {0, 1, 2}, 2),
        (1, True, {0, 1, 2}, 3),  # integers have been tried alone
        (2, True, {0, 1, 2}, 4),
        (3, False, {0, 1, 2}, 5),
    ],
)
def test_a_graph_that_refuses_zeros_is_warmed_up_with_other_numbers(
    needed: int, is_float: bool, used: set[int], lengths: int
) -> None:
    """As that of a text, which needs a mask of ones, or an encoder of categories from 1 on."""
    seen, refused = set(), []

    class Ending:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            ids, numbers = inputs
            seen.update(ids.ravel().tolist())
            assert is_float or needed == 3 or not numbers.any()
            if needed not in (numbers if is_float else ids):
                refused.append(len(seen))
                raise ValueError("no end")
            return [ids]

    inputs = (TensorSpec("ids", "int64", ("n",)), TensorSpec("x", "float32", (2,)))
    outputs = (TensorSpec("same", "int64", ("n",)),)
    graph = Signature("tensor", inputs, outputs, {"n": 300}, failure_is_client_error=True)
    backend: Any = Ending()
    for call in (
        lambda: warmup.try_out(backend, [graph]),
        lambda: warmup.warm_up(backend, [graph], [1, 2], Settings()),
    ):
        if needed > 2:
            with pytest.raises(ConfigurationError, match=r"no end; .* tried 0, 1 and 2 as all numbers"):
                call()
        else:
            call()
        assert len(refused) == 4 * lengths
        refused.clear()
    assert seen == used


@pytest.mark.parametrize("length", [5, 64, 300, 5000])
def test_a_graph_of_one_length_is_warmed_up_with_its_limit(length: int) -> None:
    class Traced:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            return [inputs[0].reshape(-1, length)]

    varying = TensorSpec("x", "float32", ("time",))
    graph = Signature("tensor", (varying,), (varying,), {"time": length}, failure_is_client_error=True)
    backend: Any = Traced()
    warmup.try_out(backend, [graph])
    profile = warmup.warm_up(backend, [graph], [1, 2], Settings())
    assert profile.batch_cap in (1, 2)
    assert profile.max_batch_elements[0] in (length, 2 * length)


@pytest.mark.parametrize("depends", [True, False])
def test_images_that_change_each_others_results_are_computed_alone(depends: bool) -> None:
    class Normalised:
        def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
            batch = inputs[0].mean(axis=tuple(range(1, inputs[0].ndim)))[:, None] * np.arange(11)
            return [(batch - depends * batch.mean(axis=0)).astype(np.float32)]

    backend: Any = Normalised()
    profile = warmup.warm_up(backend, [IMAGES], [1, 2, 4], Settings(max_batch_size=4))
    assert profile.batch_cap == (1 if depends else 4)


@pytest.mark.parametrize(("is_graph", "words"), [(True, "set limits in model.json"), (False, "axes$")])
def test_the_refusal_of_a_graph_traced_at_one_size_says_what_to_do(is_graph: bool, words: str) -> None:
    backend: Any = SimpleNamespace(infer=lambda _, inputs: [inputs[0].reshape(-1, 10)])
    varying = TensorSpec("x", "float32", ("time",))
    traced = Signature(
        "traced", (varying,), (varying,), limits={"time": 512}, checks_finite=not is_graph
    )
    with pytest.raises(ConfigurationError, match=rf"an input: .*; it had time = 16: if .*{words}"):
        warmup.try_out(backend, [traced])
    warmup.try_out(backend, [replace(traced, limits={"time": 10})])

"""`smallplates.models.comparison`: how far outputs are from the expected ones."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from smallplates.models.comparison import (
    Compare,
    Difference,
    difference,
    directions,
    independent,
    probabilities,
    relative,
)
from smallplates.models.tensors import Array

LOGITS = np.array([[0, 0], [-4, 2]], np.float32)
NO_NUMBERS = np.zeros((2, 0), np.float32)


@pytest.mark.parametrize(
    ("compare", "outputs", "small"),
    [(relative, (LOGITS, NO_NUMBERS), (0.1, 0.025)), (probabilities, (LOGITS,), (0.0008, 0.0004))],
)
def test_outputs_differ(compare: Compare, outputs: Sequence[Array], small: tuple[float, float]) -> None:
    assert difference(outputs, outputs, compare)[:2] == (0, 0)
    other = [LOGITS + np.array([[0, 0], [0, 0.4]], np.float32), *outputs[1:]]
    assert difference(outputs, other, compare)[:2] == pytest.approx(small, abs=1e-4)
    for changed in (LOGITS.astype(float), LOGITS[:1], np.full_like(LOGITS, np.nan)):
        gap = difference(outputs, [changed, *outputs[1:]], compare)
        assert (gap.worst, gap.mean >= 1) == (math.inf, True)


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
def test_a_label_that_differs_is_no_small_difference(kind: str) -> None:
    """Of 2,000 labels, 1,999 and 2,000 differ by less than a thousandth of the largest number."""
    labels = np.arange(2000).astype(kind)
    other = labels.copy()
    other[-1] += np.array(1, kind)
    assert relative(labels, labels)[:2] == (0, 0)
    assert relative(labels, other if kind != "bool" else ~labels) == Difference(math.inf, math.inf)


def test_a_single_class_is_compared_by_its_sigmoid() -> None:
    gap = probabilities(np.array([[0], [9]], np.float32), np.array([[math.log(3)], [9]], np.float32))
    assert gap[:2] == pytest.approx((0.25, 0.125), abs=1e-6)


def test_vectors_are_compared_by_their_directions() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    assert difference([vectors], [3 * vectors], directions).worst < 1e-6
    other = vectors.copy()
    other[0] = -other[0]
    assert difference([vectors], [other], directions)[:2] == pytest.approx((2, 0.5))
    cosine = 0.9998
    turned = [[1, 0]], [[cosine, math.sqrt(1 - cosine**2)]]
    gap = directions(*(np.array(each, np.float32) for each in turned))
    assert gap.worst == pytest.approx(math.sqrt(2 - 2 * cosine), abs=1e-5)
    assert directions(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)).worst == 0
    for wrong in (math.nan, math.inf):
        assert directions(vectors, np.full_like(vectors, wrong)).worst == math.inf


def test_every_sample_has_the_margin_of_its_best_class_and_whether_that_changed() -> None:
    expected = np.array([[0.001, 0, -9], [math.log(3), 0, -99]], np.float32)
    found = expected[[0, 1]]
    found[0, :2] = 0, 0.001
    gap = difference([expected, expected[None]], [found, expected[None]], probabilities)
    assert gap.margins == pytest.approx([0.0005, 0.5] * 2, abs=1e-4)
    assert gap.changed.tolist() == [True, False, False, False]
    vectors = np.ones((3, 4), np.float32)
    for compare in (directions, relative):
        gap = compare(vectors, vectors)
        assert (gap.margins.tolist(), gap.changed.tolist()) == ([math.inf] * 3, [False] * 3)


def test_infinities_must_be_in_the_same_places() -> None:
    expected = np.array([[1, np.inf]], np.float32)
    assert relative(expected, expected)[:2] == (0, 0)
    for other in (2, -np.inf, np.nan):
        assert relative(expected, np.array([[1, other]], np.float32)).worst == math.inf
    missing = np.array([[1, np.nan]], np.float32)
    assert relative(missing, missing)[:2] == (0, 0)


@pytest.mark.parametrize("compare", [probabilities, independent, directions, relative])
def test_numbers_do_not_agree_with_nan(compare: Compare) -> None:
    broken = np.full_like(LOGITS, np.nan)
    for pair in ((broken, LOGITS), (LOGITS, broken)):
        assert compare(*pair).worst == math.inf


def test_classes_that_do_not_exclude_each_other_are_compared_one_by_one() -> None:
    expected, found = (np.array([[12, each, -9]], np.float32) for each in (0, math.log(3)))
    assert probabilities(expected, found).worst < 0.001
    gap = independent(expected, found)
    assert gap[:2] == pytest.approx((0.25, 0.25 / 3), abs=1e-6)
    assert gap.margins == pytest.approx([0.5], abs=1e-4)
    assert not gap.changed.any()
    assert independent(expected, expected[:, ::-1]).changed.all()
    assert independent(expected[:, :1], found[:, :1]).margins == pytest.approx([1], abs=1e-4)

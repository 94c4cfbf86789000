"""`smallplates.worker.independence`: which made-up texts share a batch, and how long they may be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastapi_onnx.backend import OnnxBackend
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature, TensorSpec, examples
from smallplates.worker.independence import EQUAL_LENGTHS, LONGEST, ONE_BY_ONE, with_checked_texts
from tests import exports

AXIS = "sequence_length"
WEIGHTS = np.random.default_rng(1).normal(size=(1000, 3))
"""Of tokens, for three labels."""

Numbers = NDArray[np.float64]
Network = Callable[[Numbers, Numbers], Numbers]
"""Logits of embedded tokens [N, tokens, 3] and their mask [N, tokens, 1]."""


def mean(embedded: Numbers, mask: Numbers) -> Numbers:
    return np.asarray((embedded * mask).sum(1) / mask.sum(1))


def last_place(embedded: Numbers, mask: Numbers) -> Numbers:
    """As a causal network does that was traced without a padding token."""
    return np.asarray(mean(embedded, mask) + embedded[:, -1])


def centred(embedded: Numbers, mask: Numbers) -> Numbers:
    logits = mean(embedded, mask)
    return np.asarray(logits - logits.mean(0))


def centred_if_many(embedded: Numbers, mask: Numbers) -> Numbers:
    """Depends on the other texts of a large batch."""
    return centred(embedded, mask) if len(mask) > 6 else mean(embedded, mask)


def one_text(embedded: Numbers, mask: Numbers) -> Numbers:
    """Refuses batches, as transformers does without a padding token."""
    if len(mask) > 1:
        raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")
    return mean(embedded, mask)


def of_tokens(embedded: Numbers, mask: Numbers) -> Numbers:
    """A number for each token; that of padding depends on the batch, or is NaN."""
    return np.asarray(np.where(mask, embedded, len(mask) / np.where(mask, 1, 0))[..., 0])


def without_mask(embedded: Numbers, mask: Numbers) -> Numbers:
    """Counts padding as if it were text."""
    return np.asarray(embedded.mean(1) * mask.max())


def checked(
    folder: Path, network: Network, most: int = 10**6, tokens: int = 64, **changes: Any
) -> list[Signature]:
    """What is yielded for a network that takes `most` tokens, if files state `tokens`."""
    saved = exports.saved(folder / "made", exports.word_piece(), {"max_position_embeddings": tokens})
    model = Model.read(saved)
    signature = replace(OnnxBackend().signature(model), **changes)

    def infer(inputs: Sequence[Array]) -> Sequence[Array]:
        ids, mask = (*inputs, np.ones_like(inputs[0]))[:2]
        if ids.shape[1] > most or (signature.batch_size and len(ids) != signature.batch_size):
            raise IndexError("indices element out of data bounds")
        with np.errstate(all="ignore"):
            return [network(WEIGHTS[ids], mask[..., None])]

    return [*with_checked_texts(model, infer, signature)]


@pytest.mark.parametrize("batch_size", [0, 1, 2, 8])
@pytest.mark.parametrize("tokens", [1, 3, 64])
@pytest.mark.parametrize("network", [mean, of_tokens])
def test_texts_that_padding_does_not_change_are_padded(
    tmp_path: Path, network: Network, tokens: int, batch_size: int
) -> None:
    *_, found = checked(tmp_path, network, tokens=tokens, batch_size=batch_size)
    assert (found.pads, found.batch_size, found.batch_note) == (True, batch_size, "")
    assert found.inputs[0].equal_count is None


@pytest.mark.parametrize("batch_size", [0, 1, 2, 8])
@pytest.mark.parametrize("network", [last_place, without_mask])
def test_texts_that_padding_changes_share_a_batch_with_their_equals(
    tmp_path: Path, network: Network, batch_size: int
) -> None:
    *_, found = checked(tmp_path, network, batch_size=batch_size)
    assert (found.pads, found.batch_size, found.batch_note) == (False, batch_size, EQUAL_LENGTHS)


@pytest.mark.parametrize("network", [centred, centred_if_many, one_text])
def test_texts_that_a_batch_changes_or_fails_are_computed_alone(
    tmp_path: Path, network: Network
) -> None:
    *_, found = checked(tmp_path, network)
    assert (found.pads, found.batch_size, found.batch_note) == (False, 1, ONE_BY_ONE)


def test_nothing_is_padded_without_a_mask(tmp_path: Path) -> None:
    inputs = (TensorSpec("input_ids", "int64", (AXIS,)),)
    *_, found = checked(tmp_path, without_mask, inputs=inputs)
    assert (found.pads, found.batch_size, found.batch_note) == (False, 0, "")


@pytest.mark.parametrize("network", [mean, one_text, last_place])
@pytest.mark.parametrize("most", [1, 5, 16, 40, 63, 64, 65])
def test_the_longest_text_is_the_one_that_the_network_computes(
    tmp_path: Path, network: Network, most: int
) -> None:
    first, found = checked(tmp_path, network, most)
    assert first.limits == {AXIS: 64}  # served if the longest text takes too long
    assert found.limits == {AXIS: min(most, 64)}


@pytest.mark.parametrize(("most", "found"), [(514, 514), (LONGEST - 1, LONGEST - 1), (LONGEST, 10**5)])
def test_the_longest_text_that_is_tried_has_a_bound(tmp_path: Path, most: int, found: int) -> None:
    *_, signature = checked(tmp_path, mean, most, tokens=10**5)
    assert signature.limits == {AXIS: found}


def test_a_network_that_computes_nothing_keeps_its_limit(tmp_path: Path) -> None:
    *_, found = checked(tmp_path, mean, 0)
    assert found.limits == {AXIS: 64}


@pytest.mark.parametrize(
    ("task", "ending"), [("ForSequenceClassification", (0, 2)), ("ForQuestionAnswering", (0, 2, 2, 2))]
)
@pytest.mark.parametrize("traced", [False, True])
def test_texts_end_as_the_tokeniser_ends_them(
    tmp_path: Path, task: str, ending: tuple[int, ...], traced: bool
) -> None:
    """BART's classifiers, for example, read the state of the last end of a sentence.

    Traced, they don't refuse texts with different numbers of ends, but take those of others.
    """
    config = {"architectures": [f"Bart{task}"], "model_type": "bart", "pad_token_id": 1}
    model = Model.read(exports.saved(tmp_path / "made", exports.byte_level(), config))
    signature = OnnxBackend().signature(model)

    def infer(inputs: Sequence[Array]) -> Sequence[Array]:
        ids, _ = inputs
        ends = ids == ending[-1]
        if not traced and (ends.sum(1) != min(ending.count(2), ids.shape[1])).any():
            raise ValueError("All examples must have the same number of <eos> tokens.")
        return [WEIGHTS[ids].cumsum(1)[ends].reshape(len(ids), -1, 3)[:, -1]]

    *_, found = with_checked_texts(model, infer, signature)
    assert (found.pads, found.batch_note, found.limits) == (True, "", {AXIS: 64})
    assert (found.inputs[0].ending, found.inputs[0].equal_count) == (ending, 2)
    for length in (1, 2, 3, 16):
        infer(examples(found, 2, {AXIS: length}))  # as warm-up does


def test_a_network_that_fits_is_not_computed_twice_for_its_longest_text(tmp_path: Path) -> None:
    widths: list[int] = []

    def counted(embedded: Numbers, mask: Numbers) -> Numbers:
        widths.append(mask.shape[1])
        return mean(embedded, mask)

    checked(tmp_path, counted)
    assert widths.count(64) == 1


def test_the_accepted_difference_is_asked_for_only_if_results_differ(tmp_path: Path) -> None:
    model = Model.read(exports.saved(tmp_path / "made", exports.word_piece(), {}))
    signature = OnnxBackend().signature(model)
    calls: list[float] = []

    def largest() -> float:
        calls.append(0.5)
        return 0.5

    def infer(padding: float, inputs: Sequence[Array]) -> Sequence[Array]:
        ids, mask = inputs
        return [np.asarray((ids * mask).sum(1) + padding * (1 - mask).sum(1))[:, None]]

    *_, exact = with_checked_texts(model, partial(infer, 0.0), signature, largest)
    assert (exact.pads, calls) == (True, [])
    *_, near = with_checked_texts(model, partial(infer, 10.0), signature, largest)
    assert (near.pads, {*calls}) == (True, {0.5})

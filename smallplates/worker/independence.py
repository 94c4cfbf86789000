"""Independence: computes made-up items together and alone, since a batch must not change the results.

A causal network that was traced without a padding token, for example, reads the last place of a batch
instead of a text's last token. Called by the backends' `GraphReader`, in a process of its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smallplates.models.comparison import difference, relative
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Signature, put_at_end
from smallplates.models.vocabulary import tokenizer_json
from smallplates.worker.precision_check import EXACT, token_inputs

ITEMS, TEXTS, TOKENS = 3, 8, 16
"""Items, or texts, that are compared; they are the first of so many in a batch, of so many tokens."""

LONGEST = 4096
"""Tokens of the longest text that is tried; more would take too much memory."""

EQUAL_LENGTHS = "padding changes a text's results: only texts of the same length share a batch"
ONE_BY_ONE = "a batch of texts fails, or changes their results: each is computed alone"
Ids = tuple[int, ...]
Infer = Callable[[Sequence[Array]], Sequence[Array]]
"""Computes a batch, given an array [N, ...] per input; returns an array [N, ...] per output."""


def difference_alone(
    infer: Infer, batch: Sequence[Array], ends: Sequence[int | None], batch_size: int
) -> float:
    """Returns how far the first items of a batch are from the same items alone, without their padding.

    `ends` has the length of each item's last axis, or None for all of it. Without lengths, differences
    are relative to the largest number of the whole batch. If the batch size is fixed, not 0, an item is
    computed with copies of itself. Raises the runtime's errors.
    """
    together = infer(batch)
    pairs = [(array.ravel(), array.ravel()) for array in together if not any(ends)]
    for row, end in enumerate(ends):
        alone = infer([array[[row] * (batch_size or 1)][..., :end] for array in batch])
        for one, array in zip(alone, together, strict=True):
            pairs.append((one[0].ravel(), array[row][tuple(map(slice, one[0].shape))].ravel()))
    outputs = [zip(*pairs[place :: len(together)], strict=True) for place in range(len(together))]
    expected, found = zip(*(map(np.concatenate, output) for output in outputs), strict=True)
    return difference(expected, found, relative).worst


def with_checked_texts(
    model: Model, infer: Infer, signature: Signature, largest: Callable[[], float] = lambda: EXACT
) -> Iterator[Signature]:
    """Yields the signature: first with what is known of batches, then with the longest text, too.

    `largest` returns the largest accepted difference; it is called only if one exceeds EXACT. The
    tokens are from the upper half of the vocabulary, where hardly any is special. Texts end with the
    special tokens that the tokeniser adds, because some networks search for one: BART's classifiers
    fail without their end of a sentence. If these are not equally often in each text, the traced ones
    take another text's.
    """
    pad = model.description.text_pipeline.pad_token_id
    most = min(signature.limits[axis] for axis in signature.input_axes)
    count, ending = vocabulary(model)
    signature = with_ids(signature, ending=ending)
    rows = signature.batch_size or TEXTS
    shape = rows, min(most, LONGEST)
    tokens = np.random.default_rng(0).integers(count // 2, count, shape)
    tokens -= tokens == (pad or 0)

    def texts(lengths: Sequence[int], width: int, beginning: Ids = ()) -> list[Array]:
        """Returns a batch of texts of these lengths, padded to this width; the first has a beginning."""
        every = np.resize(lengths, signature.batch_size or len(lengths))
        mask = np.arange(width) < every[:, None]
        ids = np.where(mask, tokens[: len(every), :width], pad or 0)
        for row, length in zip(ids, every, strict=True):
            put_at_end(row[:length], ending)
        ids[0, : len(beginning)] = beginning
        return token_inputs(signature, ids, mask)

    def share(lengths: Sequence[int], width: int, beginning: Ids = ()) -> bool:
        """Returns whether texts in a batch of this width are computed as they are alone."""
        batch = texts(np.resize(lengths, rows).tolist(), width, beginning)
        try:
            ends = lengths[: len(batch[0])]
            gap = difference_alone(infer, batch, ends, signature.batch_size)
            return gap <= EXACT or gap <= largest()  # which reads the file
        except Exception:  # of the runtime, or for outputs without a batch
            return False

    def fails(length: int) -> bool:
        """Returns whether the network computes no text of this length."""
        try:
            infer(texts([length], length))
        except Exception:  # of the runtime
            return True
        return False

    width = min(TOKENS, most)
    can_pad = pad is not None and any(spec.name == "attention_mask" for spec in signature.inputs)
    different, equal = np.maximum(1, width * np.array((3, 1, 2)) // 4).tolist(), [width] * ITEMS
    if can_pad and share(different, width):
        result = replace(signature, pads=True)
    elif share(equal, width):
        result = replace(signature, batch_note=EQUAL_LENGTHS if can_pad else "")
    else:
        result = replace(signature, batch_size=1, batch_note=ONE_BY_ONE)
    more = ending[-1:] * rows  # their sum can be divided by that of texts
    alone = not more or result.batch_size == 1
    free = alone or share(equal, width, more[: max(0, width - len(ending))])
    yield (result := with_ids(result, equal_count=None if free else more[0]))
    if fails(shape[1]):
        most = bisect_left(range(1, shape[1]), True, key=fails) or most
    yield replace(result, limits={**signature.limits, **dict.fromkeys(signature.input_axes, most)})


def with_ids(signature: Signature, **changes: Any) -> Signature:
    """Returns the signature with changes to the input of the tokens' ids."""
    return replace(
        signature,
        inputs=tuple(
            replace(spec, **changes) if spec.name == "input_ids" else spec for spec in signature.inputs
        ),
    )


def vocabulary(model: Model) -> tuple[int, Ids]:
    """Returns a text model's number of tokens, and the special ones of an empty text or pair."""
    from tokenizers import Tokenizer  # workers need none of it

    tokenizer = Tokenizer.from_str(tokenizer_json(model.tokenizer()))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    empty = ("", "") if kind_of(model.description.task).is_pair else ("",)
    special = tokenizer.encode(*empty).ids
    pad = model.description.text_pipeline.pad_token_id
    count = tokenizer.get_vocab_size(with_added_tokens=False)
    return count, tuple(token for token in special if token != pad)

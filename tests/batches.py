"""Divides slots into batches, for tests that compute all of them."""

from collections.abc import Sequence

from smallplates.worker.executor import BatchExecutor


def divided(executor: BatchExecutor, slots: Sequence[int]) -> list[list[int]]:
    """The batches in which a worker computes these slots, of which the first has waited longest."""
    left, batches = list(slots), []
    while left:
        batches.append(executor.choose(left))
        left = [slot for slot in left if slot not in batches[-1]]
    return batches

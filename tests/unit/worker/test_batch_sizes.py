"""`smallplates.worker.batch_sizes`: the sizes that warm-up runs."""

from smallplates.settings import Settings
from smallplates.worker import batch_sizes


def test_every_power_of_two_and_the_largest_are_run() -> None:
    assert batch_sizes.sizes(Settings(), "cpu") == [1, 2, 4, 8]
    assert batch_sizes.sizes(Settings(), "cuda:0")[-1] == 64
    assert batch_sizes.sizes(Settings(max_batch_size=6), "cpu") == [1, 2, 4, 6]
    assert batch_sizes.sizes(Settings(), "cpu", 2) == [1, 2]

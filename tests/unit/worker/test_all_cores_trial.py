"""`smallplates.worker.executor.AllCoresTrial`: whether one item is computed on all cores."""

from smallplates.worker.executor import FIRST_INTERVAL, MAX_INTERVAL, SAMPLES, AllCoresTrial


def played(cores: AllCoresTrial, few_s: float, all_s: float, pictures: int) -> list[bool]:
    """Lets it choose for so many pictures that take these times; returns its choices."""
    choices = []
    for _ in range(pictures):
        choices.append(cores.use_all_cores())
        cores.record(choices[-1], all_s if choices[-1] else few_s)
    return choices


def test_all_cores_are_taken_where_they_pay_and_only_there() -> None:
    faster, slower = AllCoresTrial(), AllCoresTrial()
    assert sum(played(faster, 8.0, 5.0, 2 * SAMPLES)) == SAMPLES  # both are known first
    assert sum(played(slower, 8.0, 7.5, 2 * SAMPLES)) == SAMPLES
    assert played(faster, 8.0, 5.0, 4 * MAX_INTERVAL).count(False) < 10
    assert played(slower, 8.0, 7.5, 4 * MAX_INTERVAL).count(True) < 10
    assert played(faster, 8.0, 5.0, MAX_INTERVAL).count(False) == 1
    assert played(slower, 8.0, 7.5, MAX_INTERVAL).count(True) == 1


def test_the_choice_follows_the_machine() -> None:
    cores = AllCoresTrial()
    played(cores, 8.0, 5.0, 10 * MAX_INTERVAL)
    played(cores, 8.0, 16.0, SAMPLES + 1)  # somebody else has the other core now
    assert not any(played(cores, 8.0, 16.0, FIRST_INTERVAL - 2))
    played(cores, 8.0, 5.0, 2)  # and has gone soon
    assert all(played(cores, 8.0, 5.0, FIRST_INTERVAL - 2))
    played(cores, 8.0, 16.0, 10 * MAX_INTERVAL)
    assert sum(played(cores, 8.0, 16.0, MAX_INTERVAL)) == 1
    played(cores, 8.0, 5.0, MAX_INTERVAL)  # and has gone at last
    assert played(cores, 8.0, 5.0, MAX_INTERVAL).count(False) < 6

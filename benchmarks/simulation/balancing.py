"""Load balancing policies, for the simulation and for the load generator of `validation.py`."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.plan import Policy

DRAWN_AT_ONCE = 4096


def stream(draw: Callable[[int], NDArray[np.float64]]) -> Iterator[float]:
    """Yields random numbers without end; `draw` makes many at a time, which is faster."""
    while True:
        yield from draw(DRAWN_AT_ONCE).tolist()


class Balancer:
    """Replicas in rotation, by index, and the requests outstanding at each; chooses at random."""

    def __init__(self, count: int, uniform: Iterator[float]) -> None:
        self.outstanding = [0] * count
        self.rotation = list(range(count))
        self._uniform = uniform

    def choose(self) -> int | None:
        """Returns a replica in rotation; None if there is none."""
        return self._any(self.rotation) if self.rotation else None

    def _any(self, indices: list[int]) -> int:
        return indices[int(next(self._uniform) * len(indices))]

    def sent(self, index: int) -> None:
        """Counts a request."""
        self.outstanding[index] += 1

    def ended(self, index: int) -> None:
        """Counts an answer, or a lost request."""
        self.outstanding[index] -= 1

    def add(self, index: int) -> None:
        """Takes a replica into the rotation; a new one has the next free index."""
        if index == len(self.outstanding):
            self.outstanding.append(0)
        self.rotation.append(index)

    def remove(self, index: int) -> None:
        """Takes a replica out of the rotation."""
        self.rotation.remove(index)


class RoundRobin(Balancer):
    """Chooses in turn."""

    _turn = -1

    def choose(self) -> int | None:
        """See `Balancer`."""
        self._turn += 1
        return self.rotation[self._turn % len(self.rotation)] if self.rotation else None


class TwoChoices(Balancer):
    """Chooses the less busy one of two random replicas."""

    def choose(self) -> int | None:
        """See `Balancer`."""
        if not self.rotation:
            return None
        first, second = self._any(self.rotation), self._any(self.rotation)
        return first if self.outstanding[first] <= self.outstanding[second] else second


class LeastOutstanding(Balancer):
    """Chooses one of the least busy replicas, at random among equals, in constant time."""

    def __init__(self, count: int, uniform: Iterator[float]) -> None:
        super().__init__(count, uniform)
        self._levels: list[list[int]] = [list(self.rotation)]
        """Replicas in rotation, by the number of their outstanding requests."""

        self._places: dict[int, int] = {index: index for index in self.rotation}
        """Place of each replica in rotation in its level."""

        self._lowest = 0

    def choose(self) -> int | None:
        """See `Balancer`."""
        if not self._places:
            return None
        while not self._levels[self._lowest]:
            self._lowest += 1
        return self._any(self._levels[self._lowest])

    def sent(self, index: int) -> None:
        """See `Balancer`."""
        self._count(index, 1)

    def ended(self, index: int) -> None:
        """See `Balancer`."""
        self._count(index, -1)

    def _count(self, index: int, change: int) -> None:
        in_rotation = index in self._places
        if in_rotation:
            self._take(index)
        self.outstanding[index] += change
        if in_rotation:
            self._put(index)

    def add(self, index: int) -> None:
        """See `Balancer`."""
        super().add(index)
        self._put(index)

    def remove(self, index: int) -> None:
        """See `Balancer`."""
        super().remove(index)
        self._take(index)
        del self._places[index]

    def _put(self, index: int) -> None:
        level = self.outstanding[index]
        while len(self._levels) <= level:
            self._levels.append([])
        self._places[index] = len(self._levels[level])
        self._levels[level].append(index)
        self._lowest = min(self._lowest, level)

    def _take(self, index: int) -> None:
        level, place = self._levels[self.outstanding[index]], self._places[index]
        last = level.pop()
        if last != index:
            level[place], self._places[last] = last, place


POLICIES: dict[Policy, type[Balancer]] = {
    Policy.LEAST_OUTSTANDING: LeastOutstanding,
    Policy.TWO_CHOICES: TwoChoices,
    Policy.RANDOM: Balancer,
    Policy.ROUND_ROBIN: RoundRobin,
}

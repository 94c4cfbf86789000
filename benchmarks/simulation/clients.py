"""Simulated clients: an open loop of requests, each tried again as `smallplates.client` does."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator

from simpy import Environment, Event

from benchmarks.simulation.plan import Plan
from benchmarks.simulation.replica import EXPIRED, LOST, OK, REFUSED, Attempt, after

BINS = 40
"""Parts of a run for which answers are counted apart."""


class Request:
    """Request of one client, with all its tries."""

    __slots__ = ("attempt", "ended", "started", "tries")

    def __init__(self, started: float) -> None:
        self.started = started
        self.tries = 0
        self.attempt: Attempt | None = None
        self.ended: str | None = None


class Timeline:
    """Tries, answers and refusals in each of `BINS` parts of a run."""

    def __init__(self, seconds: float) -> None:
        self.bin_s = seconds / BINS
        self.tries, self.answered, self.refused = [0] * BINS, [0] * BINS, [0] * BINS

    def count(self, counts: list[int], now: float) -> None:
        """Counts one; what comes after the end of the run is not counted."""
        number = int(now / self.bin_s)
        if number < BINS:
            counts[number] += 1


class Clients:
    """Sends requests with `send`, which must report each attempt once to `answered`."""

    def __init__(
        self,
        env: Environment,
        plan: Plan,
        send: Callable[[Request, float], Attempt],
        gaps: Iterator[float],
        uniform: Iterator[float],
    ) -> None:
        self._env, self._plan, self._retries = env, plan, plan.retries
        self._send, self._gaps, self._uniform = send, gaps, uniform
        self.timeline = Timeline(plan.seconds)
        self.latencies: list[float] = []
        """Seconds from the first try to a good answer, of requests that count."""

        self.started = self.tries = self.counted = 0
        self.ended: Counter[str] = Counter()
        """Requests by their last outcome, with those of the warm-up."""

        self.outcomes: Counter[str] = Counter()
        """The same of requests that count."""

        self.refused_tries = self.counted_tries = 0
        """Tries of requests that count: refused ones, and all."""

    def arrivals(self) -> Generator[Event, None, None]:
        """Starts requests until the run's end; a process of simpy."""
        env, plan = self._env, self._plan
        while True:
            yield env.timeout(next(self._gaps) / plan.rate_at(env.now))
            if env.now >= plan.seconds:
                return
            self.started += 1
            self.counted += env.now >= plan.warm_up_s
            self._try(Request(env.now))

    def _try(self, request: Request) -> None:
        request.tries += 1
        self.tries += 1
        self.counted_tries += request.started >= self._plan.warm_up_s
        self.timeline.count(self.timeline.tries, self._env.now)
        request.attempt = attempt = self._send(request, request.started + self._retries.timeout_s)
        if self._retries.patience_s is not None:
            after(self._env, self._retries.patience_s, lambda _: self._lose_patience(attempt))

    def _lose_patience(self, attempt: Attempt) -> None:
        request = attempt.request
        if request.attempt is attempt:
            attempt.left = True
            self._try_again(request, EXPIRED)

    def answered(self, attempt: Attempt, outcome: str) -> None:
        """Ends a request or tries it again; nobody waits any more for an attempt that was dropped."""
        request, now = attempt.request, self._env.now
        if request.attempt is not attempt:
            return
        if outcome == REFUSED:
            self.timeline.count(self.timeline.refused, now)
            self.refused_tries += request.started >= self._plan.warm_up_s
        if outcome in (REFUSED, LOST):
            self._try_again(request, outcome)
            return
        if outcome == OK:
            self.timeline.count(self.timeline.answered, now)
            if request.started >= self._plan.warm_up_s:
                self.latencies.append(now - request.started)
        self._end(request, outcome)

    def _try_again(self, request: Request, outcome: str) -> None:
        request.attempt = None
        pause = self._retries.pause(request.tries, outcome == REFUSED, next(self._uniform))
        in_time = self._env.now + pause < request.started + self._retries.timeout_s
        if request.tries < self._retries.tries and in_time:
            after(self._env, pause, lambda _: self._try(request))
        else:
            self._end(request, outcome)

    def _end(self, request: Request, outcome: str) -> None:
        if request.ended:
            raise AssertionError(f"a request ended twice: {request.ended}, {outcome}")
        request.ended, request.attempt = outcome, None
        self.ended[outcome] += 1
        self.outcomes[outcome] += request.started >= self._plan.warm_up_s

"""Simulated replica: a web process admits or refuses, workers take batches of what waits."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from simpy import Environment, Event

from benchmarks.simulation.plan import Service, Trouble

if TYPE_CHECKING:
    from benchmarks.simulation.balancing import Balancer
    from benchmarks.simulation.clients import Request

OK, REFUSED, EXPIRED, LOST = "200", "503", "504", "lost"


class Attempt:
    """One try of a request, from the client's sending to its answer."""

    __slots__ = ("balancer", "deadline", "index", "left", "redispatched", "request")

    def __init__(self, request: "Request", deadline: float, balancer: "Balancer") -> None:
        self.request = request
        self.deadline = deadline
        self.balancer = balancer
        self.index = -1
        self.redispatched = 0
        self.left = False
        """Whether the client no longer waits for it."""


Answer = Callable[[Attempt, str], None]


def after(env: Environment, seconds: float, call: Callable[[Event], None]) -> None:
    """Calls `call` later; cheaper than a process."""
    env.timeout(seconds).callbacks.append(call)


class Replica:
    """Replica at work; `answer` is called once for every attempt that it has received."""

    def __init__(
        self,
        env: Environment,
        service: Service,
        answer: Answer,
        factors: Iterator[float],
        measured: tuple[float, float],
    ) -> None:
        """`factors` vary the batches' times; busy time counts within `measured`."""
        self._env, self._service, self._answer, self._factors = env, service, answer, factors
        self._batch_s = service.batch_seconds()
        self._from, self._to = measured
        self.trouble: Trouble | None = None
        self.slowness = 1.0
        self.busy_s = 0.0
        """Time in which workers computed."""

        self.in_flight = 0
        """Admitted requests; at most `queue_size`."""

        self.most_in_flight = 0
        self._epoch = 0  # counts restarts: what was begun before one is lost
        self._reset()

    @property
    def busy(self) -> float:
        """Share of the measured time in which workers computed."""
        seconds = self._to - self._from
        return self.busy_s / (self._service.workers * seconds) if seconds > 0 else 0.0

    def _reset(self) -> None:
        self._arrived: deque[Attempt] = deque()
        self._waiting: deque[Attempt] = deque()
        self._begun: set[tuple[Attempt, ...]] = set()
        self._idle_web = self._service.web_processes
        self._idle_workers = self._service.workers
        self.in_flight = 0

    def receive(self, attempt: Attempt) -> None:
        """Takes a request's connection; a web process reads it when it is free."""
        if self.trouble is Trouble.DOWN:
            self._later(self._service.refusal_ms / 1000, lambda: self._answer(attempt, LOST))
            return
        self._arrived.append(attempt)
        if self._idle_web:
            self._read_next()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        after(self._env, seconds, lambda _: call())

    def _read_next(self) -> None:
        attempt, epoch = self._arrived.popleft(), self._epoch
        self._idle_web -= 1
        service = self._service
        left = service.skips_left and attempt.left
        room = self.in_flight < service.queue_size and self.trouble is not Trouble.REFUSING
        admitted = room and not left
        if admitted:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        batch = (attempt,)
        self._begun.add(batch)

        def done(_: Event) -> None:
            if epoch != self._epoch:
                return
            self._begun.discard(batch)
            self._idle_web += 1
            if admitted:
                self._waiting.append(attempt)
                if self._idle_workers:
                    self._compute_next()
            else:
                self._answer(attempt, EXPIRED if left else REFUSED)
            if self._arrived and self._idle_web:
                self._read_next()

        after(self._env, (service.web_ms if admitted else service.refusal_ms) / 1000, done)

    def _take(self) -> tuple[Attempt, ...]:
        """Returns the next batch, without what nobody waits for any more."""
        cap, now, waiting = len(self._batch_s) - 1, self._env.now, self._waiting
        taken: list[Attempt] = []
        while waiting and len(taken) < cap:
            attempt = waiting.popleft()
            if self._service.skips_left and (attempt.left or attempt.deadline < now):
                self.in_flight -= 1
                self._answer(attempt, EXPIRED)
            else:
                taken.append(attempt)
        return tuple(taken)

    def _compute_next(self) -> None:
        batch, epoch = self._take(), self._epoch
        if not batch:
            return
        self._idle_workers -= 1
        self._begun.add(batch)
        seconds = self._batch_s[len(batch)] * self.slowness * next(self._factors)
        now = self._env.now
        self.busy_s += max(0.0, min(self._to, now + seconds) - max(self._from, now))

        def done(_: Event) -> None:
            if epoch != self._epoch:
                return
            self._begun.discard(batch)
            self._idle_workers += 1
            self.in_flight -= len(batch)
            for attempt in batch:
                self._answer(attempt, OK)
            if self._waiting and self._idle_workers:
                self._compute_next()

        after(self._env, seconds, done)

    def fall(self, trouble: Trouble, slowness: float) -> None:
        """Begins a trouble; a replica that is down loses all that it has."""
        self.trouble, self.slowness = trouble, slowness
        if trouble is Trouble.DOWN:
            lost = [*self._arrived, *self._waiting, *(a for batch in self._begun for a in batch)]
            self._epoch += 1
            self._reset()
            for attempt in lost:
                self._answer(attempt, LOST)

    def recover(self) -> None:
        """Ends the trouble."""
        self.trouble, self.slowness = None, 1.0

"""Simulation of a plan: clients, balancers and replicas, with faults and autoscaling."""

import gc
from collections.abc import Generator, Iterator
from math import ceil

import numpy as np
from simpy import Environment, Event

from benchmarks.simulation.balancing import POLICIES, Balancer, stream
from benchmarks.simulation.clients import Clients, Request
from benchmarks.simulation.plan import Autoscaling, Fault, Plan, Trouble
from benchmarks.simulation.replica import LOST, OK, REFUSED, Attempt, Replica, after

MAX_GROWTH = 2  # of one decision, as Kubernetes' default


class Cluster:
    """Simulated run; `run` runs it to its end, and the parts then hold the results."""

    def __init__(self, plan: Plan, gaps: Iterator[float] | None = None) -> None:
        """`gaps` are the times between requests, in units of their mean; None: at random (Poisson)."""
        random = np.random.default_rng(plan.seed)
        self.plan, self.env = plan, Environment()
        self._uniform = stream(random.random)
        self._factors = stream(np.ones)
        if spread := plan.service.variation**2:
            self._factors = stream(lambda count: random.gamma(1 / spread, spread, count))
        self.replicas = [self._replica() for _ in range(plan.replicas)]
        self.balancers: list[Balancer] = [
            POLICIES[plan.balancing.policy](plan.replicas, self._uniform)
            for _ in range(plan.balancing.balancers)
        ]
        gaps = gaps or stream(random.standard_exponential)
        self.clients = Clients(self.env, plan, self._send, gaps, self._uniform)

    def _replica(self) -> Replica:
        plan = self.plan
        measured = (max(self.env.now, plan.warm_up_s), plan.seconds)
        return Replica(self.env, plan.service, self._answered, self._factors, measured)

    def run(self) -> "Cluster":
        """Simulates until every request has ended."""
        self.env.process(self.clients.arrivals())
        for fault in self.plan.faults:
            self.env.process(self._fault(fault))
        if self.plan.autoscaling:
            self.env.process(self._autoscaler(self.plan.autoscaling))
        collecting = gc.isenabled()
        gc.disable()  # it would look again and again at all requests in flight, which form no cycles
        try:
            self.env.run()
        finally:
            if collecting:
                gc.enable()
        return self

    def _send(self, request: Request, deadline: float) -> Attempt:
        balancer = self.balancers[int(next(self._uniform) * len(self.balancers))]
        attempt = Attempt(request, deadline, balancer)
        self._dispatch(attempt)
        return attempt

    def _dispatch(self, attempt: Attempt) -> None:
        index = attempt.balancer.choose()
        if index is None:  # the balancer answers 503 itself
            after(self.env, 0.0, lambda _: self.clients.answered(attempt, REFUSED))
            return
        attempt.index = index
        attempt.balancer.sent(index)
        self.replicas[index].receive(attempt)

    def _answered(self, attempt: Attempt, outcome: str) -> None:
        attempt.balancer.ended(attempt.index)
        again = outcome in (REFUSED, LOST) and not attempt.left
        if again and attempt.redispatched < self.plan.balancing.redispatches:
            attempt.redispatched += 1
            self._dispatch(attempt)
        else:
            self.clients.answered(attempt, outcome)

    def _fault(self, fault: Fault) -> Generator[Event, None, None]:
        """Starts and ends a fault; health checks notice both, except that a replica is slow."""
        env, balancing = self.env, self.plan.balancing
        hit = range(ceil(fault.share * self.plan.replicas))
        noticed = fault.trouble is not Trouble.SLOW and balancing.found_after_s is not None
        yield env.timeout(fault.start_s)
        for index in hit:
            self.replicas[index].fall(fault.trouble, fault.slowness)
        if noticed:
            after(env, balancing.found_after_s or 0.0, lambda _: self._rotate(hit, in_rotation=False))
        if fault.end_s == float("inf"):
            return
        yield env.timeout(fault.end_s - fault.start_s)
        for index in hit:
            self.replicas[index].recover()
        if noticed:
            after(env, balancing.back_after_s, lambda _: self._rotate(hit, in_rotation=True))

    def _rotate(self, indices: range, in_rotation: bool) -> None:
        for balancer in self.balancers:
            for index in indices:
                if in_rotation:
                    balancer.add(index)
                else:
                    balancer.remove(index)

    def _autoscaler(self, scaling: Autoscaling) -> Generator[Event, None, None]:
        """Adds replicas while more requests than the target are in flight; a process of simpy."""
        env, wanted = self.env, len(self.replicas)
        while env.now + scaling.interval_s < self.plan.seconds:
            yield env.timeout(scaling.interval_s)
            in_flight = sum(replica.in_flight for replica in self.replicas)
            most = MAX_GROWTH * len(self.replicas)
            fitting = min(ceil(in_flight / scaling.target), most)
            if fitting > wanted:
                env.process(self._grow(fitting - wanted, scaling.start_s))
                wanted = fitting

    def _grow(self, count: int, start_s: float) -> Generator[Event, None, None]:
        yield self.env.timeout(start_s)
        for _ in range(count):
            self.replicas.append(self._replica())
            for balancer in self.balancers:
                balancer.add(len(self.replicas) - 1)

    def figures(self) -> dict[str, float]:
        """Returns the figures of the table; requests of the warm-up do not count."""
        plan, clients = self.plan, self.clients
        window = plan.seconds - plan.warm_up_s
        latencies = np.array(clients.latencies or [float("nan")]) * 1000
        busy = np.array([replica.busy for replica in self.replicas])
        return {
            "offered/s": clients.counted / window,
            "answered/s": clients.outcomes[OK] / window,
            "p50 ms": float(np.percentile(latencies, 50)),
            "p99 ms": float(np.percentile(latencies, 99)),
            "503": clients.refused_tries / max(1, clients.counted_tries),
            "failed": 1 - clients.outcomes[OK] / max(1, clients.counted),
            "tries": clients.counted_tries / max(1, clients.counted),
            "busy": float(busy.mean()),
            "busiest": float(np.percentile(busy, 99)),
            "replicas": len(self.replicas),
        }

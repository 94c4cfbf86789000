"""Named scenarios: what breaks first, the settings that prevent it, and a sentence from the figures."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from benchmarks.simulation.clients import BINS, Timeline
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.plan import (
    AT_ONCE,
    ONE_TRY,
    Autoscaling,
    Balancing,
    Fault,
    Plan,
    Policy,
    Retries,
    Service,
    Trouble,
)

STEADY = 0.9
"""Share of the offered rate that is answered by a cluster that has recovered."""

HEALTHY = Balancing()
NO_CHECKS = Balancing(found_after_s=None)


@dataclass
class Run:
    """Simulated variant of a scenario."""

    plan: Plan
    figures: dict[str, float]
    timeline: Timeline = field(repr=False)

    @classmethod
    def of(cls, plan: Plan) -> "Run":
        """Simulates the plan."""
        cluster = Cluster(plan).run()
        return cls(plan, cluster.figures(), cluster.clients.timeline)

    def recovered_after(self, moment: float) -> float | None:
        """Returns the seconds from `moment` until the cluster answers the offered rate to the end.

        None if it never does.
        """
        bin_s = self.timeline.bin_s
        wanted = STEADY * self.plan.rate * bin_s
        first = math.ceil(moment / bin_s)
        bad = [n for n in range(first, BINS) if self.timeline.answered[n] < wanted]
        if not bad:
            return 0.0
        return None if bad[-1] == BINS - 1 else (bad[-1] + 1) * bin_s - moment


Runs = dict[str, Run]


@dataclass(frozen=True)
class Scenario:
    """Question, the plans that answer it, and the answer in a sentence."""

    title: str
    replicas: int
    """Number of replicas unless another is asked for."""

    plans: Callable[[Service, int], dict[str, Plan]]
    result: Callable[[Runs], str]


def balancing(service: Service, replicas: int) -> dict[str, Plan]:
    """Every policy at nine tenths of the capacity."""
    base = Plan(service, replicas, 0.9, 2.0, retries=ONE_TRY)
    plans = {policy.value: replace(base, balancing=Balancing(policy)) for policy in Policy}
    blind = Balancing(Policy.LEAST_OUTSTANDING, balancers=100)
    return {**plans, f"least outstanding, {blind.balancers} balancers": replace(base, balancing=blind)}


def balancing_result(runs: Runs) -> str:
    """Compares p99 with that of least outstanding."""
    p99 = {name: run.figures["p99 ms"] for name, run in runs.items()}
    best = p99[Policy.LEAST_OUTSTANDING]
    others = ", ".join(f"{ms:.0f} ms with {name}" for name, ms in list(p99.items())[1:])
    return (
        f"p99 is {best:.0f} ms with least outstanding, {others}: random makes some replicas hot "
        f"({p99[Policy.RANDOM] / best:.2f} times the p99), and two choices "
        f"({p99[Policy.TWO_CHOICES] / best:.2f} times) need no list of all replicas."
    )


SURGE = (2.0, 5.0, 2.0)


def retry_storm(service: Service, replicas: int) -> dict[str, Plan]:
    """Twice the load for three seconds, with impatient and with patient clients."""
    impatient = replace(AT_ONCE, patience_s=1.0)
    endless = replace(service, queue_size=1_000_000, skips_left=False)
    base = Plan(endless, replicas, 0.8, 20.0, surge=SURGE, retries=impatient)
    skipping = replace(base, service=replace(endless, skips_left=True))
    bounded = replace(base, service=service)
    return {
        "no bound, computes for clients that left": base,
        "no bound, skips them": skipping,
        f"{service.queue_size} slots, retries at once": bounded,
        f"{service.queue_size} slots, Retry-After, back-off": replace(bounded, retries=Retries()),
    }


def after_surge(run: Run) -> str:
    """Says when a run has recovered."""
    seconds = run.recovered_after(SURGE[1])
    if seconds is None:
        return "does not recover"
    return f"recovers within {max(seconds, run.timeline.bin_s):.1f} s"


def retry_storm_result(runs: Runs) -> str:
    """Says which variant recovers, with tries and failures."""
    said = [
        f"{name}: {after_surge(run)}, {run.figures['tries']:.2f} tries a request, "
        f"{run.figures['failed']:.1%} fail"
        for name, run in runs.items()
    ]
    return "After three seconds of twice the load: " + "; ".join(said) + "."


def slow_replicas(service: Service, replicas: int) -> dict[str, Plan]:
    """Two in a hundred replicas take five times as long."""
    fault = Fault(Trouble.SLOW, 0.02, 0.0, slowness=5.0)
    base = Plan(service, replicas, 0.7, 3.5, 0.5, faults=(fault,), retries=ONE_TRY)
    return {policy.value: replace(base, balancing=Balancing(policy)) for policy in Policy}


def slow_replicas_result(runs: Runs) -> str:
    """Compares what slow replicas cost under each policy."""
    said = [
        f"{name}: p99 {run.figures['p99 ms']:.0f} ms, {run.figures['failed']:.2%} fail"
        for name, run in runs.items()
    ]
    return "With 2 % of the replicas five times as slow: " + "; ".join(said) + "."


def failing_replicas(service: Service, replicas: int) -> dict[str, Plan]:
    """One in a hundred replicas answers 503 at once, which makes it look idle."""
    fault = Fault(Trouble.REFUSING, 0.01, 0.5)
    base = Plan(service, replicas, 0.7, 3.5, faults=(fault,), retries=ONE_TRY, balancing=NO_CHECKS)
    return {
        "least outstanding": base,
        "random": replace(base, balancing=replace(NO_CHECKS, policy=Policy.RANDOM)),
        "least outstanding, checks": replace(base, balancing=HEALTHY),
        "least outstanding, checks, 3 redispatches": replace(
            base, balancing=replace(HEALTHY, redispatches=3)
        ),
    }


def failing_replicas_result(runs: Runs) -> str:
    """Says which share of requests met the failing replicas."""
    failed = {name: run.figures["failed"] for name, run in runs.items()}
    said = "; ".join(f"{name}: {share:.2%} fail" for name, share in failed.items())
    return f"1 % of the replicas, which refuse at once, draw requests because they look idle: {said}."


RISE_S = 20.0


def scale_up_lag(service: Service, replicas: int) -> dict[str, Plan]:
    """The load doubles for good; replicas come after a node's start, or at once."""
    slow = Autoscaling(target=16, start_s=60)
    base = Plan(service, replicas, 0.7, 120, surge=(RISE_S, math.inf, 2.0), autoscaling=slow)
    ample = replace(base, replicas=2 * replicas, load=base.load / 2)
    return {
        "70 % of the capacity, replicas after 60 s": base,
        "70 % of the capacity, replicas after 5 s": replace(base, autoscaling=replace(slow, start_s=5)),
        "35 % of the capacity, replicas after 60 s": ample,
    }


def scale_up_lag_result(runs: Runs) -> str:
    """Says how long the cluster answers less than is offered."""
    said = []
    for name, run in runs.items():
        doubled = Run(replace(run.plan, load=2 * run.plan.load), run.figures, run.timeline)
        seconds = doubled.recovered_after(RISE_S)
        lag = "to the end" if seconds is None else f"for {seconds:.0f} s" if seconds else "at no time"
        said.append(f"{name}: too slow {lag}, {run.figures['failed']:.1%} fail")
    return "When the load doubles: " + "; ".join(said) + "."


def lost_zone(service: Service, replicas: int) -> dict[str, Plan]:
    """A third of the replicas is gone for six seconds."""
    fault = Fault(Trouble.DOWN, 1 / 3, 2.0, 8.0)
    base = Plan(service, replicas, 0.8, 16.0, faults=(fault,), balancing=Balancing(redispatches=3))
    return {f"{load:.0%} of the capacity": replace(base, load=load) for load in (0.6, 0.8, 0.9)}


def lost_zone_result(runs: Runs) -> str:
    """Says at which load the loss of a zone is noticed."""
    said = [
        f"at {name} p99 is {run.figures['p99 ms']:.0f} ms, {run.figures['503']:.1%} of the tries are "
        f"refused and {run.figures['failed']:.1%} of the requests fail"
        for name, run in runs.items()
    ]
    return "When a third of the replicas is lost: " + "; ".join(said) + "."


SCENARIOS = {
    "balancing": Scenario("load balancing: hot replicas", 1000, balancing, balancing_result),
    "retry-storm": Scenario("overload for a moment: retry storm", 4, retry_storm, retry_storm_result),
    "slow-replicas": Scenario("slow replicas", 50, slow_replicas, slow_replicas_result),
    "failing-replicas": Scenario("replicas that refuse", 100, failing_replicas, failing_replicas_result),
    "scale-up-lag": Scenario("autoscaling lag", 3, scale_up_lag, scale_up_lag_result),
    "lost-zone": Scenario("a lost zone", 12, lost_zone, lost_zone_result),
}


def limited(plan: Plan, requests: int) -> Plan:
    """Returns a plan that is shortened to about this many requests; a quarter of them is warm-up.

    Plans in which something happens at a set time keep their length.
    """
    if plan.surge or plan.faults or plan.autoscaling:
        return plan
    seconds = min(plan.seconds, requests / plan.rate)
    return replace(plan, seconds=seconds, warm_up_s=seconds / 4)

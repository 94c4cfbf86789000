"""Comparison of the simulation with the real service, whose workers sleep (`benchmarks.sleeping`).

Both get the same due times of requests. The simulation's service times are measured in two runs of their
own, before the compared ones: one client of an idle replica, and one replica at its limit.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import service
from benchmarks.simulation.balancing import POLICIES
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.plan import ONE_TRY, Balancing, Plan, Policy, Retries, Service
from smallplates.cli.load import payloads
from smallplates.cli.load.http_client import Answer, Connections
from smallplates.cli.load.loops import Arrivals, OpenLoop, Windows
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.recorder import Recorder, ms
from smallplates.cli.load.target import Plan as Windowed
from smallplates.cli.load.target import Target, Usage, run_loop

REPLICAS = (1, 2, 4)
LOADS = ((0.7, ONE_TRY), (1.3, ONE_TRY), (1.1, Retries(tries=2)))
"""Share of the capacity, and the clients' policy."""

WORKERS, CAP, SLOTS = 2, 2, 16
TOLERANCE = 0.15
LEAST_SHARE = 0.005
"""Shares of 503 that differ by no more than this agree, too: they are a few requests."""

REFUSAL_MS = 0.14


class BalancedClient:
    """Client of several replicas: chooses one for each try, and tries again, as the simulation does."""

    def __init__(self, urls: list[str], policy: Policy, retries: Retries, seed: int) -> None:
        uniform = iter(random.Random(seed).random, None)
        self._replicas = [Connections(url) for url in urls]
        self._balancer = POLICIES[policy](len(urls), uniform)
        self._retries, self._uniform = retries, uniform
        self.tries = self.refused = 0

    async def ask(self, request: bytes) -> Answer:
        """Sends a request until it is answered, or no further try is allowed."""
        tried = 0
        while True:
            tried += 1
            answer = await self._once(request)
            if answer.status != "503" or tried == self._retries.tries:
                return answer
            await asyncio.sleep(self._retries.pause(tried, True, next(self._uniform)))

    async def _once(self, request: bytes) -> Answer:
        index = self._balancer.choose()
        assert index is not None  # noqa: S101 all replicas stay in rotation
        self._balancer.sent(index)
        try:
            answer = await self._replicas[index].ask(request)
        finally:
            self._balancer.ended(index)
        self.tries += 1
        self.refused += answer.status == "503"
        return answer

    async def close(self) -> None:
        """Closes the idle connections."""
        for replica in self._replicas:
            await replica.close()


async def started_within(loop_: OpenLoop, seconds: float) -> Recorder:
    """Runs a loop; returns the answers to all requests that were due within `seconds`."""
    windows = Windows()
    running = asyncio.create_task(loop_.run(windows))
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if loop_.waiting:
        await asyncio.wait(loop_.waiting, timeout=60)
    await loop_.connections.close()
    return windows.now


def due_gaps(seed: int) -> Iterator[float]:
    """Yields the gaps of `OpenLoop`'s requests in units of their mean; the first request is due at 0."""
    yield 0.0
    same = random.Random(seed)
    while True:
        yield same.expovariate(1.0)


@dataclass(frozen=True)
class Compared:
    """Measured and simulated figures of one case, by name."""

    replicas: int
    load: float
    tries: int
    measured: dict[str, float]
    simulated: dict[str, float]
    machine_busy: float
    """Share of all cores that was busy, with the load generator and other programs."""

    def difference(self, name: str) -> float:
        """Returns the simulated figure's difference from the measured one, as a share of that."""
        measured, simulated = self.measured[name], self.simulated[name]
        if name == "503" and abs(simulated - measured) <= LEAST_SHARE:
            return 0.0
        return simulated / measured - 1 if measured else float("inf")

    @property
    def misses(self) -> list[str]:
        """Names of the figures that differ by more than the tolerance."""
        return [name for name in self.measured if abs(self.difference(name)) > TOLERANCE]

    def row(self) -> dict[str, Any]:
        """Returns a row of the table: measured and simulated beside each other."""
        case = {"replicas": self.replicas, "load": self.load, "tries": self.tries}
        pairs = {
            f"{name}, {kind}": round(figures[name], 4)
            for name in self.measured
            for kind, figures in (("measured", self.measured), ("simulated", self.simulated))
        }
        largest = max((self.difference(name) for name in self.measured), key=abs)
        busy = {"machine busy": f"{self.machine_busy:.0%}"}
        return {**case, **pairs, "largest difference": f"{largest:+.0%}", **busy}


def measure(urls: list[str], request: bytes, plan: Plan) -> dict[str, float]:
    """Returns p50, p99 and share of 503 of the real replicas."""
    client = BalancedClient(urls, plan.balancing.policy, plan.retries, plan.seed)
    loop_ = OpenLoop(client, [request], plan.rate, Arrivals.POISSON, plan.seed)
    seen = run_loop(started_within(loop_, plan.seconds))
    if others := set(seen.statuses) - {"200", "503"}:
        raise RuntimeError(f"answers other than 200 and 503: {others}")
    share = client.refused / max(1, client.tries)
    return {"p50 ms": ms(seen.latency, 50), "p99 ms": ms(seen.latency, 99), "503": share}


def simulate(plan: Plan) -> dict[str, float]:
    """Returns the same figures of the simulation."""
    figures = Cluster(plan, due_gaps(plan.seed)).run().figures()
    return {name: figures[name] for name in ("p50 ms", "p99 ms", "503")}


def calibrated(target: Target) -> Service:
    """Returns the replica to simulate.

    One client gives the time of a batch of one, and the time around it, which is taken for that of the
    web process. As many clients as slots give the time of a full batch, as workers then compute nothing
    else. Warm-up would give the shortest time, without what a worker does between two batches.
    """
    single_client, full = (target.closed(count, Windowed(0.5, 4.0, 1, 1)) for count in (1, SLOTS))
    single = (single_client.server_ms or {})["infer"]
    batch_ms = {1: single, CAP: WORKERS * CAP * 1000 / full.per_second}
    outside = max(0.0, single_client.p50 - single)
    return Service(batch_ms, WORKERS, web_ms=outside, refusal_ms=REFUSAL_MS, queue_size=SLOTS)


def compare(model_dir: Path, sleep_ms: float, seconds: float) -> tuple[Service, list[Compared]]:
    """Runs every case with real replicas and simulated ones; returns the replica and the figures."""
    photo = payloads.SAMPLE.read_bytes()
    settings = {
        "model_dir": model_dir.resolve(),
        "device": "cpu",
        "instances": WORKERS,
        "max_batch_size": CAP,
        "queue_size": SLOTS,
        "web_processes": 1,
        "idle_threads": 1,
    }
    with ExitStack() as stack:
        sleep = {"BENCHMARK_SLEEP_MS": str(sleep_ms)}
        urls = [
            stack.enter_context(service.running("benchmarks.sleeping", sleep, **settings)).url
            for _ in range(max(REPLICAS))
        ]
        target = Target(urls[0], [photo], Protocol.RAW)
        replica, (request,) = calibrated(target), target.wire()
        compared = []
        balancing = Balancing(Policy.LEAST_OUTSTANDING)
        cases = [(count, *load) for count in REPLICAS for load in LOADS]
        for seed, (count, load, retries) in enumerate(tqdm(cases, desc="cases", mininterval=1)):
            plan = Plan(replica, count, load, seconds, retries=retries, balancing=balancing, seed=seed)
            usage = Usage()
            measured = measure(urls[:count], request, plan)
            _, busy = usage.look()
            compared.append(Compared(count, load, retries.tries, measured, simulate(plan), busy))
    return replica, compared

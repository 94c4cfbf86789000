"""Simulation of many replicas: closed forms, conservation of requests, bounds, policies."""

import asyncio
import json
import math
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import simulate
from benchmarks.__main__ import app
from benchmarks.simulation import pages, sizing, validation
from benchmarks.simulation.balancing import POLICIES
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
from benchmarks.simulation.replica import EXPIRED, LOST, OK, REFUSED
from benchmarks.simulation.scenarios import SCENARIOS, Run, limited
from smallplates.cli.load.http_client import Answer
from smallplates.cli.load.loops import Arrivals, OpenLoop
from smallplates.client import Options

ENDLESS = 1_000_000
EXPONENTIAL = Service({1: 10.0}, workers=1, queue_size=ENDLESS, variation=1.0)
BATCHING = Service({1: 5.0, 2: 8.0, 4: 14.0}, web_ms=1.0, refusal_ms=0.1, queue_size=16)


def erlang_c(servers: int, load: float) -> float:
    """The probability that a request waits in M/M/c; `load` is the share of the capacity."""
    offered = servers * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("workers", "load"), [(1, 0.5), (1, 0.7), (4, 0.8)])
def test_mean_latency_is_that_of_m_m_c(workers: int, load: float) -> None:
    service = replace(EXPONENTIAL, workers=workers)
    plan = Plan(service, 1, load, 12_000 / (load * service.capacity), retries=ONE_TRY, seed=7)
    cluster = Cluster(plan).run()
    served = 0.010
    waits = erlang_c(workers, load) * served / (workers * (1 - load))
    assert np.mean(cluster.clients.latencies) == pytest.approx(served + waits, rel=0.06)
    assert cluster.figures()["busy"] == pytest.approx(load, rel=0.03)


def test_share_of_refusals_is_that_of_erlang_b() -> None:
    service = replace(EXPONENTIAL, workers=3, queue_size=3)
    plan = Plan(service, 1, 1.2, 40.0, retries=ONE_TRY, seed=3)
    offered = 3.6
    terms = [offered**n / math.factorial(n) for n in range(4)]
    assert Cluster(plan).run().figures()["503"] == pytest.approx(terms[-1] / sum(terms), rel=0.05)


def test_random_choice_makes_each_replica_a_queue_of_its_own() -> None:
    plan = Plan(EXPONENTIAL, 20, 0.6, 12.0, 2.0, retries=ONE_TRY, balancing=Balancing(Policy.RANDOM))
    assert np.mean(Cluster(plan).run().clients.latencies) == pytest.approx(0.010 / 0.4, rel=0.06)


ALL_FAULTS = (
    Fault(Trouble.DOWN, 0.3, 0.3, 0.8),
    Fault(Trouble.REFUSING, 0.6, 1.0, 1.2),
    Fault(Trouble.SLOW, 0.5, 1.3, slowness=4.0),
)


@pytest.mark.parametrize(
    ("policy", "retries"),
    [*zip(Policy, [Retries(tries=3), replace(AT_ONCE, patience_s=0.05), ONE_TRY, AT_ONCE], strict=True)],
)
def test_every_request_ends_once_and_no_queue_exceeds_its_bound(
    policy: Policy, retries: Retries
) -> None:
    balancing = Balancing(policy, balancers=2, found_after_s=0.1, back_after_s=0.1, redispatches=1)
    plan = Plan(BATCHING, 4, 1.1, 1.6, retries=retries, balancing=balancing, faults=ALL_FAULTS)
    cluster = Cluster(plan).run()
    clients = cluster.clients
    assert clients.started > 1000
    assert sum(clients.ended.values()) == clients.started  # a second end raises
    assert set(clients.ended) <= {OK, REFUSED, EXPIRED, LOST}
    assert clients.ended[OK] == len(clients.latencies)
    assert max(replica.most_in_flight for replica in cluster.replicas) == BATCHING.queue_size
    assert [replica.in_flight for replica in cluster.replicas] == [0, 0, 0, 0]
    assert all(balancer.outstanding == [0, 0, 0, 0] for balancer in cluster.balancers)
    assert sum(clients.timeline.answered) <= clients.ended[OK] <= sum(clients.timeline.tries)


def test_least_outstanding_chooses_a_least_busy_replica_in_rotation() -> None:
    numbers = random.Random(5)
    balancer = POLICIES[Policy.LEAST_OUTSTANDING](5, iter(numbers.random, None))
    for step in range(2000):
        if step % 50 == 0:
            (balancer.remove if 3 in balancer.rotation else balancer.add)(3)
        index = balancer.choose()
        assert index in balancer.rotation
        assert balancer.outstanding[index] == min(balancer.outstanding[i] for i in balancer.rotation)
        balancer.sent(index)
        if numbers.random() < 0.8:
            balancer.ended(numbers.choice([i for i in range(5) if balancer.outstanding[i]]))
    for index in list(balancer.rotation):
        balancer.remove(index)
    assert balancer.choose() is None


@pytest.mark.parametrize("policy", Policy)
def test_no_replica_in_rotation_is_a_refusal(policy: Policy) -> None:
    fault = Fault(Trouble.DOWN, 1.0, 0.0)
    plan = Plan(BATCHING, 2, 0.5, 1.0, retries=ONE_TRY, faults=(fault,))
    cluster = Cluster(replace(plan, balancing=Balancing(policy, found_after_s=0.0))).run()
    assert set(cluster.clients.ended) == {REFUSED}


def test_retries_are_those_of_the_client() -> None:
    options, retries = Options(), Retries()
    for name in ("tries", "backoff_s", "backoff_cap_s", "timeout_s"):
        assert getattr(retries, name) == getattr(options, name)
    longest = [retries.pause(tried, False, 1.0) for tried in range(1, 8)]
    assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert retries.pause(1, True, 0.5) == pytest.approx(1.05)
    assert AT_ONCE.pause(3, True, 1.0) == 0


def test_an_autoscaler_adds_replicas_after_its_lag() -> None:
    scaling = Autoscaling(target=4, start_s=1.0, interval_s=0.5)
    plan = Plan(BATCHING, 1, 1.5, 3.0, retries=ONE_TRY, autoscaling=scaling)
    grown = Cluster(plan).run()
    late = Cluster(replace(plan, autoscaling=replace(scaling, start_s=2.4))).run()
    assert len(grown.replicas) > 1
    assert grown.figures()["503"] < late.figures()["503"]


def test_a_batch_takes_the_measured_time_and_the_capacity_follows() -> None:
    assert BATCHING.batch_seconds() == pytest.approx([0.005, 0.005, 0.008, 0.011, 0.014])
    assert BATCHING.capacity == pytest.approx(2 * 4 / 0.014)
    assert replace(BATCHING, web_ms=10).capacity == pytest.approx(100)
    assert simulate.measured_service().batch_seconds()[-1] > 0


def test_recovery_is_the_time_to_the_last_bad_part() -> None:
    plan = Plan(Service({1: 10.0}, workers=1), 1, 0.5, 6.0)
    line = Timeline(plan.seconds)
    line.answered = [8] * BINS  # 7.5 in each part are offered
    run = Run(plan, {}, line)
    assert run.recovered_after(2.0) == 0
    line.answered[30] = 3
    assert run.recovered_after(2.0) == pytest.approx(31 * line.bin_s - 2.0)
    line.answered[-1] = 0
    assert run.recovered_after(2.0) is None


def test_every_scenario_runs_and_says_its_result() -> None:
    small = Service({1: 200.0, 2: 300.0}, web_ms=60.0, refusal_ms=6.0, queue_size=8)
    for scenario in SCENARIOS.values():
        plans = scenario.plans(small, 2)
        runs = {name: Run.of(limited(plan, 1000)) for name, plan in plans.items()}
        said = scenario.result(runs)
        assert said.endswith(".")
        assert "nan" not in said


def test_the_command_prints_a_table_and_writes_json_and_plot(tmp_path: Path) -> None:
    file, plot = tmp_path / "found.json", tmp_path / "plot"
    words = ["simulate", "--scenario", "balancing", "--replicas", "3", "--requests", "1000"]
    ended = CliRunner().invoke(app, [*words, "--json", str(file), "--plot", str(plot)])
    assert ended.exit_code == 0, ended.output
    scenario = json.loads(file.read_text())["results"]["scenarios"]["balancing, 3 replicas"]
    assert set(Policy) <= set(scenario["variants"])
    assert scenario["result"].split()[0] in ended.output
    assert (tmp_path / "plot-balancing-3.svg").exists()
    assert CliRunner().invoke(app, ["simulate", "--scenario", "none"]).exit_code == 2


class Replica:
    """Stands in for a connection pool: answers with the given statuses in turn."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses)

    async def ask(self, request: bytes) -> Answer:  # noqa: ARG002
        return Answer(self.statuses.pop(0), b"")


def test_the_load_generator_tries_a_refused_request_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica("503", "200", "503", "503", "200")
    monkeypatch.setattr(validation, "Connections", lambda _: replica)
    client = validation.BalancedClient(["http://a"], Policy.RANDOM, replace(AT_ONCE, tries=2), 0)
    assert [asyncio.run(client.ask(b"")).status for _ in range(3)] == ["200", "503", "200"]
    assert (client.tries, client.refused) == (5, 3)


def test_the_validation_gives_both_the_same_due_times() -> None:
    client = validation.BalancedClient([], Policy.RANDOM, ONE_TRY, 0)
    due = islice(OpenLoop(client, [], 50.0, Arrivals.POISSON, seed=4).due(), 100)
    gaps = np.fromiter(islice(validation.due_gaps(4), 100), float)
    assert list(due) == pytest.approx(list(np.cumsum(gaps / 50.0)))


def test_a_figure_that_differs_is_named() -> None:
    measured = {"p50 ms": 100.0, "p99 ms": 200.0, "503": 0.2}
    near = {"p50 ms": 110.0, "p99 ms": 180.0, "503": 0.21}
    compared = validation.Compared(2, 1.3, 1, measured, near, 0.5)
    assert compared.misses == []
    assert compared.row()["largest difference"] in ("+10%", "-10%")
    far = replace(compared, simulated={**near, "p99 ms": 120.0, "503": 0.3})
    assert far.misses == ["p99 ms", "503"]
    none = replace(compared, measured={**measured, "503": 0.0}, simulated={**near, "503": 0.004})
    assert none.misses == []
    case = far.row()
    text = pages.validation({"results": {"cases": [case], "missed": ["2 replicas, p99 ms"]}})
    assert "| 2 | 130% | 1 | 100 / 110 | 200 / 120 | 20.0% / 30.0% | +50% | 50% |" in text
    assert "15 %: 2 replicas, p99 ms." in text


def test_nodes_suffice_when_a_zone_is_lost() -> None:
    text = sizing.sizing({"results": {"web_ms": 1.0, "worker_ms": {"fp32": 9.0}}})
    assert "1000 / (1.00 + 9.00) = 100 in fp32" in text
    assert "| nodes, fp32 | 3 | 54 | 2,607 |" in text
    for rate in (1_000, 100_000, 10_000_000):
        nodes = sizing.nodes_for(rate, 3200)
        assert nodes % 3 == 0
        assert rate <= 0.9 * 3200 * nodes * 2 / 3
        assert nodes == 3 or rate > 0.9 * 3200 * (nodes - 3) * 2 / 3

"""Prometheus metrics of one service, in a registry of their own; served at `/metrics`."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from serving.engine import gpu_monitor
from serving.engine.client import Outcome
from serving.engine.memory import Memory, State
from serving.system import cpus

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


PROC = Path("/proc")
WEB = b"serving.cluster.frontend"


class Metrics:
    """All series; durations are in seconds, as Prometheus asks."""

    def __init__(self, shared: bool = False) -> None:
        """`shared`: with other web processes, by files in PROMETHEUS_MULTIPROC_DIR."""
        self.registry = CollectorRegistry()
        self._shared = shared
        self._engine = EngineCollector(shared)
        self.registry.register(self._engine)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, buckets=SECONDS, registry=self.registry)

        self.requests = Counter(
            "serving_requests",
            "Requests answered, by path, HTTP status and error code (ok without an error).",
            ["path", "status", "code"],
            registry=self.registry,
        )
        self.total = histogram("serving_request_seconds", "First byte of a request to its answer.")
        self.decode = histogram("serving_decode_seconds", "Picture file to pixels.")
        self.queue = histogram("serving_queue_seconds", "Waiting for a worker.")
        self.infer = histogram("serving_infer_seconds", "Computation of a batch.")
        self.batch_size = Histogram(
            "serving_batch_size",
            "Pictures computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self.skipped = Counter(
            "serving_skipped",
            "Pictures never computed, because nobody waited for them any more.",
            registry=self.registry,
        )
        self.cancelled = Counter(
            "serving_cancelled", "Requests whose client went away.", registry=self.registry
        )
        self.expired = Counter(
            "serving_expired", "Requests that met their deadline.", registry=self.registry
        )

    def follow(self, memory: Memory) -> None:
        """Reads gauges, and the restarts of workers, from this engine from now on."""
        self._engine.follow(memory)

    def observe_item(self, state: State, outcome: Outcome | None) -> None:
        """One picture that left the engine; a batch counts with its first picture."""
        if outcome is None:
            if state in (State.SKIPPED, State.EXPIRED):
                self.skipped.inc()
            return
        self.queue.observe(outcome.queue_s)
        if outcome.is_batch_leader:
            self.infer.observe(outcome.infer_s)
            self.batch_size.observe(outcome.batch_size)

    def text(self) -> bytes:
        """All series of all web processes, in Prometheus' text format."""
        if not self._shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client's own
        registry.register(self._engine)
        return generate_latest(registry)


class EngineCollector(Collector):
    """What is the same in every web process: the engine's shared memory, and what runs where."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._memory: Memory | None = None
        self._restarts_before = self._out_of_memory_before = 0

    def follow(self, memory: Memory) -> None:
        """The version in service has changed."""
        if self._memory:
            self._restarts_before += self._memory.restarts[0]
            self._out_of_memory_before += sum(self._memory.out_of_memory)
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every scrape."""
        if self._memory is None:
            return
        memory = self._memory
        depth = memory.state.tolist().count(State.QUEUED)
        restarts = self._restarts_before + memory.restarts[0]
        yield GaugeMetricFamily("serving_queue_depth", "Pictures that wait for a worker.", depth)
        yield GaugeMetricFamily(
            "serving_free_slots", "Requests that would still be admitted.", memory.free_slots
        )
        yield GaugeMetricFamily(
            "serving_ready_workers", "Workers that could compute now.", memory.ready_workers[0]
        )
        yield CounterMetricFamily(
            "serving_worker_restarts", "Inference workers that were replaced.", restarts
        )
        yield GaugeMetricFamily(
            "serving_batch_cap",
            "Most pictures computed together now.",
            memory.smallest_cap,
        )
        yield CounterMetricFamily(
            "serving_out_of_memory",
            "Batches that did not fit into a device's memory; each halved a worker's batch cap.",
            self._out_of_memory_before + sum(memory.out_of_memory),
        )
        yield GaugeMetricFamily(
            "serving_web_processes", "Processes that speak HTTP and decode.", memory.layout.frontends
        )
        yield CounterMetricFamily(
            "serving_web_cpu_seconds", "CPU time of the web processes.", web_cpu_seconds(self._shared)
        )
        yield GaugeMetricFamily("serving_cores", "Cores this service may use.", cpus.usable())
        yield from gpu_metrics(memory)


def gpu_metrics(memory: Memory) -> Iterator[Metric]:
    """None on a CPU."""
    seen = gpu_monitor.figures(memory)
    if not seen:
        return
    busy = GaugeMetricFamily(
        "serving_gpu_busy_ratio", "Share of the time in which any kernel ran.", labels=["gpu"]
    )
    used = GaugeMetricFamily(
        "serving_gpu_memory_used_bytes", "Of the whole GPU, whoever uses it.", labels=["gpu"]
    )
    total = GaugeMetricFamily("serving_gpu_memory_bytes", "Of the whole GPU.", labels=["gpu"])
    for one in seen:
        label = [str(one.index)]
        busy.add_metric(label, one.busy_percent / 100)
        used.add_metric(label, one.memory_used_bytes)
        total.add_metric(label, one.memory_total_bytes)
    yield from (busy, used, total)


def web_cpu_seconds(shared: bool, proc: Path = PROC) -> float:
    """CPU time of this web process, or with `shared` of all that its parent has started now.

    A counter that begins anew, lower, when a web process is replaced. Where there is no `/proc`, this
    process counts alone.
    """
    if not shared:
        return time.process_time()
    parent = os.getppid()
    try:
        children = (proc / f"{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return time.process_time()
    return sum(_cpu_seconds(proc / child) for child in children)


def _cpu_seconds(process: Path) -> float:
    """User and system time of one process; 0 unless it is a web process that still runs."""
    try:
        if WEB not in (process / "cmdline").read_bytes().split(b"\0"):
            return 0.0
        numbers = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

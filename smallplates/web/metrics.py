"""Prometheus metrics of one service, in a separate registry; served by `/metrics`.

Every web process counts its own requests. At each scrape `EngineCollector` reads the engines' figures,
which are the same in every web process, from the shared memory.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from smallplates.engine import gpu_monitor
from smallplates.engine.client import ItemResult
from smallplates.engine.memory import Memory, ServiceCounts, State
from smallplates.system import cpus

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

MAX_CLASSES = 100  # of a classifier whose predictions are counted by class: each is a series
MODEL = ("model",)  # label of metrics that are counted per model
WEB = b"smallplates.web.process"
FILE_BYTES = 64 * 1024
ENTRY_BYTES = 32  # of a series besides its name


class CountsFile(MmapedDict):
    """A web process's counts, in a mapped file whose room is reserved before it is used.

    Without room, the kernel would end the process at its first write (SIGBUS). prometheus_client keeps
    the sums in memory, so a sum for which there is no room yet is complete once it can be written.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._positions: dict[str, int] = {}
        self._used = self._capacity = 0
        self._f: Any = None

    def read_value(self, key: str) -> tuple[float, float]:
        """Returns a sum and its time; zeros if there is no room for it."""
        if not self._has_room(key):
            return 0.0, 0.0
        found: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        return found

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Writes a sum, if there is room for it."""
        if self._has_room(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_room(self, key: str) -> bool:
        """Returns whether the file has a series, or room for it; makes the file larger if it can.

        A new file gets its name when it has room: readers need a whole header.
        """
        if key in self._positions or self._used + len(key.encode()) + ENTRY_BYTES <= self._capacity:
            return True
        path = self._path if self._capacity else self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, self._capacity + max(self._capacity, FILE_BYTES))
            path.rename(self._path)
            self.close()  # type: ignore[no-untyped-call]
            super().__init__(str(self._path))  # type: ignore[no-untyped-call]  # maps it
            return True
        return False


values.MmapedDict = CountsFile  # type: ignore[attr-defined, assignment]  # for metrics of several processes


class Metrics:
    """Registry with all series; durations are in seconds, as Prometheus recommends."""

    def __init__(self, shared: bool = False) -> None:
        """`shared` adds up all web processes, using files in PROMETHEUS_MULTIPROC_DIR."""
        self.registry = CollectorRegistry()
        self._shared = shared
        self.engines = EngineCollector(shared)
        self.registry.register(self.engines)

        def counter(name: str, text: str, labels: Sequence[str] = MODEL) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(name, text, MODEL, buckets=buckets, registry=self.registry)

        self.requests = counter(
            "serving_requests",
            "Answered requests by path, HTTP status, error code (ok: no error) and model.",
            ["path", "status", "code", "model"],
        )
        self.total = histogram(
            "serving_request_seconds",
            "Time that the server takes to receive and answer a request, from the end of its headers.",
        )
        for each in (self.requests, self.total):  # every request looks them up: a third of its time
            each.labels = lru_cache(1024)(each.labels)  # type: ignore[method-assign, assignment]
        self.decode = histogram(
            "serving_decode_seconds", "Time that preparing an input takes, such as decoding an image."
        )
        self.queue = histogram("serving_queue_seconds", "Time that an input waits for a worker.")
        self.infer = histogram("serving_infer_seconds", "Time that a worker takes to compute a batch.")
        self.batch_size = histogram(
            "serving_batch_size", "Inputs that a worker computes in one batch.", BATCH_SIZES
        )
        self.skipped = counter(
            "serving_skipped",
            "Inputs that no worker computed because the client disconnected or the deadline passed.",
        )
        self.cancelled = counter(
            "serving_cancelled", "Requests whose client disconnected before the answer."
        )
        self.expired = counter("serving_expired", "Requests that missed their deadline.")
        self.predictions = counter(
            "serving_predictions",
            f"Answers of a classifier of up to {MAX_CLASSES} classes, by their most probable class.",
            ["model", "label"],
        )

    def text(self) -> bytes:
        """Returns all series of all web processes in Prometheus' text format."""
        if not self._shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client's own
        registry.register(self.engines)
        return generate_latest(registry)


class ModelMetrics:
    """The series of one model that each web process counts itself."""

    def __init__(self, metrics: Metrics, model: str, labels: Sequence[str] = ()) -> None:
        """`labels` are the names of its classes, if it has any."""
        self.decode = metrics.decode.labels(model)
        self.skipped = metrics.skipped.labels(model)
        self.cancelled = metrics.cancelled.labels(model)
        self.expired = metrics.expired.labels(model)
        self._queue = metrics.queue.labels(model)
        self._infer = metrics.infer.labels(model)
        self._batch_size = metrics.batch_size.labels(model)
        classes = labels if len(labels) <= MAX_CLASSES else ()
        self._predictions = {label: metrics.predictions.labels(model, label) for label in classes}

    def count_predictions(self, answers: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Counts each answer's best candidate by its class."""
        if not self._predictions:
            return
        for candidates in answers:
            if candidates and (counter := self._predictions.get(candidates[0].get("label", ""))):
                counter.inc()

    def observe_item(self, state: int, result: ItemResult | None) -> None:
        """Counts an item that has left the engine, and its batch if the item is the batch's leader."""
        if result is None:
            if state in (State.SKIPPED, State.EXPIRED):
                self.skipped.inc()
            return
        self._queue.observe(result.started_at - result.queued_at)
        if result.is_batch_leader:
            self._infer.observe(result.finished_at - result.started_at)
            self._batch_size.observe(result.batch_size)


class EngineCollector(Collector):
    """Collects the engines' figures from the shared memory."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._memories: dict[str, Memory] = {}
        self._failed: set[str] = set()
        self._web_processes = 0
        self._counts: ServiceCounts | None = None
        self._ended: dict[str, tuple[int, int]] = {}
        """Counters of the models that are out of service."""

    def follow(self, model: str, memory: Memory, web_processes: int) -> None:
        """Reads a model's figures from this memory from now on; `web_processes` web processes use it."""
        self.withdraw(model, failed=False)
        self._memories[model], self._web_processes = memory, web_processes
        self._counts = memory.counts
        self._ended.pop(model, None)

    def withdraw(self, model: str, failed: bool) -> None:
        """Stops reading a model's memory, but keeps the values of its counters.

        A `failed` model is reported with 0 ready workers.
        """
        if before := self._memories.pop(model, None):
            self._ended[model] = before.counters
        (self._failed.add if failed else self._failed.discard)(model)

    def collect(self) -> Iterator[Metric]:
        """Yields the engines' metrics; called by the registry at each scrape."""
        if not self._memories and not self._failed and not self._counts:
            return
        gauge = partial(GaugeMetricFamily, labels=MODEL)
        counter = partial(CounterMetricFamily, labels=MODEL)
        depth = gauge("serving_queue_depth", "Inputs that wait for a worker.")
        free = gauge("serving_free_slots", "Inputs that the server can still accept.")
        ready = gauge("serving_ready_workers", "Workers that can compute batches now.")
        asleep = gauge("serving_model_asleep", "1 while a model has no workers until the next request.")
        restarts = counter("serving_worker_restarts", "Workers that died and that the server replaced.")
        cap = gauge("serving_batch_cap", "Largest batch that every worker accepts now.")
        full = counter(
            "serving_out_of_memory",
            "Batches that did not fit into a device's memory; each one halved a worker's batch cap.",
        )
        for model, memory in self._memories.items():
            for family, value in (
                (depth, memory.state.tolist().count(State.QUEUED)),
                (free, memory.free_slots),
                (ready, memory.serving_workers[0]),
                (asleep, memory.is_asleep[0]),
                (cap, memory.smallest_cap),
            ):
                family.add_metric([model], value)
        counters = self._ended | {model: memory.counters for model, memory in self._memories.items()}
        for model, (died, refused) in counters.items():
            restarts.add_metric([model], died)
            full.add_metric([model], refused)
        for model in self._failed:
            ready.add_metric([model], 0)
        yield from (depth, free, ready, asleep, restarts, cap, full)
        yield GaugeMetricFamily(
            "serving_web_processes",
            "Web processes: they speak HTTP and prepare inputs.",
            self._web_processes,
        )
        yield CounterMetricFamily(
            "serving_web_cpu_seconds",
            "CPU time that the web processes have used.",
            web_cpu_seconds(self._counts if self._shared else None),
        )
        cores = cpus.usable()
        yield GaugeMetricFamily("serving_cores", "CPU cores that this service can use.", cores)
        yield from gpu_metrics(self._memories.values())


def gpu_metrics(memories: Iterable[Memory]) -> Iterator[Metric]:
    """Yields the metrics of all GPUs in use; none on a CPU."""
    seen = {one.index: one for memory in memories for one in gpu_monitor.figures(memory)}
    if not seen:
        return
    gauge = partial(GaugeMetricFamily, labels=["gpu"])
    busy = gauge("serving_gpu_busy_ratio", "Share of the time in which a kernel ran on the GPU.")
    used = gauge("serving_gpu_memory_used_bytes", "GPU memory in use, by all programs together.")
    total = gauge("serving_gpu_memory_bytes", "GPU memory in total.")
    for one in seen.values():
        label = [str(one.index)]
        busy.add_metric(label, one.busy_percent / 100)
        used.add_metric(label, one.memory_used_bytes)
        total.add_metric(label, one.memory_total_bytes)
    yield from (busy, used, total)


def web_cpu_seconds(counts: ServiceCounts | None) -> float:
    """Returns the CPU seconds of this process or, with `counts`, of all web processes so far.

    Without `/proc` it covers only this process.
    """
    parent = os.getppid()
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split() if counts else []
    except OSError:
        children = []
    if counts is None or not children:
        return time.process_time()
    ended, most = counts.web_cpu_s
    # a process that has just ended may not be among the ended ones yet
    counts.web_cpu_s[1] = max(most, ended + sum(map(_cpu_seconds, map(int, children))))
    return counts.web_cpu_s[1]


def _cpu_seconds(process: int) -> float:
    """Returns a process's user and system time; 0 unless it is a running web process."""
    try:
        is_web = WEB in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return cpus.used_s(process) if is_web else 0.0
    except OSError:
        return 0.0

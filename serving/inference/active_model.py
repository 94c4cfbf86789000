"""One model version in service, and the results of its engine; `service.py` works with both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from serving.description import ModelDescription
from serving.engine import gpu_monitor
from serving.engine.client import EngineClient, Outcome
from serving.engine.provider import EngineHandle
from serving.engine.statistics import BatchTotals, Timings, Totals
from serving.errors import InvalidTensorError
from serving.metrics import Metrics
from serving.settings import Settings
from serving.system import cpus
from serving.tasks.base import Candidate, Fields, Prepared, Task
from serving.tasks.registry import task_of
from serving.tensors import Array, Signature

SLOW = 750.0  # inputs a second; an event loop decodes more images than that of 400x300 pixels


class Input(NamedTuple):
    """One input of a request; finding its fields in the body may be work for a thread."""

    size: int
    """Bytes that the client sent."""

    read: Callable[[], Fields]
    """Returns the task's fields. Raises RequestError."""


@dataclass(frozen=True)
class ModelMetadata:
    """The model in service, as protocols describe it to their clients."""

    description: ModelDescription
    version: str
    task: Task
    signatures: tuple[Signature, ...]
    backend: str
    """Library and version, such as `onnxruntime 1.31.1`."""

    on_gpu: bool
    instances: int
    ready_instances: int
    batch_cap: int
    """Largest batch that warm-up chose."""


class ActiveModel:
    """A model version in service: its description, its task, its engine."""

    def __init__(self, handle: EngineHandle, settings: Settings, metrics: Metrics) -> None:
        self.handle = handle
        self.description = handle.model.description
        self.signatures = handle.fds.layout.signatures
        self._largest_body = settings.max_body_bytes
        self.task = task_of(handle.model, settings, handle.profile, self.signatures)
        self.client = EngineClient(handle.fds, metrics.observe_item)
        cores, wanted = cpus.usable(), throughput(handle)
        on_gpu = handle.profile["info"]["device"] != "cpu"
        if not on_gpu:  # the web processes and the workers have the same cores
            wanted = 1 / (1 / wanted + 1 / (SLOW * cores))
        self.web_processes: int = handle.profile["web_processes"]
        self.prepares_on_event_loop: bool = wanted <= SLOW * self.web_processes or (
            on_gpu and self.web_processes >= cores - handle.fds.layout.workers
        )
        """Whether the event loop prepares cheap inputs: where one thread a web process keeps all workers
        busy, and beside a GPU where every core has a web process already."""

    def preprocess(self, fields: Fields, hint: object | None = None) -> tuple[Prepared, float]:
        """Makes the engine's items of an input; returns the seconds taken, too."""
        started = time.perf_counter()
        return self.task.preprocess(fields, hint), time.perf_counter() - started

    def metadata(self) -> ModelMetadata:
        """Returns the description that protocols give their clients."""
        profile = self.handle.profile
        return ModelMetadata(
            description=self.description,
            version=self.description.version,
            task=self.task,
            signatures=self.signatures,
            backend=profile["info"]["backend"],
            on_gpu=profile["info"]["device"] != "cpu",
            instances=self.handle.fds.layout.workers,
            ready_instances=self.client.memory.ready_workers[0],
            batch_cap=profile["batch_cap"],
        )

    def describe(self) -> dict[str, Any]:
        """Returns the content of `GET /model`."""
        fields = {"name", "version", "description", "task", "labels", "image"}
        fields |= {"thresholds", "accuracy"}
        if self.description.text:
            fields.add("text")
        profile, memory, task = self.handle.profile, self.client.memory, self.task
        return {
            **self.description.model_dump(include=fields),
            "title": self.description.title,
            "request_schema": None if task.form is None else task.request_schema,
            "answer_schema": None if task.form is None else task.answer_schema,
            "example": task.json_example,
            "limits": {"request_bytes": self._largest_body, **task.limits},
            **profile["info"],
            "instances": memory.ready_workers[0],
            "web_processes": self.web_processes,
            "web_processes_reason": profile["web_processes_reason"],
            "max_batch_size": memory.smallest_cap or profile["batch_cap"],
            "batch_ms": profile["batch_ms"],
            "idle_threads": profile["idle_threads"],
            "gpus": [asdict(figures) for figures in gpu_monitor.figures(memory)],
        }

    def statistics(self, signature: int) -> tuple[Totals, dict[int, BatchTotals]]:
        """Returns totals over all requests, and by batch size, since the version is in service."""
        counted = self.client.statistics
        return counted.totals(signature), counted.by_batch_size(signature)


@dataclass(slots=True)
class Predictions:
    """The answers to the inputs of a request, in the request's order."""

    task: Task
    """Of the version that computed them."""

    tops: list[list[Candidate]]
    """The candidates of each answer, the best first."""

    timings: Timings


@dataclass(slots=True)
class Tensors:
    """The outputs of a request in tensors."""

    signature: Signature
    arrays: list[Array]
    """[items, *shape] for each output of the signature."""

    labels: Sequence[str]
    """Classes of the version that computed them, if it classifies."""

    timings: Timings

    def check_finite(self) -> None:
        """Raises InvalidTensorError for infinities and NaN, which JSON cannot carry."""
        for spec, array in zip(self.signature.outputs, self.arrays, strict=True):
            finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            if not finite.all():
                raise InvalidTensorError(f"the {spec.name} of element {finite.argmin()} is not finite")


@dataclass(slots=True)
class InferenceResult:
    """The engine's outcomes for one request."""

    model: ActiveModel
    signature: int
    tops: list[list[Candidate]]
    """The candidates of each input of a task; empty for tensors."""

    outcomes: list[Outcome]
    admitted_at: float
    """time.monotonic() when the slots were acquired."""

    submitted_at: float
    """time.monotonic() when the inputs were ready."""

    truncated: bool = False

    def timings(self) -> Timings:
        """Computes the request's timings, and adds them to the statistics."""
        started = min(outcome.started_at for outcome in self.outcomes)
        finished = max(outcome.finished_at for outcome in self.outcomes)
        sizes = [outcome.batch_size for outcome in self.outcomes]
        timings = Timings(
            decode_s=self.submitted_at - self.admitted_at,
            queue_s=started - self.submitted_at,
            infer_s=finished - started,
            output_s=time.monotonic() - finished,
            admitted_at=self.admitted_at,
            batch_size=max(sizes),
            model=self.model.description.name,
            version=self.model.description.version,
            truncated=self.truncated,
        )
        self.model.client.statistics.succeeded(self.signature, timings, sizes)
        return timings


def throughput(handle: EngineHandle) -> float:
    """Returns the inputs a second that all workers can compute, as measured at warm-up."""
    batch_ms: dict[str, float] = handle.profile["batch_ms"]
    fastest = max(int(size) / ms for size, ms in batch_ms.items())
    return 1000 * fastest * handle.fds.layout.workers

"""Autoscaling by the workers' load and by the queue, which Serve cannot see from outside.

A replica reports both (`Load`), and Serve's controller decides (`follow_load`).
"""

import time
from dataclasses import dataclass
from typing import Any

from smallplates.web.inference.served_model import ServedModel
from smallplates.web.inference.service import InferenceService

BUSY_SHARE = 0.7
"""Share of their time in which the workers of each replica should compute."""

QUEUE_S = 0.1
"""Mean wait of a request for a worker, in seconds, from which there are too few replicas."""


@dataclass
class Figures:
    """What the engine of one model has done since its start, or in a time."""

    infer_ns: int = 0
    queue_ns: int = 0
    requests: int = 0

    @classmethod
    def of(cls, model: ServedModel) -> "Figures":
        """Adds up a model's statistics."""
        totals = [model.statistics(index) for index in range(len(model.signatures))]
        return cls(
            sum(batch.infer_ns for _, by_size in totals for batch in by_size.values()),
            sum(total.queue_ns for total, _ in totals),
            sum(total.successes for total, _ in totals),
        )

    def __sub__(self, before: "Figures") -> "Figures":
        """Returns the difference, at least 0: another version's engine starts at 0."""
        return Figures(
            max(0, self.infer_ns - before.infer_ns),
            max(0, self.queue_ns - before.queue_ns),
            max(0, self.requests - before.requests),
        )


class Load:
    """Load of one replica between two calls of `since_last_time`."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._time = time.monotonic()
        self._before: dict[str, Figures] = {}

    def since_last_time(self) -> dict[str, float]:
        """Returns `busy` and `queue_s` for the models in service.

        `busy` is the busy share of the workers of the busiest model, `queue_s` a request's mean wait in
        seconds, whatever its model. Both are 0 while nothing is computed.
        """
        models = self._service.models
        now, figures = time.monotonic(), {name: Figures.of(model) for name, model in models.items()}
        seconds = max(now - self._time, 1e-9)
        growth = {name: total - self._before.get(name, Figures()) for name, total in figures.items()}
        self._time, self._before = now, figures
        shares = [
            growth[name].infer_ns / 1e9 / max(1, model.client.memory.serving_workers[0]) / seconds
            for name, model in models.items()
        ]
        requests = sum(figure.requests for figure in growth.values())
        queue_ns = sum(figure.queue_ns for figure in growth.values())
        return {"busy": max(shares, default=0.0), "queue_s": queue_ns / 1e9 / max(requests, 1)}


def follow_load(context: Any) -> tuple[float, dict[str, Any]]:
    """Returns the wanted number of replicas for an `AutoscalingContext`, and no state.

    Serve's own delays, factors and bounds apply to it.
    """
    metrics = context.aggregated_metrics or {}
    busy, queue_s = metrics.get("busy", {}).values(), metrics.get("queue_s", {}).values()
    if not busy:
        return context.target_num_replicas, {}
    wanted = max(
        sum(busy) / BUSY_SHARE, context.current_num_replicas * sum(queue_s) / len(queue_s) / QUEUE_S
    )
    return wanted, {}

"""Autoscaling by the workers' load and by the queue, which Serve cannot see from outside.

A replica reports both (`Load`), and Serve's controller decides (`follow_load`).
"""

import time
from typing import Any

from serving.inference.service import InferenceService

BUSY_SHARE = 0.7
"""Share of their time in which the workers of each replica should compute."""

QUEUE_S = 0.1
"""Mean wait of a request for a worker, in seconds, from which there are too few replicas."""


class Load:
    """Load of one replica between two calls of `since_last_time`."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._before = (time.monotonic(), 0, 0, 0)

    def since_last_time(self) -> dict[str, float]:
        """Returns `busy`, the workers' busy share, and `queue_s`, a request's mean wait in seconds.

        Both are 0 while nothing is computed. Raises UnavailableError before the model is loaded.
        """
        model = self._service.active
        totals = [model.statistics(index) for index in range(len(model.signatures))]
        now = (
            time.monotonic(),
            sum(batch.infer_ns for _, by_size in totals for batch in by_size.values()),
            sum(total.queue_ns for total, _ in totals),
            sum(total.successes for total, _ in totals),
        )
        seconds, infer_ns, queue_ns, requests = (a - b for a, b in zip(now, self._before, strict=True))
        self._before = now
        workers = max(1, model.ready_workers)
        return {
            "busy": max(0.0, infer_ns / 1e9 / workers / max(seconds, 1e-9)),
            "queue_s": max(0.0, queue_ns / 1e9 / max(requests, 1)),
        }


def follow_load(context: Any) -> tuple[float, dict[str, Any]]:
    """Returns the wanted number of replicas for an `AutoscalingContext`, and no state.

    Serve's own delays, factors and bounds apply to it.
    """
    reported = context.aggregated_metrics or {}
    busy, queue_s = reported.get("busy", {}).values(), reported.get("queue_s", {}).values()
    if not busy:
        return context.target_num_replicas, {}
    wanted = max(
        sum(busy) / BUSY_SHARE, context.current_num_replicas * sum(queue_s) / len(queue_s) / QUEUE_S
    )
    return wanted, {}

"""Prometheus metrics of one service, in a registry of their own; served at `/metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """All series; durations are in seconds, as Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

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
        self.queue = histogram("serving_queue_seconds", "Waiting for an instance.")
        self.infer = histogram("serving_infer_seconds", "Computation of a batch.")
        self.batch_size = Histogram(
            "serving_batch_size",
            "Pictures computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "serving_queue_depth", "Pictures that wait for an instance.", registry=self.registry
        )
        self.free_slots = Gauge(
            "serving_free_slots", "Requests that would still be admitted.", registry=self.registry
        )
        self.worker_restarts = Counter(
            "serving_worker_restarts",
            "Inference workers that were replaced.",
            registry=self.registry,
        )
        self.cancelled = Counter(
            "serving_cancelled", "Requests whose client went away.", registry=self.registry
        )
        self.expired = Counter(
            "serving_expired", "Requests that met their deadline.", registry=self.registry
        )

    def observe_stages(self, decode_s: float, queue_s: float, infer_s: float) -> None:
        """One answered picture."""
        self.decode.observe(decode_s)
        self.queue.observe(queue_s)
        self.infer.observe(infer_s)
        self.batch_size.observe(1)

"""Reads Prometheus' text format; the only module that needs prometheus-client."""

from smallplates.client.answers import Answer
from smallplates.client.results import Sample


def read(answer: Answer) -> list[Sample]:
    """Reads values of `GET /metrics`. Raises ValueError, and ImportError without prometheus-client."""
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(answer.content.decode()))
    return [Sample(s.name, dict(s.labels), float(s.value)) for f in families for s in f.samples]

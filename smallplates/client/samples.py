"""Reads Prometheus' text format; the only module that needs prometheus-client."""

from smallplates.client.answers import Answer, error, undocumented
from smallplates.client.results import Sample


def read(answer: Answer) -> list[Sample]:
    """Reads the answer of `GET /metrics`.

    Raises ServingClientError, and ImportError without prometheus-client.
    """
    from prometheus_client.parser import text_string_to_metric_families

    if answer.status != 200:
        raise error(answer)
    try:
        families = list(text_string_to_metric_families(answer.content.decode()))
    except ValueError as problem:
        raise undocumented(answer) from problem
    return [Sample(s.name, dict(s.labels), float(s.value)) for f in families for s in f.samples]

"""What a service of ours says of itself: `/model`, and `/metrics` before and after a load."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

STAGES = {
    "decode": "serving_decode_seconds",
    "queue": "serving_queue_seconds",
    "infer": "serving_infer_seconds",
    "total": "serving_request_seconds",
}


def get(url: str) -> requests.Response | None:
    """The answer 200, or None from a server that has no such path; never through a proxy."""
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(url, timeout=10)
    return response if response.ok else None


def describe(base: str) -> dict[str, Any] | None:
    """What `/model` answers; None from another server."""
    response = get(f"{base}/model")
    answer: dict[str, Any] | None = response.json() if response else None
    return answer


@dataclass(frozen=True)
class Scrape:
    """All samples of one look at `/metrics`, by name and labels."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, base: str) -> "Scrape | None":
        """None from a server without `/metrics`."""
        response = get(f"{base}/metrics")
        if response is None:
            return None
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(response.text)
                for sample in family.samples
            }
        )

    def since(self, before: "Scrape") -> "Scrape":
        """What has come since then."""
        return Scrape({key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()})

    def mean_ms(self) -> dict[str, float]:
        """Mean of each stage in ms; of those that had anything to do."""
        means = {}
        for stage, name in STAGES.items():
            count = self.samples.get((f"{name}_count", ()), 0.0)
            if count:
                means[stage] = round(1000 * self.samples[f"{name}_sum", ()] / count, 3)
        return means

    def mean_batch(self) -> float | None:
        """Pictures a batch; None where none was computed."""
        batches = self.samples.get(("serving_batch_size_count", ()), 0.0)
        return round(self.samples["serving_batch_size_sum", ()] / batches, 3) if batches else None

    def batch_sizes(self) -> dict[str, int]:
        """Batches by size: up to and including each bound of the histogram, and above the one before."""
        found, below = {}, 0.0
        for bound, cumulative in sorted(self._buckets("serving_batch_size_bucket")):
            if cumulative > below:
                found[f"{bound:g}"] = round(cumulative - below)
            below = cumulative
        return found

    def _buckets(self, name: str) -> Iterator[tuple[float, float]]:
        for (sample, labels), value in self.samples.items():
            if sample == name:
                yield float(dict(labels)["le"]), value

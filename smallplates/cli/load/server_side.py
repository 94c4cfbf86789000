"""Figures that our service reports about itself: `/model`, and `/metrics` before and after a load."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from smallplates.cli.load.payloads import Served
from smallplates.errors import ConfigurationError

STAGES = {
    "decode": "serving_decode_seconds",
    "queue": "serving_queue_seconds",
    "infer": "serving_infer_seconds",
    "total": "serving_request_seconds",
}


class UnreachableError(ConfigurationError, OSError):
    """Nothing answers at an address, or not in HTTP."""


def get(url: str) -> requests.Response | None:
    """Returns the body of an answer 200, None for other statuses; never asks through a proxy.

    Raises UnreachableError.
    """
    try:
        with requests.Session() as session:
            session.trust_env = False
            response = session.get(url, timeout=10)
    except (requests.RequestException, UnicodeError) as error:
        cause: BaseException = error
        while cause.__context__:  # the libraries' own words are long
            cause = cause.__context__
        why = " ".join(str(cause).split()) or type(cause).__name__
        raise UnreachableError(f"{url} cannot be read: {why}") from error
    return response if response.ok else None


def describe(base: str) -> dict[str, Any] | None:
    """Returns the answer of `/model`; None from another server."""
    response = get(f"{base}/model")
    try:
        answer = response.json() if response else None
    except ValueError:  # a page, for example
        answer = None
    return answer if isinstance(answer, dict) else None


def served(base: str) -> Served | None:
    """Returns the server's default model with its documented examples; None from another server."""
    model, documented = describe(base) or {}, get(f"{base}/openapi.json")
    if "name" not in model or documented is None:
        return None
    bodies = {}
    for path, methods in documented.json()["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        body = content.get("application/json", {})
        values = [each["value"] for each in body.get("examples", {}).values()]  # the default model first
        if "example" in body or values:
            bodies[path] = body.get("example") or values[0]
    fields = model["example"] if isinstance(model["example"], dict) else {}
    is_photo = "image" in fields
    return Served(model["name"], bodies, fields.get("image" if is_photo else "text"), is_photo)


@dataclass(frozen=True)
class Scrape:
    """Samples of `/metrics` at one time, by name and labels; those of all models are added up."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, base: str) -> "Scrape | None":
        """Reads `/metrics`; returns None from a server without it."""
        response = get(f"{base}/metrics")
        if response is None:
            return None
        samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        try:
            families = [*text_string_to_metric_families(response.text)]
        except ValueError:  # a page, for example
            return None
        for family in families:
            for sample in family.samples:
                labels = sorted(item for item in sample.labels.items() if item[0] != "model")
                samples[sample.name, tuple(labels)] += sample.value
        return cls(samples)

    def since(self, before: "Scrape") -> "Scrape":
        """Returns the differences to an earlier scrape."""
        return Scrape({key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()})

    def mean_ms(self) -> dict[str, float]:
        """Returns the mean of each stage in ms; omits stages that were never reached."""
        means = {}
        for stage, name in STAGES.items():
            count = self.samples.get((f"{name}_count", ()), 0.0)
            if count:
                means[stage] = round(1000 * self.samples[f"{name}_sum", ()] / count, 3)
        return means

    def mean_batch(self) -> float | None:
        """Returns images per batch; None when no batch was computed."""
        batches = self.samples.get(("serving_batch_size_count", ()), 0.0)
        return round(self.samples["serving_batch_size_sum", ()] / batches, 3) if batches else None

    def batch_sizes(self) -> dict[str, int]:
        """Returns the number of batches by upper bound of the histogram's buckets."""
        counts, below = {}, 0.0
        for bound, cumulative in sorted(self._buckets("serving_batch_size_bucket")):
            if cumulative > below:
                counts[f"{bound:g}"] = round(cumulative - below)
            below = cumulative
        return counts

    def _buckets(self, name: str) -> Iterator[tuple[float, float]]:
        for (sample, labels), value in self.samples.items():
            if sample == name:
                yield float(dict(labels)["le"]), value

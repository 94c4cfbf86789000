"""Figures that our service reports about itself: `/model`, and `/metrics` before and after a load."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from prometheus_client.parser import text_string_to_metric_families

from smallplates.cli.load.payloads import Requests
from smallplates.errors import ConfigurationError, in_one_line

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
        raise UnreachableError(f"{url} cannot be read: {in_one_line(cause)}") from error
    return response if response.ok else None


def get_object(url: str) -> dict[str, Any]:
    """Returns the JSON object at an address; an empty one from a server without it."""
    response = get(url)
    try:
        content = response.json() if response else None
    except ValueError:  # a page, for example
        content = None
    return content if isinstance(content, dict) else {}


def describe(base: str, model: str | None = None) -> dict[str, Any]:
    """Returns the answer of `/model`, of the default model without a name; empty from another server."""
    return get_object(f"{base}/model" if model is None else f"{base}/model/{quote(model, safe='')}")


def requests_of(base: str, model: str | None) -> Requests | None:
    """Returns what builds a model's requests, of the default model without a name.

    None for a server that does not describe its model. Raises ConfigurationError for an unknown name.
    """
    about = describe(base, model)
    if (name := model or about.get("name")) is None:
        return None
    inputs = get_object(f"{base}/v2/models/{quote(name, safe='')}").get("inputs", ())
    if not (about or inputs):
        raise ConfigurationError(f"the server does not describe a model {name}")
    return Requests(
        name,
        about.get("example"),
        list((about.get("request_schema") or {}).get("properties", ())),
        inputs,
        is_batched=about.get("batched", True) or about["example"] is not None,
        predict_path="/predict" if model is None else f"/predict/{quote(model, safe='')}",
    )


@dataclass(frozen=True)
class Scrape:
    """Samples of `/metrics` at one time, by name and the labels except `model`."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    @classmethod
    def of(cls, base: str, model: str | None = None) -> "Scrape | None":
        """Reads `/metrics`, of all models together without a name; None from a server without it."""
        response = get(f"{base}/metrics")
        if response is None:
            return None
        try:
            families = text_string_to_metric_families(response.text)
            every = [sample for family in families for sample in family.samples]
        except ValueError:  # a page, for example
            return None
        own = [sample for sample in every if model and sample.labels.get("model") == model]
        samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        for sample in own or every:  # another name of a model has no figures of its own
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
        buckets = [
            (float(dict(labels)["le"]), count)
            for (name, labels), count in self.samples.items()
            if name == "serving_batch_size_bucket"
        ]
        for bound, cumulative in sorted(buckets):
            if cumulative > below:
                counts[f"{bound:g}"] = round(cumulative - below)
            below = cumulative
        return counts

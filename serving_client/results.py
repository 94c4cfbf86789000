"""What the clients return."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from serving_client.errors import ServingClientError
from serving_client.photos import Photo

STAGE = re.compile(r"\s*([\w-]+)\s*;\s*dur=([0-9.]+)\s*")


@dataclass(frozen=True)
class Score:
    """One class and its probability, 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Timing:
    """Where the time went in the service, in ms; None: it did not say."""

    decode_ms: float | None = None
    queue_ms: float | None = None
    infer_ms: float | None = None
    total_ms: float | None = None

    @classmethod
    def parse(cls, header: str) -> "Timing":
        """Reads Server-Timing, `decode;dur=1.2, queue;dur=0.4`; what it does not know is skipped."""
        found = {m[1]: m[2] for part in header.split(",") if (m := STAGE.fullmatch(part))}

        def ms(name: str) -> float | None:
            try:
                return float(found[name])
            except (KeyError, ValueError):
                return None

        return cls(ms("decode"), ms("queue"), ms("infer"), ms("total"))


@dataclass(frozen=True)
class Prediction:
    """The answer for one photo."""

    label: str
    """The most probable class."""

    probability: float
    """Its probability, 0 to 1."""

    top: tuple[Score, ...]
    """The `top_k` most probable classes, best first; only the best one where no `top_k` was asked."""

    timing: Timing
    request_id: str
    """As it stands in the service's log."""

    latency_s: float = 0.0
    """Seconds from the call to the answer, all tries and pauses together."""

    tries: int = 1
    """How many times the request was sent."""

    body: Mapping[str, Any] = field(default_factory=dict, repr=False)  # Any: JSON
    """The answer's JSON; of any protocol, in the shape of the native one."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The answer's headers, with names in lower case."""

    def after(self, latency_s: float, tries: int) -> "Prediction":
        """The same, with what only the caller knows."""
        return replace(self, latency_s=latency_s, tries=tries)


@dataclass(frozen=True)
class BatchItem:
    """One photo of `predict_many`: either its prediction or its error."""

    index: int
    """Place in what was given, from 0."""

    photo: Photo
    """As it was given."""

    prediction: Prediction | None
    error: ServingClientError | None


@dataclass(frozen=True)
class Model:
    """What is served; the service may be older or newer than this client."""

    name: str
    version: str
    labels: tuple[str, ...]
    body: Mapping[str, Any]  # Any: JSON
    """All that `GET /model` says; of Triton, what `model.json` says, with backend and device."""


@dataclass(frozen=True)
class Readiness:
    """Whether photos can be classified now; true or false by itself."""

    ready: bool
    detail: str
    """The reason why not."""

    def __bool__(self) -> bool:
        """`if client.ready():`."""
        return self.ready


class Sample(NamedTuple):
    """One value of `GET /metrics`."""

    name: str
    labels: Mapping[str, str]
    value: float

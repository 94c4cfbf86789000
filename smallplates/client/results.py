"""Results that the clients return."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smallplates.client.errors import ServingClientError
from smallplates.client.photos import Photo

STAGE = re.compile(r"\s*([\w-]+)\s*;\s*dur=([0-9.]+)\s*")


@dataclass(frozen=True)
class Score:
    """Class and its probability, from 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Timing:
    """Time spent in the service, in ms; None for a stage that it did not report."""

    decode_ms: float | None = None
    queue_ms: float | None = None
    infer_ms: float | None = None
    total_ms: float | None = None

    @classmethod
    def parse(cls, header: str) -> "Timing":
        """Parses Server-Timing, `decode;dur=1.2, queue;dur=0.4`; skips unknown stages."""
        stages = {m[1]: m[2] for part in header.split(",") if (m := STAGE.fullmatch(part))}

        def ms(name: str) -> float | None:
            try:
                return float(stages[name])
            except (KeyError, ValueError):
                return None

        return cls(ms("decode"), ms("queue"), ms("infer"), ms("total"))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every answer of the model has."""

    timing: Timing
    request_id: str
    """Request id, as it is in the service's log."""

    latency_s: float = 0.0
    """Seconds from the call to the answer, all tries and pauses together."""

    tries: int = 1
    """Number of times the request was sent."""

    body: Any = field(default_factory=dict, repr=False)
    """JSON of the answer; with any protocol in the shape of the native one."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of the answer, with names in lower case."""


@dataclass(frozen=True)
class Prediction(Result):
    """Class of one photo or text."""

    label: str
    """Most probable class."""

    probability: float
    """Probability of `label`, from 0 to 1."""

    top: tuple[Score, ...]
    """Most probable classes, best first: `top_k` of them, or one if `top_k` was not given."""


@dataclass(frozen=True)
class Span:
    """Part of a context that answers a question."""

    answer: str
    """Its text; empty: the context has no answer."""

    score: float
    """From 0 to 1; more where the same text stands at several places, whose scores are added up."""

    start: int
    """Offset of its first character in the context."""

    end: int
    """Offset behind its last character."""


@dataclass(frozen=True)
class QuestionAnswer(Result, Span):
    """Answer to one question."""

    top: tuple[Span, ...]
    """Best answers, best first: up to `top_k` of them, or one if `top_k` was not given."""


@dataclass(frozen=True)
class Embeddings(Result):
    """Vectors of texts."""

    vectors: list[list[float]]
    """Vector of each text, in the texts' order; all have the same length."""


@dataclass(frozen=True)
class Rank:
    """One of the texts that were ranked."""

    index: int
    """Place in the given texts, from 0."""

    score: float
    """From 0 to 1; with `raw_scores` of any size."""

    text: str


@dataclass(frozen=True)
class Ranking(Result):
    """Texts, sorted by how well they fit a query."""

    ranking: tuple[Rank, ...]
    """Best first; all texts, or as many as `top_k`."""


@dataclass(frozen=True)
class BatchItem:
    """Result of `predict_many` for one photo: either its prediction or its error."""

    index: int
    """Position among the given photos, from 0."""

    photo: Photo
    """Photo as it was given."""

    prediction: Prediction | None
    error: ServingClientError | None


@dataclass(frozen=True)
class Model:
    """Served model; the service may be older or newer than this client."""

    name: str
    version: str
    labels: tuple[str, ...]
    body: Mapping[str, Any]  # Any: JSON
    """Answer of `GET /model`; from Triton, the content of `model.json`, with backend and device."""


@dataclass(frozen=True)
class Readiness:
    """Readiness of the service; usable as a bool."""

    ready: bool
    detail: str
    """Reason when not ready, else empty."""

    def __bool__(self) -> bool:
        """Allows `if client.ready():`."""
        return self.ready


class Sample(NamedTuple):
    """Value of `GET /metrics`."""

    name: str
    labels: Mapping[str, str]
    value: float

"""One model version in service, and what its engine gives back; `classifier.py` works with both."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.engine.client import EngineClient, Outcome
from serving.engine.memory import Signature
from serving.engine.provider import EngineHandle
from serving.engine.statistics import Timings
from serving.errors import InvalidTensorError
from serving.metrics import Metrics
from serving.settings import Settings
from serving.system import cpus
from serving.tasks.image.classification import Score
from serving.tasks.image.decode import ImageDecoder

SLOW = 750.0  # pictures a second; an event loop decodes more than that of 400x300 pixels


class ActiveModel:
    """One model version in service: its description, its image pipeline, its engine."""

    def __init__(self, handle: EngineHandle, settings: Settings, metrics: Metrics) -> None:
        self.handle = handle
        self.labels = handle.model.labels
        self.decoder = ImageDecoder(handle.model.description.image, settings.max_image_pixels)
        self.client = EngineClient(handle.fds, metrics.observe_item)
        on_gpu, frontends = handle.profile["info"]["device"] != "cpu", handle.fds.layout.frontends
        spare = cpus.usable() - handle.fds.layout.workers
        self.decodes_at_once = throughput(handle) <= SLOW * frontends or (on_gpu and frontends >= spare)
        """Whether the event loop decodes small pictures itself.

        It does where one thread of each web process can decode all that the workers can compute; and
        beside a GPU where every core has a web process, so that a thread more would find none.
        """

    def decode(self, read: Callable[[], bytes]) -> tuple[NDArray[np.uint8], float]:
        """Pixels, and the seconds that took; on a decoding thread."""
        started = time.perf_counter()
        return self.decoder.decode(read()), time.perf_counter() - started


@dataclass(slots=True)
class Prediction:
    """The best classes, most probable first, and where the time went."""

    top: list[Score]
    stages: Timings


@dataclass(slots=True)
class Predictions:
    """Of the pictures of one request, in their order."""

    tops: list[list[Score]]
    stages: Timings


@dataclass(slots=True)
class Logits:
    """Of the tensors of one request, in their order."""

    rows: NDArray[np.float32]
    """[tensors, classes]."""

    labels: list[str]
    """Of the version that computed them, in the order of a row."""

    stages: Timings

    def check_finite(self) -> None:
        """For answers that have no other numbers, as JSON. Raises InvalidTensorError."""
        finite = np.isfinite(self.rows).all(axis=1)
        if not finite.all():
            raise InvalidTensorError(f"the logits of element {finite.argmin()} are not finite")


@dataclass(slots=True)
class InferenceResult:
    """What came back from the engine for one request."""

    served: ActiveModel
    kind: Signature
    outcomes: list[Outcome]
    began: float
    """time.monotonic() at admission."""

    submitted: float
    """And when the inputs were ready."""

    def over(self) -> Timings:
        """The answer is ready: where its time went, which is counted."""
        started = min(outcome.started_at for outcome in self.outcomes)
        finished = max(outcome.finished_at for outcome in self.outcomes)
        stages = Timings(
            decode_s=self.submitted - self.began,
            queue_s=started - self.submitted,
            infer_s=finished - started,
            output_s=time.monotonic() - finished,
        )
        sizes = [outcome.batch_size for outcome in self.outcomes]
        self.served.client.statistics.succeeded(self.kind, stages, sizes)
        return stages


def throughput(handle: EngineHandle) -> float:
    """Pictures a second that all workers can compute, by what was measured at warm-up."""
    batch_ms: dict[str, float] = handle.profile["batch_ms"]
    fastest = max(int(size) / ms for size, ms in batch_ms.items())
    return 1000 * fastest * handle.fds.layout.workers

"""Service whose workers sleep: `python -m serving benchmarks.sleeping`.

A batch of any size takes BENCHMARK_SLEEP_MS milliseconds and hardly any CPU time, so that a machine with
few cores can serve as many workers as one with many. `scale` and `simulate --validate` run it.
"""

import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.backends.base import BackendInfo
from serving.model import Model
from serving.settings import Settings

BACKEND = "benchmarks.sleeping:SleepingBackend"


class SleepingBackend:
    """Implements `serving.backends.base.Backend` without a network; every logit is 0."""

    def load(
        self,
        model: Model,
        settings: Settings,  # noqa: ARG002 the Protocol's
        scratch: Path | None = None,  # noqa: ARG002
    ) -> BackendInfo:
        """Reads the duration of a batch."""
        self.classes = len(model.labels)
        self.seconds = float(os.environ["BENCHMARK_SLEEP_MS"]) / 1000
        return BackendInfo("sleeping", "cpu", "none", "fp32", "it only sleeps")

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Sleeps."""
        return self._sleep(len(batch))

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sleeps."""
        return self._sleep(len(batch))

    def _sleep(self, count: int) -> NDArray[np.float32]:
        if self.seconds:
            time.sleep(self.seconds)
        return np.zeros((count, self.classes), np.float32)

    def trim(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

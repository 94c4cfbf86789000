"""Service whose workers sleep: `python -m smallplates.service benchmarks.sleeping`.

A batch of any size takes BENCHMARK_SLEEP_MS milliseconds and hardly any CPU time, so that a machine with
few cores can serve as many workers as one with many. `scale` runs it.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smallplates.engine.backend import BackendInfo
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings

BACKEND = "benchmarks.sleeping:SleepingBackend"


class SleepingBackend:
    """Implements `smallplates.engine.backend.Backend` without a network; every logit is 0."""

    def load(
        self,
        model: Model,  # noqa: ARG002 the Protocol's
        settings: Settings,  # noqa: ARG002
        scratch: Path | None = None,  # noqa: ARG002
    ) -> BackendInfo:
        """Reads the duration of a batch."""
        self.seconds = float(os.environ["BENCHMARK_SLEEP_MS"]) / 1000
        return BackendInfo("sleeping", "cpu", "none", "fp32", "it only sleeps")

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Sleeps."""
        if self.seconds:
            time.sleep(self.seconds)
        return [np.zeros((len(inputs[0]), *spec.shape_at({})), np.float32) for spec in signature.outputs]

    def trim(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

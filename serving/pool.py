"""Runs the backend on a bounded number of threads; `submit` is the one way in.

Called by `classifier.classify`, calls `backend.infer`.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.backend import Backend
from serving.errors import DeadlineExceededError, InternalError


@dataclass(frozen=True)
class Outcome:
    """The answer for one picture."""

    logits: NDArray[np.float32]
    """[classes]"""

    queue_s: float
    """Seconds between `submit` and the start of the computation."""

    infer_s: float
    """Seconds of computation."""


class InferencePool:
    """`instances` threads, each of which computes one picture at a time."""

    def __init__(self, backend: Backend, instances: int, classes: int) -> None:
        self._backend = backend
        self._classes = classes
        self._instances = instances
        self._pending = 0
        self._executor = ThreadPoolExecutor(instances, thread_name_prefix="infer")

    @property
    def waiting(self) -> int:
        """Pictures that wait for an instance."""
        return max(0, self._pending - self._instances)

    async def submit(self, pixels: NDArray[np.uint8], deadline: float) -> Outcome:
        """Pixels [height, width, 3] -> logits. Cancelled before its turn, it is never computed.

        `deadline` is a time of `time.monotonic()`; an expired picture is not computed and raises
        DeadlineExceededError.
        """
        loop = asyncio.get_running_loop()
        submitted = time.monotonic()
        self._pending += 1
        try:
            return await loop.run_in_executor(self._executor, self._run, pixels, submitted, deadline)
        finally:
            self._pending -= 1

    def _run(self, pixels: NDArray[np.uint8], submitted: float, deadline: float) -> Outcome:
        started = time.monotonic()
        if started >= deadline:
            raise DeadlineExceededError("the deadline passed while the request waited")
        logits = self._backend.infer(pixels[np.newaxis])
        if logits.shape != (1, self._classes):
            raise InternalError(f"the model answered with shape {logits.shape}")
        if not np.isfinite(logits).all():
            raise InternalError("the model answered with numbers that are not finite")
        return Outcome(logits[0], started - submitted, time.monotonic() - started)

    def close(self) -> None:
        """Ends the threads; what still waits is dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)

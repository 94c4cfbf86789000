"""How one input left the engine: its logits, or the error that its caller gets; from `client.py`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.memory import State
from serving.errors import (
    DeadlineExceededError,
    InternalError,
    WorkerCrashedError,
)


@dataclass(slots=True)  # not frozen: that costs time for each picture
class Outcome:
    """The answer for one input."""

    logits: NDArray[np.float32]
    """[classes]."""

    started_at: float
    """time.monotonic() when the computation began."""

    finished_at: float
    """And when it was over."""

    queue_s: float
    """Seconds between `submit` and the start of the computation."""

    infer_s: float
    """Seconds of computation, of the whole batch."""

    batch_size: int
    leads: bool
    """Whether this is the first answer of its batch, so that each batch is counted once."""


def error_for(state: State) -> Exception:
    """What the caller of `submit` gets for a slot that ended in this state."""
    errors: dict[State, Any] = {
        State.EXPIRED: DeadlineExceededError("the deadline passed while the request waited"),
        State.CRASHED: WorkerCrashedError("the inference worker crashed twice on this request"),
    }
    return errors.get(state) or InternalError("inference failed")

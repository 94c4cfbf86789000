"""Reports of workers, for tests that start none."""

from typing import Any

from smallplates.engine.backend import BackendInfo
from smallplates.engine.report import WorkerReport


def reported(device: str = "cpu", **further: Any) -> WorkerReport:
    """What a worker on this device reports; `further` are fields of WorkerReport."""
    measured: dict[str, Any] = {
        "batch_ms": {1: 1.0},
        "batch_cap": 1,
        "max_batch_elements": [1],
        "largest_ms": 0.0,
    }
    return WorkerReport(info=BackendInfo("fake", device, "none", "fp32", ""), **(measured | further))

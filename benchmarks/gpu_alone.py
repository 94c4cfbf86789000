"""Throughput of one backend alone on the GPU by batch size, from uint8 pixels to logits.

`gpu.py` runs it as `python -m benchmarks.gpu_alone ARGUMENTS`: each backend brings its own cuDNN, and a
process can load only one. Several load side by side; who has locked the file TURN measures. Prints the
figures as JSON.
"""

import contextlib
import fcntl
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from smallplates.engine.backend import Backend
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import batch_sizes
from smallplates.worker.device_errors import OutOfDeviceMemoryError

LARGEST = 256
LEAST_CALLS = 5


def rate(backend: Backend, size: int, shape: tuple[int, int], seconds: float) -> float:
    """Returns images a second in batches of `size`; runs on this thread, which records CUDA graphs."""
    batch = np.random.default_rng(0).integers(0, 256, (size, *shape, 3), np.uint8)
    for _ in range(LEAST_CALLS):
        compute_logits(backend, batch)
    calls, started = 0, time.perf_counter()
    while calls < LEAST_CALLS or time.perf_counter() - started < seconds:
        compute_logits(backend, batch)
        calls += 1
    return calls * size / (time.perf_counter() - started)


def measure(
    model_dir: str, package: str, precision: str, graphs: bool, seconds: float, turn: Path
) -> list[dict[str, Any]]:
    """Returns a row for each batch size that fits into the GPU's memory."""
    settings = Settings.model_validate(
        {
            "model_dir": model_dir,
            "device": "cuda",
            "precision": precision,
            "cuda_graphs": graphs,
            "max_batch_size": LARGEST,
        }
    )
    model = Model.read(Path(model_dir))
    module, _, name = importlib.import_module(package).BACKEND.partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    info = backend.load(model, settings)
    rows, shape = [], model.description.pipeline.output_size
    sizes = [*reversed(batch_sizes.sizes(settings, "cuda"))]
    for size in sizes:
        with contextlib.suppress(OutOfDeviceMemoryError):
            compute_logits(backend, np.zeros((size, *shape, 3), np.uint8))
    with turn.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for size in sizes:
            try:
                per_second = rate(backend, size, shape, seconds)
            except OutOfDeviceMemoryError:
                continue
            row = {"backend": package, "precision": info.precision, "graphs": graphs, "batch": size}
            rows.append({**row, "per_second": round(per_second, 1)})
    backend.close()
    return rows


if __name__ == "__main__":
    model_dir, package, precision, graphs, seconds, turn = sys.argv[1:7]
    measured = measure(model_dir, package, precision, graphs == "True", float(seconds), Path(turn))
    print(json.dumps(measured))  # noqa: T201

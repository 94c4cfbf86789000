"""Answers of a backend in this process, without a service."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.tasks.base import Candidate, Fields
from tests.served_task import ServedTask

BACKENDS: dict[str, Any] = {"fastapi_onnx": OnnxBackend, "fastapi_pt": TorchBackend}
Answers = Callable[[Sequence[Fields]], list[list[Candidate]]]


def loaded(backend: str, folder: Path, top_k: int = 1000, **options: str) -> Answers:
    """What answers requests, with so many candidates."""
    served = ServedTask(folder, BACKENDS[backend](), **{"long_text": "truncate", **options})
    return lambda requests: served.answers(requests, top_k)

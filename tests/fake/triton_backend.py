"""What Triton's Python backend gives a model as `triton_python_backend_utils`: the part ours uses."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

logged: list[str] = []


class Logger:
    """Keeps what is logged."""

    log_error = staticmethod(logged.append)


class TritonError(Exception):
    """An error and its code."""

    INTERNAL, INVALID_ARG, CANCELLED = "internal", "invalid", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Tensor:
    """A named array."""

    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


@dataclass
class InferenceResponse:
    """Tensors, or an error."""

    output_tensors: list[Tensor]
    error: TritonError | None = None


@dataclass
class Request:
    """`elements` are the photos, [N, 1] in Triton."""

    elements: list[bytes]
    asked: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    column: str = "INPUT_IMAGE"

    def parameters(self) -> str:
        """JSON; nothing where there are none."""
        return json.dumps(self.asked) if self.asked else ""

    def is_cancelled(self) -> bool:
        return self.cancelled


def get_input_tensor_by_name(request: Request, name: str) -> Tensor:
    """The only input."""
    assert name == request.column
    return Tensor(name, np.array(request.elements, object).reshape(-1, 1))

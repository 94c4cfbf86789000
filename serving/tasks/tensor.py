"""Tensors without a task: a graph that is asked for its own outputs, given its own inputs."""

from serving.errors import NotSupportedError
from serving.model import Model
from serving.tasks.base import Fields, Prepared, Task


class TensorsOnly(Task):
    """Refuses requests that are not tensors."""

    tensor_form = 0

    def __init__(self, model: Model) -> None:
        self.labels = model.labels
        self._name = model.description.name

    def preprocess(self, fields: Fields, hint: object | None = None) -> Prepared:  # noqa: ARG002
        """Raises NotSupportedError."""
        raise NotSupportedError(
            f"{self._name} is asked in tensors: POST /v2/models/{self._name}/infer, or by gRPC"
        )

"""Task for ONNX graphs that are called with raw tensors."""

from typing import Any

from smallplates.errors import NotSupportedError
from smallplates.tasks.base import Fields, Prepared, Task


class TensorsOnly(Task):
    """Task without requests: clients call the model with tensors only."""

    tensor_signature = 0
    takes_json = True  # leaves a body unparsed, as `preprocess` refuses it

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = self._model.labels
        self.limits = self._signatures[0].limits

    def preprocess(self, fields: Fields) -> Prepared:
        """Always raises NotSupportedError."""
        name = self._model.description.name
        raise NotSupportedError(f"{name} is called with tensors: POST /v2/models/{name}/infer, or gRPC")

"""Task for ONNX graphs that are called with raw tensors."""

from collections.abc import Sequence

from smallplates.errors import NotSupportedError
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.tasks.base import Fields, Prepared, Schema, Task


class TensorsOnly(Task):
    """Task without requests: clients call the model with tensors only."""

    tensor_signature = 0
    takes_json = True  # leaves a body unparsed, as `preprocess` refuses it

    def __init__(
        self, model: Model, settings: Settings, signatures: Sequence[Signature], schemas: Schema
    ) -> None:
        super().__init__(model, settings, signatures, schemas)
        self.labels = model.labels
        self.limits = signatures[0].limits

    def preprocess(self, fields: Fields) -> Prepared:
        """Always raises NotSupportedError."""
        name = self._model.description.name
        raise NotSupportedError(f"{name} is called with tensors: POST /v2/models/{name}/infer, or gRPC")

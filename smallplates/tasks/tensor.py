"""Task for ONNX graphs that are called with raw tensors."""

from typing import Any

from smallplates.errors import ConfigurationError, NotSupportedError
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.tasks.base import Fields, Prepared, Task


class TensorsOnly(Task):
    """Task without requests: clients call the model with tensors only."""

    tensor_signature = 0
    takes_json = True  # leaves a body unparsed, as `preprocess` refuses it

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = self._model.labels
        self.limits = self._signatures[0].limits

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the graph's signature, and logs how far its axes vary.

        Raises ConfigurationError for wrong `names` in model.json.
        """
        (signature,) = graph
        if signature.limits:
            logger().info("largest item", model=model.description.name, limits=signature.limits)
        names, sides = model.description.names, (signature.inputs, signature.outputs)
        known = [spec.name for specs in sides for spec in specs]
        if unknown := names.keys() - known:
            raise ConfigurationError(
                f"names in model.json has {min(unknown)!r}; the graph has {', '.join(known)}"
            )
        for specs in sides:
            called = [names.get(spec.name, spec.name) for spec in specs]
            if len(set(called)) < len(called):
                own = {spec.name for spec in specs}
                where = "names in model.json" if len(own) == len(called) else "the graph"
                raise ConfigurationError(f"{where} repeats a name: {', '.join(called)}")
        return graph

    def preprocess(self, fields: Fields) -> Prepared:
        """Always raises NotSupportedError."""
        name = self._model.description.name
        raise NotSupportedError(f"{name} is called with tensors: POST /v2/models/{name}/infer, or gRPC")

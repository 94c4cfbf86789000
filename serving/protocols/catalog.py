"""The models that other protocols know by name: one network, for encoded images or for tensors.

`food_classifier` and `food_classifier_onnx` are the names that clients of the serving tutorial use; the
name in `model.json` is another name of the first.
"""

from dataclasses import dataclass

from serving.errors import NotFoundError
from serving.inference.service import InferenceService
from serving.tasks.image_classification import IMAGE, TENSOR

IMAGE_MODEL, TENSOR_MODEL = "food_classifier", "food_classifier_onnx"


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model, as clients see it."""

    name: str
    datatype: str
    """In the Open Inference Protocol's words: BYTES or FP32."""

    dims: tuple[int, ...]
    """Shape without the batch dimension."""


@dataclass(frozen=True)
class CatalogEntry:
    """A model as clients see it by one of its names."""

    name: str
    version: str
    signature: int
    input: TensorSpec
    outputs: tuple[TensorSpec, ...]


class ModelCatalog:
    """Finds models by name and version, for the version that is in service."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        own = service.model.description.name
        self.signatures = {
            own: IMAGE,
            IMAGE_MODEL: IMAGE,
            TENSOR_MODEL: TENSOR,
        }
        self._described: object = None
        self._entries: dict[str, CatalogEntry] = {}

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Raises NotFoundError for a name or a version that is not served, UnavailableError."""
        active = self._service.active
        if self._described is not active:
            self._described = active
            self._entries = {each: self._describe(each) for each in self.signatures}
        found = self._entries.get(name)
        if found is None:
            names = ", ".join(self.signatures)
            raise NotFoundError(f"no model is named {name[:80]!r}; there are {names}")
        if version is not None and version != found.version:
            raise NotFoundError(f"version {version[:20]!r} of {name} is not served, {found.version} is")
        return found

    def _describe(self, name: str) -> CatalogEntry:
        model, signature = self._service.metadata(), self.signatures[name]
        if signature is IMAGE:
            image = TensorSpec("INPUT_IMAGE", "BYTES", (1,))
            outputs = TensorSpec("FOOD_LABEL", "BYTES", (1,)), TensorSpec("PROBABILITY", "FP32", (1,))
            return CatalogEntry(name, model.version, signature, image, outputs)
        tensor = TensorSpec("input", "FP32", (3, *model.image_size))
        logits = (TensorSpec("output", "FP32", (len(model.labels),)),)
        return CatalogEntry(name, model.version, signature, tensor, logits)

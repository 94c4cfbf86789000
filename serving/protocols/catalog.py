"""The models that other protocols know by name: one network, seen as a photo's or a tensor's.

`food_classifier` and `food_classifier_onnx` are what clients of the serving tutorial call them; the
name in `model.json` is another name of the first.
"""

from dataclasses import dataclass

from serving.engine.memory import Signature
from serving.errors import NotFoundError
from serving.inference.service import Classifier

PHOTO_MODEL, TENSOR_MODEL = "food_classifier", "food_classifier_onnx"


@dataclass(frozen=True)
class TensorSpec:
    """An input or output; `dims` without the batch's."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class CatalogEntry:
    """What a client needs to know of one of them."""

    name: str
    version: str
    kind: Signature
    input: TensorSpec
    outputs: tuple[TensorSpec, ...]


class ModelCatalog:
    """All names, for the version that is in service."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        own = classifier.model.description.name
        self.kinds = {own: Signature.IMAGE, PHOTO_MODEL: Signature.IMAGE, TENSOR_MODEL: Signature.TENSOR}
        self._found: tuple[object, dict[str, CatalogEntry]] = (None, {})

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Raises NotFoundError for a name or a version that is not served, UnavailableError."""
        served = self._classifier.served
        if self._found[0] is not served:
            self._found = served, {each: self._describe(each, kind) for each, kind in self.kinds.items()}
        found = self._found[1].get(name)
        if found is None:
            names = ", ".join(self.kinds)
            raise NotFoundError(f"no model is named {name[:80]!r}; there are {names}")
        if version is not None and version != found.version:
            raise NotFoundError(f"version {version[:20]!r} of {name} is not served, {found.version} is")
        return found

    def _describe(self, name: str, kind: Signature) -> CatalogEntry:
        handle = self._classifier.served.handle
        layout = handle.fds.layout
        if kind is Signature.IMAGE:
            picture = TensorSpec("INPUT_IMAGE", "BYTES", (1,))
            outputs = TensorSpec("FOOD_LABEL", "BYTES", (1,)), TensorSpec("PROBABILITY", "FP32", (1,))
            return CatalogEntry(name, handle.model.description.version, kind, picture, outputs)
        tensor = TensorSpec("input", "FP32", (3, layout.height, layout.width))
        logits = (TensorSpec("output", "FP32", (layout.classes,)),)
        return CatalogEntry(name, handle.model.description.version, kind, tensor, logits)

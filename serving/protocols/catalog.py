"""The models that protocols know by name: one network, called with a task's requests or with tensors.

The name in `model.json` is that of its requests, and NAME_tensor that of its tensors; `aliases` there
add names of either.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from serving.errors import NotFoundError
from serving.inference.served_model import ServedModel
from serving.inference.service import InferenceService
from serving.model import Model
from serving.protocols.datatypes import BYTES, NAMES
from serving.tasks.base import Field
from serving.tensors import Signature, TensorSpec

REQUEST, TENSOR = "request", "tensor"
MAX_LIST = 1 << 20
"""Elements of a field that is a list."""


@dataclass(frozen=True)
class ColumnSpec:
    """Input or output of a model, as clients see it."""

    name: str
    datatype: str
    """In the Open Inference Protocol's words, such as BYTES or FP32."""

    dims: tuple[int, ...]
    """Shape without the batch dimension, if there is one; -1: varies."""

    limits: tuple[int, ...] = ()
    """Largest shape; empty: `dims`."""

    axes: tuple[int | str, ...] = ()
    """Names of the axes that vary, or their sizes; for messages."""

    field: Field | None = None
    """Field of the request or of the answer; None for a tensor of the network."""

    @property
    def is_bytes(self) -> bool:
        """Whether it is a field of bytes, which are base64 in JSON."""
        return self.field is not None and self.field.is_bytes

    @property
    def is_text(self) -> bool:
        """Whether it is text, which is as it is in JSON."""
        return self.datatype == BYTES and not self.is_bytes

    @property
    def is_optional(self) -> bool:
        """Whether a request may lack it."""
        return self.field is not None and not self.field.required

    @property
    def largest(self) -> int:
        """Elements of one input, at most."""
        return math.prod(self.limits or self.dims)


@dataclass(frozen=True)
class CatalogEntry:
    """A model as clients see it by one of its names."""

    name: str
    version: str
    takes_tensors: bool
    """Whether it is called with the network's own tensors, and not with a task's requests."""

    signature: int
    """Signature of the engine, as an index; the statistics are by signature."""

    inputs: tuple[ColumnSpec, ...]
    outputs: tuple[ColumnSpec, ...]
    model: ServedModel
    """What answers; a request that has found it is answered by it, whatever replaces it meanwhile."""

    is_batched: bool = True
    """Whether shapes may begin with the batch dimension; else a request is one item."""

    @property
    def takes_text(self) -> bool:
        """Whether any input is text."""
        return any(spec.is_text for spec in self.inputs)

    @property
    def is_quick_to_parse(self) -> bool:
        """Whether even large JSON is: base64 is one text, where numbers and texts are many."""
        return all(spec.is_bytes for spec in self.inputs)

    @property
    def default_input(self) -> ColumnSpec | None:
        """The input whose value needs no name: the only one, or the only text that is required."""
        if len(self.inputs) == 1:
            return self.inputs[0]
        required = [spec for spec in self.inputs if not spec.is_optional]
        return required[0] if len(required) == 1 and required[0].is_text else None


class ModelCatalog:
    """Finds models by name and version, for the versions that are in service."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._described: object = None
        self._entries: dict[str, CatalogEntry] = {}

    @property
    def entries(self) -> dict[str, CatalogEntry]:
        """Entries by name, the default model's first, and each model's own first."""
        models = self._service.models
        if self._described is not models:
            entries = [entry for model in models.values() for entry in entries_of(model)]
            self._entries = {entry.name: entry for entry in reversed(entries)}
            self._entries = {entry.name: self._entries[entry.name] for entry in entries}
            self._described = models
        return self._entries

    @property
    def names(self) -> dict[str, Model]:
        """Every name of the models that are configured or in service, and the model of that name."""
        served = {name: entry.model.handle.model for name, entry in self.entries.items()}
        known = self._service.known.items()
        others = [model for own, model in known if own not in self._service.models]
        return served | {name: model for model in others for name in model.names}

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Raises NotFoundError for a name or a version that is not served, UnavailableError."""
        entry = self.entries.get(name)
        if entry is None:
            self._service.model(self.owner(name))  # says why it is not in service
            raise NotFoundError(f"{name} is not available in this form")
        if version is not None and version != entry.version:
            raise NotFoundError(
                f"version {version[:20]!r} of {name} is not served; version {entry.version} is"
            )
        return entry

    def owner(self, name: str) -> str:
        """Returns the own name of the model of this name, in service or not. Raises NotFoundError."""
        names = self.names
        if name not in names:
            raise NotFoundError(f"there is no model {name[:80]!r}; the models are {', '.join(names)}")
        return names[name].description.name

    def by_signature(self) -> list[CatalogEntry]:
        """Returns each model's entries for requests and for tensors: the alias, as clients know that."""
        forms = {(entry.model, entry.takes_tensors): entry for entry in self.entries.values()}
        return list(forms.values())


def entries_of(model: ServedModel) -> Iterable[CatalogEntry]:
    """Yields the entries of a model, its own name first."""
    description, task = model.description, model.task
    model_name, aliases, version = description.name, description.aliases, description.version
    names = {model_name: TENSOR if task.request_signature is None else REQUEST} | aliases
    if None not in (task.request_signature, task.tensor_signature) and TENSOR not in aliases.values():
        names[f"{model_name}_{TENSOR}"] = TENSOR
    for name, kind in names.items():
        if kind == REQUEST and task.request_signature is not None:
            wire = description.names
            inputs = tuple(column_of_field(field, wire) for field in task.request)
            outputs = tuple(column_of_field(field, wire) for field in task.answer)
            yield CatalogEntry(name, version, False, task.request_signature, inputs, outputs, model)
        elif kind == TENSOR and task.tensor_signature is not None:
            signature = model.signatures[task.tensor_signature]
            inputs = tuple(column_of_tensor(spec, signature) for spec in signature.inputs)
            outputs = tuple(column_of_tensor(spec, signature) for spec in signature.outputs)
            index, is_batched = task.tensor_signature, signature.is_batched
            yield CatalogEntry(name, version, True, index, inputs, outputs, model, is_batched)


def column_of_field(field: Field, names: dict[str, str]) -> ColumnSpec:
    """Returns the column that carries a field of a request or an answer."""
    name = names.get(field.name, field.name.upper())
    if field.is_list:
        return ColumnSpec(name, field.datatype, (-1,), (MAX_LIST,), ("its length",), field)
    return ColumnSpec(name, field.datatype, (1,), field=field)


def column_of_tensor(spec: TensorSpec, signature: Signature) -> ColumnSpec:
    """Returns a network's own tensor as clients see it."""
    dims = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
    unlimited = dict.fromkeys(signature.axes, -1)
    limits = spec.sized(unlimited | signature.limits)
    return ColumnSpec(spec.name, NAMES[spec.dtype], dims, limits, spec.shape)

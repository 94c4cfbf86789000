"""The names under which protocols find models, called with a task's requests or with tensors.

The name in `model.json` is for requests, and NAME_tensor is for tensors; `aliases` in `model.json` adds
names for either.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smallplates.errors import NotFoundError
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.tasks.base import Field
from smallplates.web.api.datatypes import BYTES, NAMES
from smallplates.web.inference.served_model import ServedModel
from smallplates.web.inference.service import InferenceService

REQUEST, TENSOR = "request", "tensor"
MAX_LIST = 1 << 20
"""Maximum number of elements of a list field."""


@dataclass(frozen=True)
class ColumnSpec:
    """An input or output of a model, as clients see it."""

    name: str
    datatype: str  # name in the Open Inference Protocol, such as BYTES or FP32
    dims: tuple[int, ...]  # shape without a batch dimension; -1 stands for a size that varies
    limits: tuple[int, ...] = ()  # largest shape; empty means the same as `dims`
    field: Field | None = None  # of the request or the answer; None for a tensor of the network

    @property
    def is_bytes(self) -> bool:
        """Whether it is a field of bytes or a list of bytes, which JSON carries as base64."""
        return self.field is not None and self.field.is_bytes

    @property
    def is_text(self) -> bool:
        """Whether it is text, which JSON carries unchanged."""
        return self.datatype == BYTES and not self.is_bytes

    @property
    def is_optional(self) -> bool:
        """Whether a request may leave it out."""
        return self.field is not None and not self.field.required

    @property
    def largest(self) -> int:
        """Maximum number of elements in one input."""
        return math.prod(self.limits or self.dims)

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns whether a batch element may have this shape; only lists of fields may be empty.

        `Signature.items` checks the limits of a tensor's varying axes.
        """
        fewest = 1 if self.field is None else 0
        return len(shape) == len(self.dims) and all(
            size == dim or (dim == -1 and size >= fewest)
            for size, dim in zip(shape, self.dims, strict=True)
        )


@dataclass(frozen=True)
class CatalogEntry:
    """A model as clients see it under one of its names."""

    name: str
    version: str
    takes_tensors: bool  # instead of a task's requests
    signature: int  # index of the engine's signature, by which statistics are counted
    inputs: tuple[ColumnSpec, ...]
    outputs: tuple[ColumnSpec, ...]
    model: ServedModel  # answers requests that have found it, even if it is replaced meanwhile
    is_batched: bool = True  # whether shapes may begin with a batch dimension

    @property
    def is_quick_to_parse(self) -> bool:
        """Whether even large JSON is quick: base64 is one string, unlike lists of numbers or texts."""
        return all(spec.is_bytes and spec.dims == (1,) for spec in self.inputs)

    @property
    def default_input(self) -> ColumnSpec | None:
        """The input whose name clients may omit: the only one, or the only required one if a text."""
        if len(self.inputs) == 1:
            return self.inputs[0]
        required = [spec for spec in self.inputs if not spec.is_optional]
        return required[0] if len(required) == 1 and required[0].is_text else None


class ModelCatalog:
    """Finds models in service by name and version."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._described: object = None
        self._entries: dict[str, CatalogEntry] = {}

    @property
    def entries(self) -> dict[str, CatalogEntry]:
        """Entries by name: the default model's first, and for each model its own name first."""
        models = self._service.models
        if self._described is not models:
            entries = [entry for model in models.values() for entry in entries_of(model)]
            self._entries = {entry.name: entry for entry in reversed(entries)}
            self._entries = {entry.name: self._entries[entry.name] for entry in entries}
            self._described = models
        return self._entries

    @property
    def names(self) -> dict[str, Model]:
        """Name -> model, for all names of the models that are configured or in service."""
        served = {name: entry.model.handle.model for name, entry in self.entries.items()}
        known = self._service.known.items()
        others = [model for own, model in known if own not in self._service.models]
        return served | {name: model for model in others for name in model.names}

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Returns the entry for a name.

        Raises NotFoundError for an unknown name or version, UnavailableError for a model out of service.
        """
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
        """Returns the main name of the model with this name, in service or not. Raises NotFoundError."""
        names = self.names
        if name not in names:
            raise NotFoundError(f"there is no model {name[:80]!r}; the models are {', '.join(names)}")
        return names[name].description.name

    def by_signature(self) -> list[CatalogEntry]:
        """Returns one entry per model for requests and one for tensors.

        If there are aliases, it is the last alias, since clients know the model by that.
        """
        forms = {(entry.model, entry.takes_tensors): entry for entry in self.entries.values()}
        return list(forms.values())


def entries_of(model: ServedModel) -> Iterable[CatalogEntry]:
    """Yields the entries of a model, its main name first."""
    description, task = model.description, model.task
    tensor = task.tensor_signature
    names = {description.name: TENSOR if task.request_signature is None else REQUEST}
    names |= description.aliases
    if None not in (task.request_signature, tensor) and TENSOR not in names.values():
        names[f"{description.name}_{TENSOR}"] = TENSOR
    for name, kind in names.items():
        if kind == REQUEST and task.request_signature is not None:
            inputs = tuple(column_of_field(field, description.names) for field in task.request)
            outputs = tuple(column_of_field(field, description.names) for field in task.answer)
            form = (False, task.request_signature, inputs, outputs, model)
            yield CatalogEntry(name, description.version, *form)
        elif kind == TENSOR and tensor is not None:
            signature = model.signatures[tensor]
            inputs = tuple(column_of_tensor(spec, signature) for spec in signature.inputs)
            outputs = tuple(column_of_tensor(spec, signature) for spec in signature.outputs)
            form = (True, tensor, inputs, outputs, model)
            yield CatalogEntry(name, description.version, *form, signature.is_batched)


def column_of_field(field: Field, names: dict[str, str]) -> ColumnSpec:
    """Returns the column for a field of a request or an answer."""
    name = names.get(field.name, field.name.upper())
    if field.is_list:
        return ColumnSpec(name, field.datatype, (-1,), (MAX_LIST,), field)
    return ColumnSpec(name, field.datatype, (1,), field=field)


def column_of_tensor(spec: TensorSpec, signature: Signature) -> ColumnSpec:
    """Returns the column for a tensor of the network."""
    dims = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
    unlimited = dict.fromkeys(signature.axes, -1)
    limits = spec.sized(unlimited | signature.limits)
    return ColumnSpec(spec.name, NAMES[spec.dtype], dims, limits)

"""The names under which protocols find models, called with a task's requests or with tensors.

The name in `model.json` is for requests, and NAME_tensor is for tensors; `aliases` in `model.json` adds
names for either.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smallplates.errors import InvalidRequestError, NotFoundError, WrongTaskError
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
            size >= fewest if dim == -1 else size == dim
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
    def card(self) -> dict[str, Any]:
        """The model as OpenAI lists it; its clients share paths with those of TensorFlow Serving."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.model.created,
            "owned_by": "smallplates",
            "max_model_len": getattr(self.model.task, "max_tokens", None),
        }

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
        self._described: tuple[object, dict[str, CatalogEntry]] = (None, {})

    @property
    def entries(self) -> dict[str, CatalogEntry]:
        """Entries by name: the default model's first, and for each model its own name first."""
        models = self._service.models
        described, named = self._described
        if described is not models:
            entries = [entry for model in models.values() for entry in entries_of(model)]
            first = {entry.name: entry for entry in reversed(entries)}
            named = {entry.name: first[entry.name] for entry in entries}
            for alias, name in self._service.settings.aliases.items():
                if name in named:
                    named.setdefault(alias, replace(named[name], name=alias))
            self._described = models, named  # at once, because threads look for models, too
        return named

    @property
    def names(self) -> dict[str, Model]:
        """Name -> model, for all names of the models that are configured or in service."""
        served = {name: entry.model.handle.model for name, entry in self.entries.items()}
        known = self._service.known.items()
        others = [model for own, model in known if own not in self._service.models]
        names = served | {name: model for model in others for name in model.names}
        aliases = self._service.settings.aliases.items()
        return names | {alias: names[name] for alias, name in aliases if name in names}

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Returns the entry for a name, and for a version or one of its labels.

        Raises NotFoundError for an unknown name or version, UnavailableError for a model out of service.
        """
        entry = self.entries.get(name)
        if entry is None:
            self._service.model(self.owner(name))  # says why it is not in service
            raise NotFoundError(f"{name} is not available in this form")
        labels = entry.model.description.version_labels
        if version is not None and labels.get(version, version) != entry.version:
            raise NotFoundError(
                f"version {version[:20]!r} of {name} is not served; version {entry.version} is"
            )
        return entry

    def choose(self, name: str | None, tasks: Sequence[str]) -> CatalogEntry:
        """Returns the entry of a model with one of these tasks, for requests.

        Without a name, it is the default model, or else the only one with the first such task. Raises
        WrongTaskError, InvalidRequestError if several models are as good, and what `find` raises.
        """
        kinds, default = " or ".join(tasks), self._service.default
        if not name:
            known = {own: model.description.task for own, model in self._service.known.items()}
            fit = [own for task in tasks for own, kind in known.items() if kind == task]
            if not fit:
                raise WrongTaskError(f"no model is served for {kinds}")
            if default not in fit and len(fit) > 1 and known[fit[0]] == known[fit[1]]:
                raise InvalidRequestError(f"say which model to call: {', '.join(fit)}")
            name = default if default in fit else fit[0]
        entry = self.find(name)
        task = entry.model.description.task
        if task not in tasks or entry.takes_tensors:
            raise WrongTaskError(f"the model {name} is not for {kinds}, but for {task}")
        return entry

    def certain(self, name: str, tasks: Sequence[str]) -> ServedModel | None:
        """Returns the model that the path names, or the only one with one of these tasks.

        None means that the body decides, or that the model is not in service. Raises what `choose`
        raises for a name.
        """
        if name:
            return self.choose(name, tasks).model
        known = self._service.known.items()
        fit = [own for own, model in known if model.description.task in tasks]
        return self._service.models.get(fit[0]) if len(fit) == 1 else None

    def owner(self, name: str) -> str:
        """Returns the main name of the model with this name, in service or not. Raises NotFoundError."""
        names = self.names
        if name not in names:
            raise NotFoundError(f"there is no model {name[:80]!r}; the models are {', '.join(names)}")
        return names[name].description.name

    def cards(self) -> dict[str, Any]:
        """Returns the models in service as OpenAI lists them."""
        cards = [entry.card for entry in self.entries.values() if not entry.takes_tensors]
        return {"object": "list", "data": cards}

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
            names = description.names if task.request_signature is None else {}
            inputs = tuple(column_of_tensor(spec, signature, names) for spec in signature.inputs)
            outputs = tuple(column_of_tensor(spec, signature, names) for spec in signature.outputs)
            form = (True, tensor, inputs, outputs, model)
            yield CatalogEntry(name, description.version, *form, signature.is_batched)


def column_of_field(field: Field, names: dict[str, str]) -> ColumnSpec:
    """Returns the column for a field of a request or an answer."""
    name = names.get(field.name, field.name.upper())
    if field.is_list:
        return ColumnSpec(name, field.datatype, (-1,), (MAX_LIST,), field)
    return ColumnSpec(name, field.datatype, (1,), field=field)


def column_of_tensor(spec: TensorSpec, signature: Signature, names: dict[str, str]) -> ColumnSpec:
    """Returns the column for a tensor of the network."""
    dims = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
    unlimited = dict.fromkeys(signature.axes, -1)
    limits = spec.shape_at(unlimited | signature.limits)
    return ColumnSpec(names.get(spec.name, spec.name), NAMES[spec.dtype], dims, limits)

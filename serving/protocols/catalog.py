"""The models that protocols know by name: one network, for a task's requests or for tensors.

The name in `model.json` is that of its requests, and NAME_tensor that of its tensors; `aliases` there
add names of either form.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from serving.errors import NotFoundError
from serving.inference.active_model import ModelMetadata
from serving.inference.service import InferenceService
from serving.tasks.base import Field
from serving.tensors import Signature, TensorSpec

REQUEST, TENSOR = "request", "tensor"
DTYPES = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
"""NumPy's types by the Open Inference Protocol's names."""

MAX_LIST = 1 << 20
"""Elements of a field that is a list."""

DATATYPES = {dtype.name: datatype for datatype, dtype in DTYPES.items()}


@dataclass(frozen=True)
class WireTensor:
    """Input or output of a model, as clients see it."""

    name: str
    datatype: str
    """In the Open Inference Protocol's words, such as BYTES or FP32."""

    dims: tuple[int, ...]
    """Shape without the batch dimension; -1: varies."""

    limits: tuple[int, ...] = ()
    """Largest shape; empty: `dims`."""

    axes: tuple[int | str, ...] = ()
    """Names of the axes that vary, or their sizes; for messages."""

    field: Field | None = None
    """Field of the request or of the answer; None in tensor form."""

    @property
    def is_bytes(self) -> bool:
        """Whether it is a field of bytes, which are base64 in JSON."""
        return self.field is not None and self.field.is_bytes

    @property
    def is_text(self) -> bool:
        """Whether it is text, which is as it is in JSON."""
        return self.datatype == "BYTES" and not self.is_bytes

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
    form: str
    """REQUEST or TENSOR."""

    signature: int
    """Signature of the engine, as an index; the statistics are by signature."""

    inputs: tuple[WireTensor, ...]
    outputs: tuple[WireTensor, ...]

    @property
    def takes_tensors(self) -> bool:
        """Whether it is asked with the network's own tensors."""
        return self.form == TENSOR

    @property
    def takes_text(self) -> bool:
        """Whether any input is text."""
        return any(spec.is_text for spec in self.inputs)

    @property
    def is_quick_to_parse(self) -> bool:
        """Whether even large JSON is: base64 is one text, where numbers and texts are many."""
        return all(spec.is_bytes for spec in self.inputs)

    @property
    def nameless(self) -> WireTensor | None:
        """The input whose value needs no name: the only one, or the only text that is required."""
        if len(self.inputs) == 1:
            return self.inputs[0]
        required = [spec for spec in self.inputs if not spec.is_optional]
        return required[0] if len(required) == 1 and required[0].is_text else None


class ModelCatalog:
    """Finds models by name and version, for the version that is in service."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._described: object = None
        self._entries: dict[str, CatalogEntry] = {}

    @property
    def entries(self) -> dict[str, CatalogEntry]:
        """Entries by name, the model's own first. Raises UnavailableError before it is loaded."""
        active = self._service.active
        if self._described is not active:
            self._entries = {each.name: each for each in describe(active.metadata())}
            self._described = active
        return self._entries

    def find(self, name: str, version: str | None = None) -> CatalogEntry:
        """Raises NotFoundError for a name or a version that is not served, UnavailableError."""
        found = self.entries.get(name)
        if found is None:
            names = ", ".join(self.entries)
            raise NotFoundError(f"no model is named {name[:80]!r}; there are {names}")
        if version is not None and version != found.version:
            raise NotFoundError(f"version {version[:20]!r} of {name} is not served, {found.version} is")
        return found

    def of_each_form(self) -> list[CatalogEntry]:
        """Returns one entry for each form: the alias, if it has one, because clients know that."""
        return list({each.form: each for each in self.entries.values()}.values())


def describe(model: ModelMetadata) -> Iterable[CatalogEntry]:
    """Yields the entries of a model."""
    own, aliases, task = model.description.name, model.description.aliases, model.task
    names: dict[str, str] = {}
    if task.form is not None:
        names[own] = REQUEST
    names |= aliases
    if task.form is None:
        names = {own: TENSOR} | names
    elif task.tensor_form is not None and TENSOR not in aliases.values():
        names[f"{own}_{TENSOR}"] = TENSOR
    for name, form in names.items():
        if form == REQUEST and task.form is not None:
            wire = model.description.names
            inputs = tuple(field_tensor(each, wire) for each in task.request)
            outputs = tuple(field_tensor(each, wire) for each in task.answer)
            yield CatalogEntry(name, model.version, form, task.form, inputs, outputs)
        elif form == TENSOR and task.tensor_form is not None:
            signature = model.signatures[task.tensor_form]
            inputs = tuple(own_tensor(each, signature) for each in signature.inputs)
            outputs = tuple(own_tensor(each, signature) for each in signature.outputs)
            yield CatalogEntry(name, model.version, form, task.tensor_form, inputs, outputs)


def field_tensor(field: Field, names: dict[str, str]) -> WireTensor:
    """Returns the tensor that carries a field of a request or an answer."""
    name = names.get(field.name, field.name.upper())
    if field.is_list:
        return WireTensor(name, field.datatype, (-1,), (MAX_LIST,), ("its length",), field)
    return WireTensor(name, field.datatype, (1,), field=field)


def own_tensor(spec: TensorSpec, signature: Signature) -> WireTensor:
    """Returns a network's own tensor as clients see it."""
    dims = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
    unlimited = dict.fromkeys(signature.axes, -1)
    limits = spec.sized(unlimited | signature.limits)
    return WireTensor(spec.name, DATATYPES[spec.dtype], dims, limits, spec.shape)

"""Inference of the Open Inference Protocol, the same for HTTP and gRPC.

Their codecs translate a request into an InferRequest, and the InferResponse back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from serving.engine.statistics import Timings
from serving.errors import InvalidRequestError, InvalidTensorError
from serving.http.responses import dump_json
from serving.inference.active_model import Input, Predictions, Tensors
from serving.inference.service import InferenceService, check_count
from serving.protocols.admission import RequestOptions
from serving.protocols.catalog import DTYPES, CatalogEntry, WireTensor
from serving.protocols.fields import field_value
from serving.protocols.v2.metadata import SHARED_MEMORY
from serving.tasks.base import Fields
from serving.tensors import Array

RESERVED = "triton_"
MAX_TIMEOUT_US = 2**53
MAX_CLASSES = 2**31 - 1

Parameters = dict[str, Any]  # JSON's scalars, or gRPC's
Content = list[str] | list[bytes] | Array
"""Elements of a tensor: texts or bytes in row-major order, or numbers [N, *shape]."""


@dataclass
class WantedOutput:
    """An output that the client asks for."""

    name: str
    classes: int = 0
    """How many of the best classes to return as text; 0: the tensor itself."""

    binary: bool = False


@dataclass
class InferRequest:
    """A checked request of `count` batch elements."""

    model: CatalogEntry
    count: int
    shape: list[int]
    """Shape of the first input, as the client gave it."""

    data: Mapping[str, Content]
    """Contents by input, of those that were given."""

    outputs: list[WantedOutput]
    id: str = ""
    timeout_us: int = 0
    top_k: int = 1
    """How many candidates to answer for each batch element."""

    @property
    def is_batched(self) -> bool:
        """Whether the shapes begin with the batch dimension."""
        return len(self.shape) > len(self.model.inputs[0].dims)


@dataclass
class OutputTensor:
    """An output's elements in row-major order: an array of numbers, BYTES as bytes."""

    name: str
    datatype: str
    shape: list[int]
    data: Array | list[bytes]
    binary: bool = False


@dataclass
class InferResponse:
    """The outputs, in the order in which they were asked for."""

    outputs: list[OutputTensor]
    timings: Timings = field(repr=False)


def check_inputs(model: CatalogEntry, given: Sequence[tuple[str, str, list[int]]], most: int) -> int:
    """Checks names, types and shapes of all inputs; returns the number of batch elements.

    Shapes must be the model's, all of them with or all without a batch dimension of at most `most`
    before it; so there is no product that could overflow. Raises InvalidRequestError.
    """
    names = [name for name, _, _ in given]
    optional = [spec.name for spec in model.inputs if spec.is_optional]
    wanted = {spec.name: spec for spec in model.inputs}
    if len(wanted) == 1 and len(names) != 1:
        raise InvalidRequestError(f"{model.name} has one input, not {len(names)}")
    unknown = [name for name in names if name not in wanted]
    if unknown:
        raise InvalidRequestError(
            f"{model.name} has no input {unknown[0][:80]!r}, but {', '.join(wanted)}"
        )
    missing = [name for name in wanted if name not in names and name not in optional]
    if missing or len(set(names)) < len(names):
        needed = ", ".join(name for name in wanted if name not in optional)
        further = f"; {', '.join(optional)} is optional" if optional else ""
        raise InvalidRequestError(f"{model.name} takes {needed}, each once{further}")
    counts = {check_input(wanted[name], datatype, shape, most) for name, datatype, shape in given}
    if len(counts) > 1:
        raise InvalidRequestError("the inputs have different numbers of batch elements")
    return counts.pop()


def check_input(spec: WireTensor, datatype: str, shape: list[int], most: int) -> int:
    """Checks an input, and returns its number of batch elements. Raises InvalidRequestError."""
    name, dims = spec.name, list(spec.dims)
    if datatype != spec.datatype:
        raise InvalidRequestError(f"{name} is {spec.datatype}, not {datatype[:20]!r}")
    if fits(spec, shape):
        check_sizes(spec, shape)
        return 1
    if fits(spec, shape[1:]) or (dims == [1] and len(shape) == 1):
        check_count(shape[0], most)
        check_sizes(spec, shape[1:])
        return shape[0]
    batched = ", ".join(str(size) for size in ["N", *dims])
    raise InvalidRequestError(f"{name} has the shape [{batched}] or {dims}, not {shape}")


def fits(spec: WireTensor, shape: Sequence[int]) -> bool:
    """Returns whether a batch element may have this shape; the engine has limits of its own."""
    return len(shape) == len(spec.dims) and all(
        wanted in (size, -1) for size, wanted in zip(shape, spec.dims, strict=True)
    )


def check_sizes(spec: WireTensor, shape: Sequence[int]) -> None:
    """Checks the axes of a batch element that vary; only a list of a request may be empty.

    Raises InvalidTensorError.
    """
    fewest = 0 if spec.field else 1
    for size, wanted, most, axis in zip(shape, spec.dims, spec.limits, spec.axes, strict=False):
        if wanted == -1 and not fewest <= size <= most:
            raise InvalidTensorError(
                f"{spec.name} has the size {size} along {axis}; {fewest} to {most} are accepted"
            )


def check_outputs(model: CatalogEntry, wanted: list[WantedOutput], binary: bool) -> list[WantedOutput]:
    """Returns the outputs to answer: all unless some are named. Raises InvalidRequestError."""
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    for output in wanted:
        if output.name not in datatypes:
            raise InvalidRequestError(
                f"{model.name} has no output {output.name[:80]!r}, but {', '.join(datatypes)}"
            )
        if output.classes and datatypes[output.name] == "BYTES":
            numbers = [name for name, datatype in datatypes.items() if datatype != "BYTES"]
            raise InvalidRequestError(f"classification is of numbers: ask it of {' or '.join(numbers)}")
    if len({output.name for output in wanted}) < len(wanted):
        raise InvalidRequestError("an output is named twice")
    return wanted or [WantedOutput(name, binary=binary) for name in datatypes]


def check_parameters(parameters: Parameters) -> None:
    """Raises InvalidRequestError for names that Triton reserves, and for shared memory."""
    for name in parameters:
        if name.startswith(RESERVED):
            raise InvalidRequestError(f"parameters that begin with {RESERVED} are reserved: {name[:80]}")
        if name.startswith("shared_memory"):
            raise InvalidRequestError(SHARED_MEMORY)


def whole_number(parameters: Parameters, name: str, largest: int) -> int:
    """Returns a parameter from 0 to `largest`; 0 where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise InvalidRequestError(f"{name} must be a whole number from 0 to {largest}")
    return value


def flag(parameters: Parameters, name: str) -> bool | None:
    """Returns a boolean parameter, None where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false")
    return value


async def infer(
    service: InferenceService, request: InferRequest, options: RequestOptions
) -> InferResponse:
    """Infers a checked request. Raises what `InferenceService.predict` and `infer` raise."""
    options = options.within(request.timeout_us)
    model = request.model
    specs = {spec.name: spec for spec in model.outputs}
    if model.takes_tensors:
        inputs = [np.asarray(request.data[spec.name]) for spec in model.inputs]
        found = await service.infer(inputs, options.deadline(), options.bulk)
        if any(output.classes or not output.binary for output in request.outputs):
            found.check_finite()
        own = [own_output(each, found, request) for each in request.outputs]
        return InferResponse(own, found.timings)
    top_k = max(request.top_k, *(output.classes for output in request.outputs))
    answers = await service.predict(inputs_of(request), top_k, options.deadline(), options.bulk)
    outputs = [output_of(specs[each.name], each, answers, request) for each in request.outputs]
    return InferResponse(outputs, answers.timings)


def inputs_of(request: InferRequest) -> list[Input]:
    """Returns the task's inputs, one per batch element."""
    specs = [spec for spec in request.model.inputs if spec.name in request.data]

    def element(spec: WireTensor, index: int) -> Any:
        content = request.data[spec.name]
        if isinstance(content, list) and spec.field and spec.field.is_list:
            each = len(content) // request.count
            return content[index * each : (index + 1) * each]
        return content[index]

    def read(index: int) -> Fields:
        return {
            spec.field.name: field_value(spec.field, element(spec, index))
            for spec in specs
            if spec.field
        }

    def size(index: int) -> int:
        return sum(len(element(spec, index)) for spec in specs)

    return [Input(size(index), partial(read, index)) for index in range(request.count)]


def output_of(
    spec: WireTensor, wanted: WantedOutput, answers: Predictions, request: InferRequest
) -> OutputTensor:
    """Returns a field of every answer, or the best classes as text.

    A single value per batch element has the input's shape, `top_k` of them [N, top_k].
    """
    field, tops, labels = spec.field, answers.tops, answers.task.labels
    assert field is not None  # noqa: S101 the entry is one of requests
    if wanted.classes:
        if not labels:
            raise InvalidRequestError(f"{spec.name} has no classes")
        texts = [
            class_text(each[field.name], each["index"], labels[each["index"]])
            for top in tops
            for each in top[: wanted.classes]
        ]
        return OutputTensor(
            spec.name, "BYTES", [len(tops), len(texts) // len(tops)], texts, wanted.binary
        )
    values = [each[field.name] for top in tops for each in top[: request.top_k]]
    if len({len(top[: request.top_k]) for top in tops}) > 1:
        raise InvalidRequestError(f"the inputs have different numbers of {spec.name}: ask one by one")
    if field.is_list:
        return list_output(spec, wanted, values, request)
    single = request.shape if request.model.inputs[0].dims == (1,) else [request.count, 1]
    shape = single if request.top_k == 1 else [len(tops), len(values) // len(tops)]
    data: Array | list[bytes]
    if spec.datatype == "BYTES":
        data = [dump_json(value) if field.is_json else value.encode() for value in values]
    else:
        data = number_array(spec, values)
    return OutputTensor(spec.name, spec.datatype, shape, data, wanted.binary)


def number_array(spec: WireTensor, values: Sequence[Any]) -> Array:
    """Returns an answer's numbers. Raises InvalidRequestError for a whole number of too many digits."""
    try:
        return np.array(values, DTYPES[spec.datatype])
    except OverflowError as error:
        raise InvalidRequestError(
            f"{spec.name} is a number beyond {spec.datatype}, which only POST /predict can return"
        ) from error


def list_output(
    spec: WireTensor, wanted: WantedOutput, values: list[list[Any]], request: InferRequest
) -> OutputTensor:
    """Returns a field that is a list in every answer. Raises InvalidRequestError for unequal lengths."""
    if len({len(value) for value in values}) > 1:
        raise InvalidRequestError(f"{spec.name} differs in length between the answers: ask one by one")
    data: Array | list[bytes]
    if spec.datatype == "BYTES":
        data = [text.encode() for value in values for text in value]
    else:
        data = number_array(spec, values)
    shape = [len(values), len(values[0])] if request.is_batched else [len(values[0])]
    return OutputTensor(spec.name, spec.datatype, shape, data, wanted.binary)


def own_output(wanted: WantedOutput, found: Tensors, request: InferRequest) -> OutputTensor:
    """Returns an output of the network, [N, *shape], or the best classes by logit."""
    names = [spec.name for spec in request.model.outputs]
    spec = request.model.outputs[names.index(wanted.name)]
    array = found.arrays[names.index(wanted.name)]
    leading = [len(array)] if request.is_batched else []
    if not wanted.classes:
        return OutputTensor(spec.name, spec.datatype, [*leading, *array.shape[1:]], array, wanted.binary)
    if array.ndim != 2 or len(found.labels) != array.shape[1]:
        raise InvalidRequestError(f"{spec.name} has no classes")
    order = np.argsort(-array, axis=1, kind="stable")[:, : wanted.classes]
    texts = [
        class_text(row[index], index, found.labels[index])
        for row, best in zip(array.tolist(), order.tolist(), strict=True)
        for index in best
    ]
    return OutputTensor(spec.name, "BYTES", [*leading, order.shape[1]], texts, wanted.binary)


def class_text(value: float, index: int, label: str) -> bytes:
    """Formats `value:index:label`, as the protocol's classification extension has it."""
    return f"{value:f}:{index}:{label}".encode()

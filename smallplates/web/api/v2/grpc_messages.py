"""Codec for the Open Inference Protocol's gRPC messages, like `codec.py` for HTTP."""

import math
from typing import Any

import numpy as np

from smallplates.errors import InvalidRequestError
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import (
    MAX_DIMS,
    ColumnCall,
    Values,
    WantedOutput,
    call_of,
    check_inputs,
    check_outputs,
    columns_of,
    item_shape,
)
from smallplates.web.api.datatypes import BYTES, DATATYPES, DTYPES
from smallplates.web.api.v2.codec import (
    MAX_CLASSES,
    MAX_TENSORS,
    Parameters,
    binary_data,
    binary_values,
    check_parameters,
    whole_number,
)
from smallplates.web.api.v2.grpc_generated import open_inference_pb2 as pb
from smallplates.web.inference.served_model import Answer

STREAMING_ONLY = "triton_enable_empty_final_response"  # Triton's clients send it with every request
LARGE = 64 * 1024  # bytes of typed numbers
WIDTHS = {
    kind.contents: kind.dtype.itemsize for kind in DATATYPES.values() if kind.contents and kind.dtype
}
"""Field of typed numbers -> bytes of each in memory: those of the widest type, which is the last."""

Message = Any  # protobuf creates its classes at run time


def decode(request: Message, entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a ModelInferRequest with up to `most` inputs. Raises InvalidRequestError."""
    parameters = scalars(request.parameters)
    parameters.pop(STREAMING_ONLY, None)
    check_parameters(parameters)
    if len(request.outputs) > MAX_TENSORS or len(request.inputs) > MAX_TENSORS:
        raise InvalidRequestError(f"a request has more than {MAX_TENSORS} inputs or outputs")
    for tensor in request.inputs:
        check_parameters(scalars(tensor.parameters))
    shapes = [list(tensor.shape[: MAX_DIMS + 1]) for tensor in request.inputs]
    tensors = [
        (tensor.name, tensor.datatype, shape)
        for tensor, shape in zip(request.inputs, shapes, strict=True)
    ]
    count = check_inputs(entry, tensors, most)
    return call_of(
        entry,
        count,
        values_of(request, shapes, entry, count),
        shape=shapes[0],
        outputs=check_outputs(entry, [requested(output) for output in request.outputs], binary=True),
        id=request.id,
        timeout_us=whole_number(parameters, "timeout"),
        candidates=whole_number(parameters, "top_k", MAX_CLASSES) or 1,
    )


def typed_bytes(request: Message) -> int:
    """Returns how many bytes the request's numbers take in memory; packed they may take an eighth."""
    total = 0
    for tensor in request.inputs:
        total += 8 * len(tensor.shape)
        total += sum(width * len(getattr(tensor.contents, name)) for name, width in WIDTHS.items())
    return total


def scalars(parameters: Message) -> Parameters:
    """Returns the plain values of a map of InferParameter."""
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = getattr(parameter, choice) if choice else None
    return values


def requested(output: Message) -> WantedOutput:
    """Parses an entry of the request's `outputs`."""
    parameters = scalars(output.parameters)
    check_parameters(parameters)
    classes = whole_number(parameters, "classification", MAX_CLASSES)
    return WantedOutput(output.name, classes, binary=True)


def values_of(
    request: Message, shapes: list[list[int]], entry: CatalogEntry, count: int
) -> dict[str, Values]:
    """Returns every input's values; all are raw or all are typed. Raises InvalidRequestError."""
    specs = {spec.name: spec for spec in entry.inputs}
    raw = request.raw_input_contents
    if not raw:
        return {
            tensor.name: typed_values(tensor, specs[tensor.name], shape, count)
            for tensor, shape in zip(request.inputs, shapes, strict=True)
        }
    if len(raw) != len(request.inputs) or any(tensor.HasField("contents") for tensor in request.inputs):
        name = request.inputs[0].name
        raise InvalidRequestError(f"{name} needs either one raw content or typed contents")
    return {
        tensor.name: binary_values(memoryview(data), specs[tensor.name], shape, count)
        for tensor, shape, data in zip(request.inputs, shapes, raw, strict=True)
    }


def typed_values(tensor: Message, spec: ColumnSpec, shape: list[int], count: int) -> Values:
    """Returns an input's values from its typed contents. Raises InvalidRequestError."""
    name = DATATYPES[spec.datatype].contents
    if name is None:
        raise InvalidRequestError(
            f"{spec.name} is {spec.datatype}, which is supported as raw contents only"
        )
    values, needed = getattr(tensor.contents, name), math.prod(shape)
    if len(values) != needed:
        raise InvalidRequestError(f"{spec.name} has {len(values)} elements, but its shape has {needed}")
    if spec.datatype == BYTES:
        return list(values)
    try:
        array = np.fromiter(values, DTYPES[spec.datatype], needed)  # builds no list in between
    except OverflowError as error:
        raise InvalidRequestError(
            f"{spec.name} has a number outside the range of {spec.datatype}"
        ) from error
    return array.reshape(count, *item_shape(spec, shape))


def encode(call: ColumnCall, answer: Answer) -> Message:
    """Returns a ModelInferResponse with all tensors as raw contents."""
    entry = call.entry
    message = pb.ModelInferResponse(model_name=entry.name, model_version=entry.version, id=call.id)
    for column in columns_of(call, answer):
        message.outputs.add(name=column.name, datatype=column.datatype, shape=column.shape)
        message.raw_output_contents.append(binary_data(column))
    return message

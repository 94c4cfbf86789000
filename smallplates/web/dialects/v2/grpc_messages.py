"""Codec for the Open Inference Protocol's gRPC messages, like `codec.py` for HTTP."""

import math
from collections.abc import Callable
from functools import partial

from smallplates.errors import InvalidRequestError
from smallplates.web.api import columns
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import ColumnCall, Data
from smallplates.web.api.datatypes import BYTES, DATATYPES
from smallplates.web.dialects.v2 import codec
from smallplates.web.grpc import wire
from smallplates.web.grpc.calls import serialise
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.grpc.limits import Message
from smallplates.web.inference.served_model import Answer

STREAMING_ONLY = "triton_enable_empty_final_response"  # Triton's clients send it with every request
RAW_CONTENTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
INFER_RESPONSE = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
FINAL = serialise(pb.ModelInferResponse(parameters={"triton_final_response": {"bool_param": True}}))
"""What follows the fields of a stream's answer; protobuf reads both as one message."""

Encode = Callable[[ColumnCall, Answer], list[bytes]]
LARGE = 64 * 1024  # bytes of typed numbers
WIDTHS = {
    kind.contents: kind.dtype.itemsize for kind in DATATYPES.values() if kind.contents and kind.dtype
}
"""Field of typed numbers -> bytes of each in memory: those of the widest type, which is the last."""


def decode(request: Message, entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a ModelInferRequest with up to `most` batch elements. Raises InvalidRequestError."""
    read = partial(data_of, request, entry)
    call = codec.call_of_request(request, entry, most, parameters_of, read)
    for output in call.outputs:
        output.binary = True
    return call


def typed_bytes(request: Message) -> int:
    """Returns how many bytes the request's numbers take in memory; packed they may take an eighth.

    Raises InvalidRequestError for too many inputs or outputs.
    """
    if len(request.outputs) > codec.MAX_TENSORS or len(request.inputs) > codec.MAX_TENSORS:
        raise InvalidRequestError(f"a request has more than {codec.MAX_TENSORS} inputs or outputs")
    total = 0
    for tensor in request.inputs:
        total += 8 * len(tensor.shape)
        total += sum(width * len(getattr(tensor.contents, name)) for name, width in WIDTHS.items())
    return total


def parameters_of(parameters: Message) -> codec.Parameters:
    """Returns the plain values of a map of InferParameter. Raises InvalidRequestError."""
    values = {}
    for name, parameter in parameters.items():
        if name != STREAMING_ONLY:
            choice = parameter.WhichOneof("parameter_choice")
            values[name] = getattr(parameter, choice) if choice else None
    return codec.without_nulls(values)


def data_of(request: Message, entry: CatalogEntry, count: int) -> dict[str, Data]:
    """Returns every input's data; all are raw or all are typed. Raises InvalidRequestError."""
    inputs, raw = request.inputs, request.raw_input_contents
    specs = columns.columns_sent(entry, inputs)
    if raw and (len(raw) != len(inputs) or any(tensor.contents.ByteSize() for tensor in inputs)):
        raise InvalidRequestError(f"{inputs[0].name} needs either one raw content or typed contents")
    data = {}
    for index, tensor in enumerate(inputs):
        spec, parameters = specs[tensor.name], parameters_of(tensor.parameters)
        if raw:
            values = codec.binary_data(memoryview(raw[index]), spec, tensor.shape, count)
        else:
            values = typed_data(tensor, spec, count)
        data[tensor.name] = codec.decoded(values, parameters)
    return data


def typed_data(tensor: Message, spec: ColumnSpec, count: int) -> Data:
    """Returns an input's data from its typed contents. Raises InvalidRequestError."""
    name = DATATYPES[spec.datatype].contents
    if name is None:
        raise InvalidRequestError(
            f"{spec.name} is {spec.datatype}, which is supported as raw contents only"
        )
    values, needed = getattr(tensor.contents, name), math.prod(tensor.shape)
    if len(values) != needed:
        raise InvalidRequestError(f"{spec.name} has {len(values)} elements, but its shape has {needed}")
    if spec.datatype == BYTES:
        return list(values)
    return columns.number_array(values, spec, columns.item_shape(spec, tensor.shape), count)


def encode(call: ColumnCall, answer: Answer) -> list[bytes]:
    """Returns a ModelInferResponse in parts, with all tensors as raw contents.

    Raises InvalidRequestError or InvalidTensorError.
    """
    entry, contents = call.entry, []
    message = pb.ModelInferResponse(model_name=entry.name, model_version=entry.version, id=call.id)
    for column in columns.columns_of(call, answer):
        name, datatype = column.spec.name, column.datatype
        message.outputs.add(name=name, datatype=datatype, shape=column.shape)
        contents += wire.field(RAW_CONTENTS, [*wire.parts(codec.pack(column))])
    return [serialise(message), *contents]


def encode_in_stream(call: ColumnCall, answer: Answer) -> list[bytes]:
    """Returns the same in a ModelStreamInferResponse, as the only answer to its request."""
    return wire.field(INFER_RESPONSE, [*encode(call, answer), FINAL])

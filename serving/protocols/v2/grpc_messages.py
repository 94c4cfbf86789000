"""Codec of the Open Inference Protocol's gRPC messages, as `codec.py` is for HTTP."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequestError
from serving.protocols.catalog import CatalogEntry
from serving.protocols.v2.codec import (
    MAX_DIMS,
    MAX_TENSORS,
    binary_data,
    binary_elements,
    float_tensor,
)
from serving.protocols.v2.grpc_generated import open_inference_pb2 as pb
from serving.protocols.v2.inference import (
    MAX_CLASSES,
    MAX_TIMEOUT_US,
    EncodedElements,
    InferRequest,
    InferResponse,
    Parameters,
    WantedOutput,
    check_input,
    check_outputs,
    check_parameters,
    whole_number,
)
from serving.tasks.image_classification import IMAGE

STREAMING_ONLY = "triton_enable_empty_final_response"  # Triton's clients send it with every request
LARGE = 16 * 1024  # numbers
Message = Any  # protobuf's classes are made at run time


def parse(request: Message, model: CatalogEntry, most: int) -> InferRequest:
    """Parses a ModelInferRequest for up to `most` inputs. Raises InvalidRequestError."""
    parameters = scalars(request.parameters)
    parameters.pop(STREAMING_ONLY, None)
    check_parameters(parameters)
    if len(request.inputs) != 1:
        raise InvalidRequestError(f"{model.name} has one input, not {len(request.inputs)}")
    if len(request.outputs) > MAX_TENSORS:
        raise InvalidRequestError(f"more than {MAX_TENSORS} outputs are asked for")
    given = request.inputs[0]
    check_parameters(scalars(given.parameters))
    shape = list(given.shape[: MAX_DIMS + 1])
    count = check_input(model, given.name, given.datatype, shape, most)
    return InferRequest(
        model=model,
        shape=shape,
        data=content(request, given, model, count),
        outputs=check_outputs(model, [requested(each) for each in request.outputs], binary=True),
        id=request.id,
        timeout_us=whole_number(parameters, "timeout", MAX_TIMEOUT_US),
        top_k=whole_number(parameters, "top_k", MAX_CLASSES) or 1,
    )


def is_large(request: Message) -> bool:
    """Whether the request has so many typed numbers that a thread should parse it."""
    return any(len(given.contents.fp32_contents) > LARGE for given in request.inputs[:1])


def scalars(parameters: Message) -> Parameters:
    """Returns a map of InferParameter as plain values."""
    found = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        found[name] = getattr(parameter, choice) if choice else None
    return found


def requested(output: Message) -> WantedOutput:
    """Parses an entry of the request's `outputs`."""
    parameters = scalars(output.parameters)
    check_parameters(parameters)
    classes = whole_number(parameters, "classification", MAX_CLASSES)
    return WantedOutput(output.name, classes, binary=True)


def content(
    request: Message, given: Message, model: CatalogEntry, count: int
) -> EncodedElements | NDArray[np.float32]:
    """Returns the input's elements, raw or typed. Raises InvalidRequestError for both."""
    raw = request.raw_input_contents
    typed = given.contents.fp32_contents, given.contents.bytes_contents
    if raw:
        if len(raw) != 1 or any(typed):
            raise InvalidRequestError(f"{given.name} needs one raw content, or its typed contents")
        if model.signature is IMAGE:
            return binary_elements(memoryview(raw[0]), count)
        return float_tensor(memoryview(raw[0]), model, count)
    if model.signature is IMAGE:
        if len(typed[1]) != count:
            raise InvalidRequestError(f"bytes_contents has {len(typed[1])} elements, its shape {count}")
        return list(typed[1])
    wanted = (count, *model.input.dims)
    if len(typed[0]) != np.prod(wanted):
        raise InvalidRequestError(f"fp32_contents has {len(typed[0])} elements, not {np.prod(wanted)}")
    return np.array(typed[0], np.float32).reshape(wanted)


def encode(request: InferRequest, response: InferResponse) -> Message:
    """Returns a ModelInferResponse whose tensors are all raw."""
    message = pb.ModelInferResponse(
        model_name=request.model.name, model_version=request.model.version, id=request.id
    )
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(binary_data(tensor))
    return message

"""TensorFlow Serving's gRPC API: `PredictionService` and `ModelService`, like `tfserving.py` over HTTP.

Tensors are `tensor_content` or values of their type; as in TensorFlow, the last value stands for all
that follow. Answers have values, which clients may read without TensorFlow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict

from smallplates.errors import InvalidRequestError, PayloadTooLargeError
from smallplates.web.api import columns
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec, ModelCatalog
from smallplates.web.api.columns import ColumnCall, Data, Output
from smallplates.web.api.datatypes import BYTES, DATATYPES, DTYPES
from smallplates.web.api.pipeline import Target
from smallplates.web.dialects import tfserving
from smallplates.web.dialects.v2 import codec
from smallplates.web.grpc import wire
from smallplates.web.grpc.calls import Call, Calls, Inference, Method, Methods, not_supported, serialise
from smallplates.web.grpc.generated import tf_serving_pb2 as pb
from smallplates.web.grpc.limits import Context, Message
from smallplates.web.http.body import LARGE, PART
from smallplates.web.inference.served_model import Answer

SIGNATURES = "signature_def"
SIGNATURES_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
MAX_INPUTS = 1024
FIELDS = {
    "FP16": "half_val",
    "FP32": "float_val",
    "FP64": "double_val",
    BYTES: "string_val",
    "INT64": "int64_val",
    "BOOL": "bool_val",
    "UINT32": "uint32_val",
    "UINT64": "uint64_val",
}
"""Type -> the field of its values; those of the other types are in INT_VALUES."""

SAME_BYTES = {"FP32", "FP64", "BOOL"}
"""Types of numbers that have the same bytes in a message as in memory."""

OUTPUTS = pb.PredictResponse.OUTPUTS_FIELD_NUMBER
MAP_KEY, MAP_VALUE = 1, 2
INT_VALUES = "int_val"
WIDTHS = {name: DTYPES[kind].itemsize for kind, name in FIELDS.items() if kind != BYTES}
WIDTHS |= {"half_val": 4, INT_VALUES: 4}
"""Field of numbers -> bytes of each in memory."""

TYPES = {pb.DataType.Value(kind.tensorflow): kind.name for kind in DATATYPES.values()}


class Tensor(NamedTuple):
    """An input as the client sent it."""

    name: str
    datatype: str
    shape: list[int]
    content: Message

    @property
    def size(self) -> int:
        """Bytes of all elements in memory, also of those for which the last value stands."""
        values, count = self.content.string_val, math.prod(self.shape)
        if self.datatype in DTYPES:
            return count * DTYPES[self.datatype].itemsize
        return max(0, count - len(values)) * (8 + len(values[-1])) if values else 8 * count


def tensor_of(name: str, content: Message) -> Tensor:
    """Returns an input from its TensorProto. Raises InvalidRequestError."""
    sizes = [dim.size for dim in content.tensor_shape.dim[: columns.MAX_DIMS + 1]]
    if content.tensor_shape.unknown_rank or len(sizes) > columns.MAX_DIMS or min(sizes, default=0) < 0:
        most = columns.MAX_DIMS
        raise InvalidRequestError(f"{name[:80]!r} needs up to {most} dimensions of known sizes")
    return Tensor(name, TYPES.get(content.dtype, f"type {content.dtype}"), sizes, content)


def decode(request: Message, tensors: Sequence[Tensor], entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a PredictRequest with up to `most` batch elements. Raises RequestError."""
    tfserving.check_signature(request.model_spec.signature_name)
    if not entry.takes_tensors:  # a single text or file may be sent as a scalar
        tensors = [each._replace(shape=each.shape or [1]) for each in tensors]
    count = columns.check_inputs(entry, tensors, most)
    specs = columns.columns_sent(entry, tensors)
    return columns.call_of(
        entry,
        count,
        {each.name: values_of(each, specs[each.name], count) for each in tensors},
        shape=columns.first_shape(entry, tensors),
        outputs=outputs_of(entry, request),
    )


def values_of(tensor: Tensor, spec: ColumnSpec, count: int) -> Data:
    """Returns an input's data. Raises InvalidRequestError."""
    dims, field = columns.item_shape(spec, tensor.shape), FIELDS.get(spec.datatype, INT_VALUES)
    if content := tensor.content.tensor_content:
        if spec.datatype == BYTES:
            raise InvalidRequestError(f"{spec.name} needs {field}, not tensor_content")
        return columns.raw_array(memoryview(content), spec, dims, count)
    values, needed = getattr(tensor.content, field), math.prod(tensor.shape)
    if len(values) > needed or (needed and not values):
        raise InvalidRequestError(
            f"{spec.name} has {len(values)} values in {field}, but its shape has {needed}"
        )
    missing = needed - len(values)
    filled = chain(values, repeat(values[-1], missing)) if missing else values
    if spec.datatype == BYTES:
        return [*filled]
    if spec.datatype == "FP16":  # the values are bits
        bits = columns.number_array(filled, replace(spec, datatype="UINT16"), dims, count)
        return bits.view(DTYPES["FP16"])
    return columns.number_array(filled, spec, dims, count)


def outputs_of(entry: CatalogEntry, request: Message) -> list[Output]:
    """Returns the outputs that the filter names, or all if it is empty. Raises InvalidRequestError."""
    wanted = {columns.output_of(entry, name).name for name in set(request.output_filter)}
    return [Output(spec, binary=True) for spec in entry.outputs if not wanted or spec.name in wanted]


def encode(call: ColumnCall, answer: Answer) -> list[bytes]:
    """Returns a PredictResponse in parts; outputs of a task begin with the batch dimension.

    Raises InvalidRequestError or InvalidTensorError.
    """
    response = []
    for column in sorted(columns.columns_of(call, answer), key=lambda column: column.spec.name):
        shape, data, spec = column.shape, column.data, column.spec
        if spec.field is not None:
            shape = [call.count, *([len(data) // call.count] if spec.field.is_list else [])]
        tensor = pb.TensorProto(dtype=DATATYPES[column.datatype].tensorflow)
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
        name, packed = FIELDS.get(spec.datatype, INT_VALUES), []
        if spec.datatype in SAME_BYTES:
            number = tensor.DESCRIPTOR.fields_by_name[name].number
            packed = wire.field(number, [*wire.parts(codec.pack(column))])
        else:
            values: Any = data
            if not isinstance(data, list):
                flat = data.astype(DTYPES[spec.datatype], copy=False).ravel()
                values = (flat.view("<u2") if spec.datatype == "FP16" else flat).data  # builds no list
            field = getattr(tensor, name)
            for at in range(0, len(values), PART):  # on a thread, others have their turn in between
                field.extend(values[at : at + PART])
        value = wire.field(MAP_VALUE, [serialise(tensor), *packed])
        response += wire.field(OUTPUTS, [*wire.field(MAP_KEY, [spec.name.encode()]), *value])
    return [*response, serialise(pb.PredictResponse(model_spec=spec_of(call.entry)))]


def spec_of(entry: CatalogEntry) -> Message:
    """Returns the ModelSpec of an answer."""
    content = {"name": entry.name, "version": entry.version, "signature_name": tfserving.SIGNATURE}
    return ParseDict(content, pb.ModelSpec())


def services(calls: Calls, catalog: ModelCatalog) -> Mapping[str, Methods]:
    """Returns the protocol's services."""

    def find(spec: Message) -> CatalogEntry:
        version = str(spec.version.value) if spec.HasField("version") else spec.version_label
        return catalog.find(spec.name, version or None)

    async def predict(request: Message, call: Call) -> bytes:
        if len(request.inputs) > MAX_INPUTS:
            raise InvalidRequestError(f"the request has more than {MAX_INPUTS} inputs")
        tensors = [tensor_of(name, content) for name, content in request.inputs.items()]
        if (size := sum(tensor.size for tensor in tensors)) > (most := calls.pipeline.reader.max_bytes):
            raise PayloadTooLargeError(f"the request's tensors take more than {most} bytes")
        sent = sum(
            width * len(getattr(tensor.content, name))
            for tensor in tensors
            for name, width in WIDTHS.items()
        )

        def target(request: Message) -> Target[ColumnCall]:
            entry = find(request.model_spec)
            read = partial(decode, tensors=tensors, entry=entry, most=entry.model.largest_request)
            return Target(entry.model, read, entry.signature, LARGE if sent else None)

        size = max(request.ByteSize(), size, sent)
        return await call.encode(encode, *await call.infer(target, request, size))

    def metadata(request: Message, _: Context) -> Message:
        if set(request.metadata_field) != {SIGNATURES}:
            raise InvalidRequestError(f"the only metadata_field is {SIGNATURES}: send it")
        entry = find(request.model_spec)
        content = tfserving.metadata_of(entry)["metadata"][SIGNATURES]
        response = pb.GetModelMetadataResponse(model_spec=spec_of(entry))
        packed = response.metadata[SIGNATURES]
        packed.type_url = SIGNATURES_URL
        packed.value = serialise(ParseDict(content, pb.SignatureDefMap()))
        return response

    prediction: Methods = {
        "Predict": Inference(pb.PredictRequest, predict),
        "GetModelMetadata": Method(pb.GetModelMetadataRequest, pb.GetModelMetadataResponse, metadata),
        **not_supported(("Classify", "Regress", "MultiInference"), "call Predict"),
    }
    model: Methods = {
        "GetModelStatus": Method(
            pb.GetModelStatusRequest,
            pb.GetModelStatusResponse,
            lambda request, _: tfserving.status_of(find(request.model_spec)),
        ),
        **not_supported(("HandleReloadConfigRequest",), "load versions with POST /v2/repository"),
    }
    return {"tensorflow.serving.PredictionService": prediction, "tensorflow.serving.ModelService": model}

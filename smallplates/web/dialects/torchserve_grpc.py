"""TorchServe's gRPC API for inference, like `torchserve.py` over HTTP.

The input is a map of names to bytes: `data` or `body`, which is what a body over HTTP is, or the fields
of the model's task.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty

from smallplates.errors import InvalidRequestError
from smallplates.tasks.base import Field, Fields, Task
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.fields import (
    check_names,
    fields_from_body,
    fields_from_json,
    inline_bytes,
    text_of,
)
from smallplates.web.api.pipeline import Call as ModelCall
from smallplates.web.api.pipeline import Target
from smallplates.web.dialects import torchserve
from smallplates.web.grpc import wire
from smallplates.web.grpc.calls import Call, Calls, Inference, Method, Methods, not_supported
from smallplates.web.grpc.generated import torch_serve_pb2 as pb
from smallplates.web.grpc.limits import Message
from smallplates.web.http.body import SYNTAX, decode_json, dump_json, json_parts
from smallplates.web.inference.served_model import Answer

PREDICTION = pb.PredictionResponse.PREDICTION_FIELD_NUMBER
ALIASES = torchserve.FORM_FIELDS
MANAGEMENT = (
    *("DescribeModel", "ListModels", "RegisterModel"),
    *("ScaleWorker", "SetDefault", "UnregisterModel"),
)


def fields_of(task: Task, parts: Mapping[str, bytes]) -> Fields:
    """Finds a task's fields in an input. Raises RequestError."""
    known = {field.name: field for field in task.request}
    name, *others = parts or ("",)
    if name in ALIASES and name not in known and not others:
        return fields_from_body(task, parts[name], None, aliases=ALIASES)
    if task.body_field:
        known = dict.fromkeys((*ALIASES, *task.form_fields), task.body_field) | known
    check_names("input", parts, [*known])
    values = {known[name].name: json_of(known[name], content) for name, content in parts.items()}
    if len(values) < len(parts):
        raise InvalidRequestError(f"the input has a field twice: {', '.join(parts)}"[:200])
    return fields_from_json(task, msgspec.json.encode(values))


def json_of(field: Field, content: bytes) -> Any:
    """Returns what stands for a field in JSON: a text, base64 of bytes, or else JSON already."""
    if field.datatype != "BYTES" or field.is_list or field.is_json:
        return decode_json(SYNTAX, content, field.name)
    return b64encode(content).decode() if field.is_bytes else text_of(content)


def encode(call: ModelCall, answer: Answer) -> list[bytes]:
    """Returns a PredictionResponse in parts, with the JSON that HTTP has."""
    return wire.field(PREDICTION, [*json_parts(torchserve.answers(call, answer))])


def services(calls: Calls, catalog: ModelCatalog) -> Mapping[str, Methods]:
    """Returns the protocol's services."""

    def target(request: Message) -> Target[ModelCall]:
        entry = torchserve.find(catalog, request.model_name, request.model_version or None)
        task, size = entry.model.task, pb.PredictionsRequest.ByteSize

        def read(request: Message) -> Fields:
            return fields_of(task, dict(request.input))

        return torchserve.target_of(entry, read, size, inline_bytes(task, None))

    async def predict(request: Message, call: Call) -> bytes:
        return await call.encode(encode, *await call.infer(target, request, request.ByteSize()))

    def ping(_: Message, __: object) -> Message:
        health = torchserve.health(calls.pipeline.service.is_ready)
        return pb.TorchServeHealthResponse(health=dump_json(health))

    inference: Methods = {
        "Ping": Method(Empty, pb.TorchServeHealthResponse, ping),
        "Predictions": Inference(pb.PredictionsRequest, predict),
        "StreamPredictions": Inference(pb.PredictionsRequest, predict, is_stream=True),
    }
    management = not_supported(MANAGEMENT, "load and unload models with POST /v2/repository")
    return {
        "org.pytorch.serve.grpc.inference.InferenceAPIsService": inference,
        "org.pytorch.serve.grpc.management.ManagementAPIsService": management,
    }

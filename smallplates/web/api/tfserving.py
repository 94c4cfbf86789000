"""TensorFlow Serving's REST API, identical to KServe's v1 protocol: all paths under `/v1`.

Requests have rows (`instances`, answered with `predictions`) or columns (`inputs`, answered with
`outputs`). Bytes are `{"b64": "..."}`, tensors are nested lists of numbers. Clients may omit the name of
the only input, or of the only required input if it is text.
"""

from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
from fastapi import Request, Response

from smallplates.base64 import decode_base64
from smallplates.errors import InvalidBase64Error, InvalidRequestError, NotFoundError
from smallplates.models.tensors import Array
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec, ModelCatalog
from smallplates.web.api.columns import (
    ColumnCall,
    Values,
    call_of,
    check_size,
    count_of,
    fits,
    json_array,
)
from smallplates.web.api.datatypes import BYTES, DATATYPES
from smallplates.web.api.dialect import Dialect, ErrorText, Routes, text_error
from smallplates.web.api.documentation import example_values
from smallplates.web.api.fields import given
from smallplates.web.api.pipeline import Pipeline, Target
from smallplates.web.http.body import LARGE, decode_json, dump_json, json_response
from smallplates.web.inference.served_model import Answer, check_count

SIGNATURE = "serving_default"
BODY = {
    "type": "object",
    "properties": {"instances": {"type": "array", "minItems": 1}, "inputs": {}},
    "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
}
ALIAS = "data"  # the name of the only input for TorchServe clients of this API


class B64(msgspec.Struct):
    """Bytes in JSON: `{"b64": "..."}`."""

    b64: str


class PredictRequest(msgspec.Struct):
    """A body; `instances` and `inputs` are decoded once the model is known."""

    signature_name: str = SIGNATURE
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


REQUEST = msgspec.json.Decoder(PredictRequest)
TEXT = msgspec.json.Decoder(B64 | str)
TEXTS = msgspec.json.Decoder(list[B64 | str])


def decode(content: bytes, entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a body with up to `most` inputs.

    Raises InvalidJsonError or InvalidRequestError.
    """
    body: PredictRequest = decode_json(REQUEST, content)
    if body.signature_name != SIGNATURE:
        raise InvalidRequestError(f"the only signature is {SIGNATURE}, not {body.signature_name[:80]!r}")
    sent = [raw for value in (body.instances, body.inputs) if (raw := given(value))]
    if len(sent) != 1:
        raise InvalidRequestError(f"send either instances or inputs{'' if sent else ', not null'}")
    most = most if entry.is_batched else 0
    check_size(sent[0], entry, max(1, most))
    by_rows = sent[0] is body.instances
    if by_rows and not entry.is_batched:
        raise InvalidRequestError(f"{entry.name} has no batch dimension: send inputs, not instances")
    parts = rows(sent[0], entry, most) if by_rows else columns(sent[0], entry)
    values = {
        spec.name: column(msgspec.Raw(parts[spec.name]), spec, most)
        for spec in entry.inputs
        if spec.name in parts
    }
    counts = {len(content) for content in values.values()}
    if len(counts) != 1:
        raise InvalidRequestError(
            "the inputs have different numbers of rows" if counts else "send at least one input"
        )
    (count,) = counts
    return call_of(entry, count, values, by_rows=by_rows)


@cache
def named_decoder(names: tuple[str, ...], rows: bool) -> "msgspec.json.Decoder[Any]":
    """Returns a decoder for an object with these input names as keys, or for a list of such objects.

    Values stay JSON. Other keys are refused before anything is built from them.
    """
    fields = [
        (f"_{index}", msgspec.Raw | msgspec.UnsetType, msgspec.field(default=msgspec.UNSET, name=name))
        for index, name in enumerate(names)
    ]
    named: Any = msgspec.defstruct("Named", fields, forbid_unknown_fields=True)
    return msgspec.json.Decoder(list[named] if rows else named)


def known_names(entry: CatalogEntry) -> tuple[str, ...]:
    """Returns the keys that an object of inputs may have."""
    names = [spec.name for spec in entry.inputs]
    return tuple(dict.fromkeys([*names, ALIAS, "b64"] if entry.default_input else names))


def values_of(named: msgspec.Struct, entry: CatalogEntry) -> dict[str, bytes]:
    """Returns the JSON of each input's value. Raises InvalidRequestError for wrong names."""
    by_name = {
        name: bytes(raw)
        for index, name in enumerate(known_names(entry))
        if (raw := given(getattr(named, f"_{index}")))
    }
    if spec := entry.default_input:
        if list(by_name) == ["b64"]:
            return {spec.name: b'{"b64":' + by_name["b64"] + b"}"}
        if list(by_name) == [ALIAS]:
            return {spec.name: by_name[ALIAS]}
    if len(entry.inputs) == 1 and list(by_name) != [entry.inputs[0].name]:
        raise InvalidRequestError(
            f"the only input is {entry.inputs[0].name}, not {', '.join(by_name)[:80] or 'null'}"
        )
    for spec in entry.inputs:
        if spec.name not in by_name and not spec.is_optional:
            raise InvalidRequestError(f"{spec.name} is missing")
    known = {spec.name for spec in entry.inputs}
    if other := [name for name in by_name if name not in known]:
        raise InvalidRequestError(
            f"{other[0]} is an alias for {entry.inputs[0].name} and cannot be combined with other inputs"
        )
    return by_name


def rows(raw: msgspec.Raw, entry: CatalogEntry, most: int) -> dict[str, bytes]:
    """Returns the JSON of each input's batch in `instances`: a list of objects, or of plain values."""
    if not bytes(raw)[1:].lstrip().startswith(b"{"):
        return {only_input(entry).name: bytes(raw)}
    found = decode_json(named_decoder(known_names(entry), rows=True), raw)
    check_count(len(found), most)
    values = [values_of(each, entry) for each in found]
    if any(each.keys() != values[0].keys() for each in values):
        raise InvalidRequestError("all instances need the same inputs")
    return {name: b"[" + b",".join(each[name] for each in values) + b"]" for name in values[0]}


def columns(raw: msgspec.Raw, entry: CatalogEntry) -> dict[str, bytes]:
    """Returns the JSON of each input's batch in `inputs`: an object, or the only input's batch."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return {only_input(entry).name: bytes(raw)}
    return values_of(decode_json(named_decoder(known_names(entry), rows=False), raw), entry)


def only_input(entry: CatalogEntry) -> ColumnSpec:
    """Returns the input whose name may be omitted. Raises InvalidRequestError if there is none."""
    if entry.default_input is None:
        names = ", ".join(spec.name for spec in entry.inputs)
        raise InvalidRequestError(f"name the inputs: {names}")
    return entry.default_input


def column(raw: msgspec.Raw, spec: ColumnSpec, most: int) -> Values:
    """Parses the values of an input; `most` is 0 for a model without a batch dimension.

    Raises InvalidJsonError or InvalidRequestError.
    """
    content: Values
    if not most:
        return whole_tensor(raw, spec)
    if spec.datatype != BYTES:
        content = numeric_column(raw, spec, most)
    elif spec.dims != (1,):
        raise InvalidRequestError(
            f"{spec.name} is a list of texts, which this protocol does not support"
        )
    elif bytes(memoryview(raw)[:1]) == b"[":
        content = [element(value, spec) for value in decode_json(TEXTS, raw, spec.name)]
    else:  # a single text may be sent without brackets
        content = [element(decode_json(TEXT, raw, spec.name), spec)]
    check_count(len(content), most)
    return content


def numeric_column(raw: msgspec.Raw, spec: ColumnSpec, most: int) -> Array:
    """Parses numbers to [N, *dims]."""
    count, of_one = count_of(raw, spec), spec.largest
    if count > of_one * most or (-1 not in spec.dims and count % of_one):
        raise InvalidRequestError(f"each {spec.name} needs {of_one} numbers; the request has {count}")
    is_scalar = spec.field is not None and spec.dims == (1,)
    dims = () if is_scalar else spec.dims
    array = json_array(raw, 1 + len(dims), spec)
    if len(array.shape) != 1 + len(dims) or not fits(dims, array.shape[1:]):
        raise InvalidRequestError(
            f"{spec.name} must have the shape [N, {list(spec.dims)}], not {list(array.shape)}"
        )
    return array[:, np.newaxis] if is_scalar else array


def whole_tensor(raw: msgspec.Raw, spec: ColumnSpec) -> Array:
    """Parses the numbers of an input without a batch dimension to [1, *dims]."""
    array = json_array(raw, len(spec.dims), spec)
    if not fits(spec.dims, array.shape):
        raise InvalidRequestError(
            f"{spec.name} must have the shape {[*spec.dims]}, not {[*array.shape]}"
        )
    return array[np.newaxis]


def element(value: B64 | str, spec: ColumnSpec) -> Any:
    """Unwraps a value: text, its bytes if given as base64, or the base64 of a field of bytes.

    Raises InvalidBase64Error.
    """
    if isinstance(value, str):
        return value
    if spec.is_bytes:
        return value.b64
    try:
        return decode_base64(value.b64)
    except ValueError as error:
        raise InvalidBase64Error(f"{spec.name} is not valid base64: {error}"[:200]) from error


def outputs_of(call: ColumnCall, answer: Answer) -> dict[str, list[Any]]:
    """Returns each output's values, one per input. Raises InvalidTensorError."""
    outputs = call.entry.outputs
    if call.tensors is not None:
        call.entry.model.check_finite(answer)
        arrays = answer.arrays if call.entry.is_batched else [array[0] for array in answer.arrays]
        return {spec.name: array.tolist() for spec, array in zip(outputs, arrays, strict=True)}
    return {
        spec.name: [best.get(spec.field.name) for best, *_ in answer.candidates]
        for spec in outputs
        if spec.field
    }


def encode(columns: dict[str, list[Any]], by_rows: bool) -> dict[str, Any]:
    """Formats the outputs by rows or by columns; a single output is sent without its name."""
    if by_rows:
        values = list(zip(*columns.values(), strict=True))
        single = len(columns) == 1
        return {
            "predictions": [row[0] if single else dict(zip(columns, row, strict=True)) for row in values]
        }
    return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths under `/v1`."""
    responses = routes.errors(404, 503)
    add_predict(routes, pipeline, catalog)

    @routes.get("/v1/models", summary="Names of the models, as KServe lists them")
    async def all_models() -> Response:
        return json_response({"models": list(catalog.names)})

    @routes.get("/v1/models/{model}", summary="Which version is served", responses=responses)
    @routes.get(
        "/v1/models/{model}/versions/{version}",
        summary="Whether a version is served",
        responses=responses,
    )
    async def status(model: str, version: str | None = None) -> Response:
        return json_response(status_of(catalog.find(model, version)))

    @routes.get("/v1/models/{model}/metadata", summary="Names, types and shapes", responses=responses)
    @routes.get(
        "/v1/models/{model}/versions/{version}/metadata",
        summary="Names, types and shapes of a version",
        responses=responses,
    )
    async def metadata(model: str, version: str | None = None) -> Response:
        return json_response(metadata_of(catalog.find(model, version)))

    @routes.post("/v1/models/{rest:path}", include_in_schema=False)
    async def other_verb(rest: str) -> Response:  # noqa: ARG001
        raise NotFoundError("only the method :predict is supported")


def add_predict(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the two paths of `:predict`."""
    content = {"application/json": {"schema": BODY}}

    @routes.call("/v1/models/{model}:predict", "Call a model", content)
    @routes.call("/v1/models/{model}/versions/{version}:predict", "Call a version", content)
    async def predict(model: str, request: Request, version: str | None = None) -> Response:
        entry = catalog.find(model, version)
        inline = None if entry.is_quick_to_parse else LARGE
        reader = partial(decode, entry=entry, most=entry.model.largest_request)
        target = Target(entry.model, reader, entry.signature, inline)
        call, answer = await pipeline.http(request, target)
        return json_response(encode(outputs_of(call, answer), call.by_rows))


def example(entry: CatalogEntry) -> Any:
    """Returns the body of a call with a model's example; None if it has none."""
    row = {
        spec.name: row_value(spec, value[0] if entry.is_batched and spec.field is None else value)
        for spec, _, value in example_values(entry)
    }
    return ({"instances": [row]} if entry.is_batched else {"inputs": row}) if row else None


def row_value(spec: ColumnSpec, value: Any) -> Any:
    """Returns a value in TensorFlow Serving's form, which carries objects as text."""
    if spec.field is None:
        return value
    if spec.field.is_json:
        return dump_json(value).decode()
    return {"b64": value} if spec.field.is_bytes else value


def status_of(entry: CatalogEntry) -> dict[str, Any]:
    """Returns the status of the version in service, which is AVAILABLE."""
    state = {
        "version": entry.version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [state]}


def metadata_of(entry: CatalogEntry) -> dict[str, Any]:
    """Describes the model's only signature."""
    batch = [-1] if entry.is_batched else []

    def tensor(spec: ColumnSpec) -> dict[str, Any]:
        sizes = [*batch, *(() if spec.field and spec.dims == (1,) else spec.dims)]
        return {
            "dtype": DATATYPES[spec.datatype].tensorflow,
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in sizes],
                "unknown_rank": False,
            },
            "name": f"{spec.name}:0",
        }

    signature = {
        "inputs": {spec.name: tensor(spec) for spec in entry.inputs},
        "outputs": {spec.name: tensor(spec) for spec in entry.outputs},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": entry.name, "signature_name": "", "version": entry.version},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
    }


DIALECT = Dialect(add_routes, "TensorFlow Serving", text_error, ErrorText, example, prefixes=("/v1/",))

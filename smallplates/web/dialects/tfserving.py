"""TensorFlow Serving's REST API, identical to KServe's v1 protocol: all paths under `/v1`.

Requests have rows (`instances`, answered with `predictions`) or columns (`inputs`, answered with
`outputs`). Bytes are `{"b64": "..."}`, tensors are nested lists of numbers. Clients may omit the name of
the only input, or of the only required input if it is text.
"""

from functools import partial
from typing import Any

import msgspec
import numpy as np
from fastapi import Request, Response

from smallplates.base64 import decode_base64
from smallplates.errors import InvalidBase64Error, InvalidRequestError, NotFoundError
from smallplates.models.task_kinds import EMBEDDING
from smallplates.models.tensors import Array
from smallplates.web.api import columns
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec, ModelCatalog
from smallplates.web.api.columns import ColumnCall, Data
from smallplates.web.api.datatypes import BYTES, DATATYPES
from smallplates.web.api.dialect import Dialect, ErrorText, Routes, text_error
from smallplates.web.api.documentation import example_values
from smallplates.web.api.fields import value_of
from smallplates.web.api.pipeline import Pipeline, Target
from smallplates.web.http.body import LARGE, decode_json, dump_json, json_response
from smallplates.web.inference.served_model import Answer, check_count

SIGNATURE = "serving_default"
BODY = {
    "type": "object",
    "properties": {"instances": {"type": "array", "minItems": 1}, "inputs": {}},
    "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
}
ALIASES = ("data", "b64")  # of the only input: TorchServe's clients send the first to this API


class B64(msgspec.Struct):
    """Bytes in JSON: `{"b64": "..."}`."""

    b64: str


class PredictRequest(msgspec.Struct):
    """A body; `instances` and `inputs` are decoded once the model is known."""

    signature_name: str = SIGNATURE
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Inputs = dict[str, msgspec.Raw]
"""Name of an input -> its value in JSON."""

REQUEST = msgspec.json.Decoder(PredictRequest)
INPUTS, ROWS = msgspec.json.Decoder(Inputs), msgspec.json.Decoder(list[Inputs])
TEXT, TEXTS = msgspec.json.Decoder(B64 | str), msgspec.json.Decoder(list[B64 | str])


def decode(content: bytes, entry: CatalogEntry, most: int) -> ColumnCall:
    """Decodes a body with up to `most` inputs.

    Raises InvalidJsonError or InvalidRequestError.
    """
    body: PredictRequest = columns.decode_tensors(REQUEST, content)
    check_signature(body.signature_name)
    raws = [raw for value in (body.instances, body.inputs) if (raw := value_of(value))]
    if len(raws) != 1:
        raise InvalidRequestError(f"send either instances or inputs{'' if raws else ', not null'}")
    most = most if entry.is_batched else 0
    columns.check_size(raws[0], entry, max(1, most))
    by_rows = raws[0] is body.instances
    if by_rows and not entry.is_batched:
        raise InvalidRequestError(f"{entry.name} has no batch dimension: send inputs, not instances")
    parts = from_rows(raws[0], entry, most) if by_rows else from_columns(raws[0], entry)
    data = {
        spec.name: column(parts[spec.name], spec, most) for spec in entry.inputs if spec.name in parts
    }
    counts = {len(content) for content in data.values()}
    if len(counts) != 1:
        raise InvalidRequestError(
            "the inputs have different numbers of rows" if counts else "send at least one input"
        )
    return columns.call_of(entry, counts.pop(), data, by_rows=by_rows)


def check_signature(name: str) -> None:
    """Raises InvalidRequestError for any signature but the default one; an empty name means that."""
    if (name or SIGNATURE) != SIGNATURE:
        raise InvalidRequestError(f"the only signature is {SIGNATURE}, not {name[:80]!r}")


def from_rows(raw: msgspec.Raw, entry: CatalogEntry, most: int) -> Inputs:
    """Returns the batch of each input in `instances`: a list of objects, or of plain values."""
    if not bytes(raw)[1:].lstrip().startswith(b"{"):
        return {only_input(entry).name: raw}
    batch = [inputs_of(row, entry) for row in decode_json(ROWS, raw)]
    check_count(len(batch), most)
    if any(row.keys() != batch[0].keys() for row in batch):
        raise InvalidRequestError("all instances need the same inputs")
    return {name: msgspec.Raw(b"[%b]" % b",".join(row[name] for row in batch)) for name in batch[0]}


def from_columns(raw: msgspec.Raw, entry: CatalogEntry) -> Inputs:
    """Returns the batch of each input in `inputs`: an object, or the only input's batch."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return {only_input(entry).name: raw}
    return inputs_of(decode_json(INPUTS, raw), entry)


def inputs_of(row: Inputs, entry: CatalogEntry) -> Inputs:
    """Returns the inputs of an object, without nulls. Raises InvalidRequestError for wrong names."""
    inputs = {name: raw for name, value in row.items() if (raw := value_of(value))}
    default, names = entry.default_input, [spec.name for spec in entry.inputs]
    if default and [*inputs] == ["data"]:
        return {default.name: inputs["data"]}
    if default and [*inputs] == ["b64"]:
        return {default.name: msgspec.Raw(b'{"b64":%b}' % inputs["b64"])}
    if unknown := [name for name in inputs if name not in names]:
        if default and unknown[0] in ALIASES:
            raise InvalidRequestError(f"{unknown[0]} is an alias for {default.name}: send one of them")
        raise InvalidRequestError(
            f"{entry.name} has no input {unknown[0][:80]!r}; its inputs are {', '.join(names)}"
        )
    if missing := [s.name for s in entry.inputs if s.name not in inputs and not s.is_optional]:
        raise InvalidRequestError(f"{missing[0]} is missing")
    return inputs


def only_input(entry: CatalogEntry) -> ColumnSpec:
    """Returns the input whose name may be omitted. Raises InvalidRequestError if there is none."""
    if entry.default_input is None:
        names = ", ".join(spec.name for spec in entry.inputs)
        raise InvalidRequestError(f"name the inputs: {names}")
    return entry.default_input


def column(raw: msgspec.Raw, spec: ColumnSpec, most: int) -> Data:
    """Parses the batch of an input; `most` is 0 for a model without a batch dimension.

    Raises InvalidJsonError or InvalidRequestError.
    """
    if spec.datatype != BYTES:
        data: Data = numbers(raw, spec, most)
    elif spec.dims != (1,):
        raise InvalidRequestError(
            f"{spec.name} is a list of texts, which this protocol does not support"
        )
    else:  # a single text may be sent without brackets
        is_list = bytes(memoryview(raw)[:1]) == b"["
        texts = decode_json(TEXTS, raw, spec.name) if is_list else [decode_json(TEXT, raw, spec.name)]
        data = [element(value, spec) for value in texts]
    check_count(len(data), max(1, most))
    return data


def numbers(raw: msgspec.Raw, spec: ColumnSpec, most: int) -> Array:
    """Parses numbers to [N, *dims], without a batch dimension in JSON if `most` is 0."""
    count, of_one, dims = columns.count_of(raw, spec), spec.largest, [*spec.dims]
    if count > of_one * max(1, most) or (most and -1 not in dims and count % of_one):
        raise InvalidRequestError(f"each {spec.name} needs {of_one} numbers; the request has {count}")
    is_scalar = spec.field is not None and dims == [1]
    array = columns.json_array(raw, (1 if most else 0) + (0 if is_scalar else len(dims)), spec)
    if is_scalar:
        array = array[:, np.newaxis]
    elif not most:
        array = array[np.newaxis]
    if not spec.fits(array.shape[1:]):
        shape = f"[N, {dims}]" if most else f"{dims}"
        raise InvalidRequestError(
            f"{spec.name} must have the shape {shape}, not {[*array.shape][0 if most else 1 :]}"
        )
    return array


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


def encode(call: ColumnCall, answer: Answer) -> dict[str, Any]:
    """Formats the outputs by rows or by columns; a single output is sent without its name.

    Raises InvalidTensorError.
    """
    outputs = call.entry.outputs
    values: dict[str, list[Any] | Array] = {}
    if call.tensors is not None:
        for spec, array in zip(outputs, answer.arrays, strict=True):
            columns.check_finite(spec.name, array)
            values[spec.name] = array if call.entry.is_batched else array[0]
    else:
        for spec in outputs:
            name = spec.field.name if spec.field else spec.name
            values[spec.name] = [best.get(name) for best, *_ in answer.candidates]
    if len(values) == 1:
        return {"predictions" if call.by_rows else "outputs": values[outputs[0].name]}
    if call.by_rows:
        rows = zip(*values.values(), strict=True)
        return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}
    return {"outputs": values}


def add_routes(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds all paths under `/v1`."""
    add_predict(routes, pipeline, catalog)

    @routes.about("/v1/models", "Names of the models, as KServe lists them")
    async def all_models() -> Response:
        return json_response({"models": list(catalog.names), **catalog.cards()})

    @routes.about("/v1/models/{model}", "Which version is served", 404, 503)
    @routes.about("/v1/models/{model}/versions/{version}")
    async def status(model: str, version: str | None = None) -> Response:
        entry = catalog.find(model, version)
        is_openai = version is None and entry.model.description.task == EMBEDDING
        return json_response({**status_of(entry), **(entry.card if is_openai else {})})

    @routes.about("/v1/models/{model}/metadata", "Names, types and shapes", 404, 503)
    @routes.about("/v1/models/{model}/versions/{version}/metadata")
    async def metadata(model: str, version: str | None = None) -> Response:
        return json_response(metadata_of(catalog.find(model, version)))

    @routes.post("/v1/models/{rest}", include_in_schema=False)
    @routes.post("/v1/models/{rest:path}:{verb}", include_in_schema=False)
    async def other_verb(rest: str, verb: str = "") -> Response:  # noqa: ARG001
        raise NotFoundError("only NAME:predict and NAME/versions/VERSION:predict are supported")


def add_predict(routes: Routes, pipeline: Pipeline, catalog: ModelCatalog) -> None:
    """Adds the two paths of `:predict`."""
    content = {"application/json": {"schema": BODY}}

    @routes.call("/v1/models/{model}:predict", "Call a model", content)
    @routes.call("/v1/models/{model}/versions/{version}:predict", "Call a version", content)
    async def predict(model: str, request: Request, version: str | None = None) -> Response:
        entry = catalog.find(model, version)
        inline = None if entry.is_quick_to_parse else LARGE
        target = Target(entry.model, partial(call_of, entry), entry.signature, inline)
        return await pipeline.http(request, target)


def call_of(entry: CatalogEntry, body: bytes) -> ColumnCall:
    """Returns the call for a body. Raises what `decode` raises."""
    call = decode(body, entry, entry.model.largest_request)
    call.respond = lambda answer, _: json_response(encode(call, answer))
    return call


def example(entry: CatalogEntry) -> Any:
    """Returns the body of a call with a model's example; None if it has none, or has a list of texts."""
    if any(spec.is_text and spec.dims != (1,) for spec in entry.inputs):
        return None
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


DIALECT = Dialect(
    add_routes,
    "TensorFlow Serving",
    text_error,
    ErrorText,
    example,
    prefixes=("/v1/models/",),
    about="For clients of TensorFlow Serving's REST API: rows or columns of inputs.",
    grpc="smallplates.web.dialects.tfserving_grpc:services",
)

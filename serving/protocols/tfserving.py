"""TensorFlow Serving's REST API: everything under `/v1`.

Rows (`instances` in, `predictions` out) and columns (`inputs`, `outputs`); bytes are `{"b64": "..."}`, a
tensor nested lists of numbers. The only input, and the only text that is required, may come without its
name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response

from serving.base64 import decode_base64
from serving.engine.statistics import Timings
from serving.errors import InvalidBase64Error, InvalidRequestError, NotFoundError, ServingError
from serving.http.access_log import RequestContext
from serving.http.body import decode_json
from serving.http.responses import json_response
from serving.inference.service import InferenceService, check_count
from serving.protocols.admission import Admission, DirectRoute, RequestOptions, unless_disconnected
from serving.protocols.catalog import CatalogEntry, ModelCatalog, WireTensor
from serving.protocols.fields import commas
from serving.protocols.v2.codec import check_size, nested_array
from serving.protocols.v2.http import documented_errors
from serving.protocols.v2.inference import Content, InferRequest, fits, inputs_of
from serving.tensors import Array

SEGMENT = "v1"
SIGNATURE = "serving_default"
LARGE = 64 * 1024  # bytes of JSON; more is a thread's work
STATUS = {422: 400}
TENSOR_TYPES = {"BYTES": "DT_STRING", "FP16": "DT_HALF", "FP32": "DT_FLOAT", "FP64": "DT_DOUBLE"}
TAGS: list[str | Enum] = ["TensorFlow Serving"]
BODY = {
    "type": "object",
    "properties": {"instances": {"type": "array", "minItems": 1}, "inputs": {}},
    "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
}
ALIAS = "data"  # TorchServe's clients of this API call the only input so


class B64(msgspec.Struct):
    """Bytes in JSON: `{"b64": "..."}`."""

    b64: str


class PredictRequest(msgspec.Struct):
    """A body; `instances` and `inputs` are decoded when the model is known."""

    signature_name: str = SIGNATURE
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


REQUEST = msgspec.json.Decoder(PredictRequest)
TEXT = msgspec.json.Decoder(B64 | str)
TEXTS = msgspec.json.Decoder(list[B64 | str])


@dataclass
class Inputs:
    """The inputs of a checked request."""

    model: CatalogEntry
    count: int
    data: Mapping[str, Content]
    by_rows: bool


def error_response(error: ServingError, _: RequestContext) -> Response:
    """Returns `{"error": "..."}`."""
    return json_response({"error": error.detail}, STATUS.get(error.status, error.status), error.headers)


def parse(content: bytes, model: CatalogEntry, most: int) -> Inputs:
    """Parses a body, for up to `most` inputs. Raises InvalidJsonError or InvalidRequestError."""
    request: PredictRequest = decode_json(REQUEST, content)
    if request.signature_name != SIGNATURE:
        raise InvalidRequestError(
            f"the one signature is {SIGNATURE}, not {request.signature_name[:80]!r}"
        )
    if (request.instances is msgspec.UNSET) == (request.inputs is msgspec.UNSET):
        raise InvalidRequestError("send either instances or inputs")
    given = request.inputs if request.instances is msgspec.UNSET else request.instances
    assert isinstance(given, msgspec.Raw)  # noqa: S101 one of the two is there
    check_size(given, model, most)
    if given is request.instances:
        return Inputs(model, *rows(given, model, most), by_rows=True)
    return Inputs(model, *columns(given, model, most), by_rows=False)


@cache
def named_decoder(names: tuple[str, ...], rows: bool) -> "msgspec.json.Decoder[Any]":
    """Returns a decoder of an object whose keys are names of inputs, or of a list of such objects.

    The values stay JSON; other keys are refused unbuilt.
    """
    fields = [
        (f"_{index}", msgspec.Raw | msgspec.UnsetType, msgspec.field(default=msgspec.UNSET, name=name))
        for index, name in enumerate(names)
    ]
    named: Any = msgspec.defstruct("Named", fields, forbid_unknown_fields=True)
    return msgspec.json.Decoder(list[named] if rows else named)


def known_names(model: CatalogEntry) -> tuple[str, ...]:
    """Returns the keys that an object of inputs may have."""
    names = [spec.name for spec in model.inputs]
    return tuple(dict.fromkeys([*names, ALIAS, "b64"] if model.nameless else names))


def values_of(named: msgspec.Struct, model: CatalogEntry) -> dict[str, bytes]:
    """Returns the JSON of each input's value. Raises InvalidRequestError for a wrong set of names."""
    given = {
        name: bytes(raw)
        for index, name in enumerate(known_names(model))
        if (raw := getattr(named, f"_{index}")) is not msgspec.UNSET
    }
    if spec := model.nameless:
        if list(given) == ["b64"]:
            return {spec.name: b'{"b64":' + given["b64"] + b"}"}
        if list(given) == [ALIAS]:
            return {spec.name: given[ALIAS]}
    if len(model.inputs) == 1 and list(given) != [model.inputs[0].name]:
        raise InvalidRequestError(
            f"the one input is {model.inputs[0].name}, not {', '.join(given)[:80]!r}"
        )
    for spec in model.inputs:
        if spec.name not in given and not spec.is_optional:
            raise InvalidRequestError(f"{spec.name} is missing")
    known = {spec.name for spec in model.inputs}
    if other := [name for name in given if name not in known]:
        raise InvalidRequestError(f"{other[0]} stands for {model.inputs[0].name}, and for it alone")
    return given


def rows(raw: msgspec.Raw, model: CatalogEntry, most: int) -> tuple[int, dict[str, Content]]:
    """Parses `instances`: objects that name the inputs, or values of the only one."""
    if not bytes(raw)[1:].lstrip().startswith(b"{"):
        return joined([column(raw, only_input(model), most)])
    found = decode_json(named_decoder(known_names(model), rows=True), raw)
    check_count(len(found), most)
    values = [values_of(each, model) for each in found]
    if any(each.keys() != values[0].keys() for each in values):
        raise InvalidRequestError("all instances need the same inputs")
    return joined(
        [
            column(msgspec.Raw(b"[" + b",".join(each[spec.name] for each in values) + b"]"), spec, most)
            for spec in model.inputs
            if spec.name in values[0]
        ]
    )


def columns(raw: msgspec.Raw, model: CatalogEntry, most: int) -> tuple[int, dict[str, Content]]:
    """Parses `inputs`: an object of the inputs' columns, or the column of the only one."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return joined([column(raw, only_input(model), most)])
    values = values_of(decode_json(named_decoder(known_names(model), rows=False), raw), model)
    return joined(
        [
            column(msgspec.Raw(values[spec.name]), spec, most)
            for spec in model.inputs
            if spec.name in values
        ]
    )


def only_input(model: CatalogEntry) -> WireTensor:
    """Returns the input that needs no name. Raises InvalidRequestError where there is none."""
    if model.nameless is None:
        names = ", ".join(spec.name for spec in model.inputs)
        raise InvalidRequestError(f"name the inputs: {names}")
    return model.nameless


def joined(found: list[tuple[str, Content]]) -> tuple[int, dict[str, Content]]:
    """Returns the number of rows of columns, and the columns. Raises InvalidRequestError."""
    count, *others = {len(content) for _, content in found}
    if others:
        raise InvalidRequestError("the inputs have different numbers of rows")
    return count, dict(found)


def column(raw: msgspec.Raw, spec: WireTensor, most: int) -> tuple[str, Content]:
    """Parses the batch of an input, and returns the input's name, too."""
    content: Content
    if spec.datatype != "BYTES":
        content = numeric_column(raw, spec, most)
    elif spec.dims != (1,):
        raise InvalidRequestError(f"{spec.name} is a list of texts, for which there is no form here")
    elif bytes(memoryview(raw)[:1]) == b"[":
        content = [element(value, spec) for value in decode_json(TEXTS, raw, spec.name)]
    else:  # a single text may come without brackets
        content = [element(decode_json(TEXT, raw, spec.name), spec)]
    check_count(len(content), most)
    return spec.name, content


def numeric_column(raw: msgspec.Raw, spec: WireTensor, most: int) -> Array:
    """Parses numbers to [N, *dims]."""
    found, of_one = commas(raw) + 1, spec.largest
    if found > of_one * most or (-1 not in spec.dims and found % of_one):
        raise InvalidRequestError(f"{spec.name} needs {of_one} numbers each, not {found} in all")
    is_scalar = spec.field is not None and spec.dims == (1,)
    dims = () if is_scalar else spec.dims
    array = nested_array(raw, 1 + len(dims), spec)
    if len(array.shape) != 1 + len(dims) or not fits(replace(spec, dims=dims), array.shape[1:]):
        raise InvalidRequestError(
            f"{spec.name} has the shape {list(array.shape)}, not [N, {list(spec.dims)}]"
        )
    return array[:, np.newaxis] if is_scalar else array


def element(value: B64 | str, spec: WireTensor) -> Any:
    """Returns text, or the base64 of bytes, unwrapped. Raises InvalidBase64Error."""
    if isinstance(value, str):
        return value
    if spec.is_bytes:
        return value.b64
    try:
        return decode_base64(value.b64)
    except ValueError as error:
        raise InvalidBase64Error(f"{spec.name} is not base64: {error}"[:200]) from error


async def infer(
    service: InferenceService, inputs: Inputs, options: RequestOptions
) -> tuple[dict[str, list[Any]], Timings]:
    """Returns each output's values, one per input, and the request's timings."""
    model = inputs.model
    if model.takes_tensors:
        arrays = [np.asarray(inputs.data[spec.name]) for spec in model.inputs]
        tensors = await service.infer(arrays, options.deadline(), options.bulk)
        tensors.check_finite()
        columns = zip(model.outputs, tensors.arrays, strict=True)
        return {spec.name: array.tolist() for spec, array in columns}, tensors.timings
    request = InferRequest(model, inputs.count, [inputs.count, 1], inputs.data, [])
    found = await service.predict(inputs_of(request), 1, options.deadline(), options.bulk)
    return {
        spec.name: [top[0][spec.field.name] for top in found.tops]
        for spec in model.outputs
        if spec.field
    }, found.timings


def answer(columns: dict[str, list[Any]], by_rows: bool) -> dict[str, Any]:
    """Formats the outputs by rows or by columns; a single output goes without its name."""
    if by_rows:
        values = list(zip(*columns.values(), strict=True))
        single = len(columns) == 1
        return {
            "predictions": [row[0] if single else dict(zip(columns, row, strict=True)) for row in values]
        }
    return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}


def create_router(service: InferenceService, admission: Admission, catalog: ModelCatalog) -> APIRouter:
    """Returns all paths under `/v1`."""
    router = APIRouter(tags=TAGS)
    about: dict[str, Any] = {"responses": documented_errors(404, 503)}  # FastAPI's own types
    router.routes.extend(predict_router(service, admission, catalog).routes)

    @router.get("/v1/models/{model}", summary="Which version is served", **about)
    @router.get("/v1/models/{model}/versions/{version}", summary="Whether a version is served", **about)
    async def status(model: str, version: str | None = None) -> Response:
        return json_response(status_of(catalog.find(model, version)))

    @router.get("/v1/models/{model}/metadata", summary="Names, types and shapes", **about)
    @router.get(
        "/v1/models/{model}/versions/{version}/metadata", summary="The same of a version", **about
    )
    async def metadata(model: str, version: str | None = None) -> Response:
        return json_response(metadata_of(catalog.find(model, version)))

    @router.post("/v1/models/{rest:path}", include_in_schema=False)
    async def other_verb() -> Response:
        raise NotFoundError("only :predict can be asked of a model")

    return router


def predict_router(service: InferenceService, admission: Admission, catalog: ModelCatalog) -> APIRouter:
    """Returns the two paths of `:predict`."""
    router = APIRouter(route_class=DirectRoute, tags=TAGS)
    documentation: dict[str, Any] = {  # FastAPI's own types
        "responses": documented_errors(400, 401, 404, 408, 413, 415, 500, 503, 504),
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": BODY}}}
        },
        "dependencies": admission.check_key.documented(),
    }

    @router.post("/v1/models/{model}:predict", summary="Call a model", **documentation)
    @router.post(
        "/v1/models/{model}/versions/{version}:predict", summary="Call a version", **documentation
    )
    async def predict(model: str, request: Request, version: str | None = None) -> Response:
        entry = catalog.find(model, version)
        options = admission.admit(request, entry.signature)
        async with admission.body(request) as content:
            parse_content = partial(parse, content, entry, service.largest_request)
            if len(content) > LARGE and not entry.is_quick_to_parse:
                inputs = await service.run_on_thread(parse_content, options.bulk)
            else:
                inputs = parse_content()
            columns, timings = await unless_disconnected(request, infer(service, inputs, options))
        RequestContext.of(request).set_timings(timings)
        return json_response(answer(columns, inputs.by_rows))

    return router


def status_of(model: CatalogEntry) -> dict[str, Any]:
    """Returns the status of the one version in service: AVAILABLE."""
    state = {
        "version": model.version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [state]}


def metadata_of(model: CatalogEntry) -> dict[str, Any]:
    """Describes the one signature."""

    def tensor(spec: WireTensor) -> dict[str, Any]:
        sizes = [-1, *(() if spec.field and spec.dims == (1,) else spec.dims)]
        return {
            "dtype": TENSOR_TYPES.get(spec.datatype, f"DT_{spec.datatype}"),
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in sizes],
                "unknown_rank": False,
            },
            "name": f"{spec.name}:0",
        }

    signature = {
        "inputs": {spec.name: tensor(spec) for spec in model.inputs},
        "outputs": {spec.name: tensor(spec) for spec in model.outputs},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": model.version},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
    }

"""TensorFlow Serving's REST API: everything under `/v1`.

Rows (`instances` in, `predictions` out) and columns (`inputs`, `outputs`); an image is
`{"b64": "..."}`, a tensor nested lists of numbers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from serving.engine.statistics import Timings
from serving.errors import InvalidRequestError, NotFoundError, ServingError
from serving.http.access_log import RequestContext
from serving.http.body import decode_json
from serving.http.responses import json_response
from serving.inference.active_model import EncodedImage
from serving.inference.service import InferenceService
from serving.protocols.admission import Admission, DirectRoute, RequestOptions, unless_disconnected
from serving.protocols.catalog import CatalogEntry, ModelCatalog, TensorSpec
from serving.protocols.v2.codec import check_size, commas
from serving.tasks.image.decode import from_base64
from serving.tasks.image_classification import IMAGE, TENSOR

SEGMENT = "v1"
SIGNATURE = "serving_default"
LARGE = 64 * 1024  # bytes of JSON; more is a thread's work
STATUS = {422: 400}
TENSOR_TYPES = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT"}


class B64(msgspec.Struct):
    """Bytes in JSON: `{"b64": "..."}`."""

    b64: str


class PredictRequest(msgspec.Struct):
    """A body; `instances` and `inputs` are decoded when the model is known."""

    signature_name: str = SIGNATURE
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """An object whose key is an input's name, or `b64`; other keys are refused unbuilt."""

    INPUT_IMAGE: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    b64: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Row4 = list[list[list[list[float]]]]
REQUEST = msgspec.json.Decoder(PredictRequest)
NAMED = msgspec.json.Decoder(Named)
NAMED_ROWS = msgspec.json.Decoder(list[Named])
IMAGE_TEXT = msgspec.json.Decoder(B64 | str)
IMAGES = msgspec.json.Decoder(list[B64 | str])
NUMBERS = msgspec.json.Decoder(Row4)


@dataclass
class Inputs:
    """The inputs of a checked request: base64 texts, or tensors float32 [N, *dims]."""

    model: CatalogEntry
    data: list[str] | NDArray[np.float32]
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
        return Inputs(model, rows(given, model, most), by_rows=True)
    return Inputs(model, column(without_name(given, model), model, most), by_rows=False)


def rows(raw: msgspec.Raw, model: CatalogEntry, most: int) -> list[str] | NDArray[np.float32]:
    """Parses `instances`: values, or objects that name the one input."""
    if not bytes(raw)[1:].lstrip().startswith(b"{"):
        return column(raw, model, most)
    found: list[Named] = decode_json(NAMED_ROWS, raw)
    check_count(len(found), most)
    values = [value_of(each, model) for each in found]
    return column(msgspec.Raw(b"[" + b",".join(values) + b"]"), model, most)


def without_name(raw: msgspec.Raw, model: CatalogEntry) -> msgspec.Raw:
    """Returns the value of the one input, named or not."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return raw
    return msgspec.Raw(value_of(decode_json(NAMED, raw), model))


def value_of(named: Named, model: CatalogEntry) -> bytes:
    """Returns the JSON of the one input's value. TorchServe's clients of this API call it `data`.

    Raises InvalidRequestError for any other name.
    """
    given = {
        name: raw
        for name in named.__struct_fields__
        if (raw := getattr(named, name)) is not msgspec.UNSET
    }
    if list(given) == ["b64"]:
        return b'{"b64":' + bytes(given["b64"]) + b"}"
    if list(given) not in ([model.input.name], ["data"]):
        raise InvalidRequestError(f"the one input is {model.input.name}, not {', '.join(given)[:80]!r}")
    return b"".join(map(bytes, given.values()))


def column(raw: msgspec.Raw, model: CatalogEntry, most: int) -> list[str] | NDArray[np.float32]:
    """Parses the batch of the one input; a single image may come without brackets."""
    if model.signature is IMAGE:
        if bytes(memoryview(raw)[:1]) != b"[":
            return [text_of(decode_json(IMAGE_TEXT, raw))]
        texts = [text_of(value) for value in decode_json(IMAGES, raw)]
        check_count(len(texts), most)
        return texts
    numbers, of_one = commas(raw) + 1, int(np.prod(model.input.dims))
    if numbers % of_one or numbers > of_one * most:
        raise InvalidRequestError(
            f"{model.input.name} needs {of_one} numbers each, not {numbers} in all"
        )
    values: Row4 = decode_json(NUMBERS, raw)
    try:
        with np.errstate(over="ignore"):  # infinite then, which is refused in its turn
            array = np.array(values, np.float32)
    except ValueError as error:
        raise InvalidRequestError(f"{model.input.name} is nested unevenly") from error
    if array.shape[1:] != model.input.dims:
        raise InvalidRequestError(
            f"{model.input.name} has the shape {list(array.shape)}, not [N, {list(model.input.dims)}]"
        )
    return array


def text_of(value: B64 | str) -> str:
    """Returns the base64 text, unwrapped."""
    return value.b64 if isinstance(value, B64) else value


def check_count(count: int, most: int) -> None:
    """Raises InvalidRequestError for a number of inputs out of range."""
    if not 1 <= count <= most:
        raise InvalidRequestError(f"one request may have 1 to {most} inputs, not {count}")


async def infer(
    service: InferenceService, inputs: Inputs, options: RequestOptions
) -> tuple[dict[str, list[Any]], Timings]:
    """Returns each output's values, one per input, and the request's timings."""
    if isinstance(inputs.data, np.ndarray):
        logits = await service.infer(inputs.data, options.deadline(), options.bulk)
        logits.check_finite()
        return {"output": logits.rows.tolist()}, logits.timings
    images = [EncodedImage(len(text), partial(from_base64, text)) for text in inputs.data]
    found = await service.classify(images, 1, options.deadline(), options.bulk)
    labels = [top[0].label for top in found.tops]
    probabilities = [top[0].probability for top in found.tops]
    return {"FOOD_LABEL": labels, "PROBABILITY": probabilities}, found.timings


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
    """Returns all paths under `/v1`; their colon is not for OpenAPI's tools."""
    router = APIRouter(include_in_schema=False)
    router.routes.extend(predict_router(service, admission, catalog).routes)

    @router.get("/v1/models/{model}")
    @router.get("/v1/models/{model}/versions/{version}")
    async def status(model: str, version: str | None = None) -> Response:
        return json_response(status_of(catalog.find(model, version)))

    @router.get("/v1/models/{model}/metadata")
    @router.get("/v1/models/{model}/versions/{version}/metadata")
    async def metadata(model: str, version: str | None = None) -> Response:
        return json_response(metadata_of(catalog.find(model, version)))

    return router


def predict_router(service: InferenceService, admission: Admission, catalog: ModelCatalog) -> APIRouter:
    """Returns the two paths of `:predict`."""
    router = APIRouter(route_class=DirectRoute, include_in_schema=False)

    async def predict(name: str, version: str | None, request: Request) -> Response:
        model = catalog.find(name, version)
        options = admission.admit(request, model.signature)
        async with admission.body(request, compressed=True) as content:
            parse_content = partial(parse, content, model, service.largest_request)
            if len(content) > LARGE and model.signature is TENSOR:
                inputs = await service.run_on_thread(parse_content, options.bulk)
            else:
                inputs = parse_content()
            columns, timings = await unless_disconnected(request, infer(service, inputs, options))
        RequestContext.of(request).set_timings(timings)
        return json_response(answer(columns, inputs.by_rows))

    @router.post("/v1/models/{model_and_verb}")
    async def predict_default(model_and_verb: str, request: Request) -> Response:
        return await predict(before_verb(model_and_verb), None, request)

    @router.post("/v1/models/{model}/versions/{version_and_verb}")
    async def predict_version(model: str, version_and_verb: str, request: Request) -> Response:
        return await predict(model, before_verb(version_and_verb), request)

    return router


def before_verb(text: str) -> str:
    """`NAME:predict` -> `NAME`. Raises NotFoundError for other verbs."""
    name, colon, verb = text.rpartition(":")
    if not colon or verb != "predict":
        raise NotFoundError("only :predict can be asked of a model")
    return name


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

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        sizes = [-1, *(() if spec.dims == (1,) else spec.dims)]
        return {
            "dtype": TENSOR_TYPES[spec.datatype],
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in sizes],
                "unknown_rank": False,
            },
            "name": f"{spec.name}:0",
        }

    signature = {
        "inputs": {model.input.name: tensor(model.input)},
        "outputs": {spec.name: tensor(spec) for spec in model.outputs},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": model.version},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
    }

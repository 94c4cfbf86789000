"""TensorFlow Serving's REST API: everything under `/v1`.

Rows (`instances` in, `predictions` out) and columns (`inputs`, `outputs`); a picture is
`{"b64": "..."}`, a tensor nested lists of numbers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from serving.engine.memory import Signature
from serving.engine.statistics import Timings
from serving.errors import InvalidRequestError, NotFoundError, ServingError
from serving.http.context import RequestContext
from serving.http.middleware import FastRoute
from serving.http.responses import json_response
from serving.inference.service import Classifier
from serving.protocols.admission import Admission, RequestOptions, unless_disconnected
from serving.protocols.catalog import CatalogEntry, ModelCatalog, TensorSpec
from serving.protocols.v2.codec import check_size, commas, decoded
from serving.tasks.image.decode import from_base64

SEGMENT = "v1"
PREDICT = "/v1/models/{model_and_verb}"
SIGNATURE = "serving_default"
LARGE = 64 * 1024  # bytes of JSON; more is a thread's work
STATUS = {422: 400}
TENSOR_TYPES = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT"}


class B64(msgspec.Struct):
    """Bytes in JSON."""

    b64: str


class PredictRequest(msgspec.Struct):
    """A whole body; `instances` and `inputs` are decoded when the model is known."""

    signature_name: str = SIGNATURE
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """A value with the name of an input, or bytes; an object of other keys is never built."""

    INPUT_IMAGE: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    b64: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Row4 = list[list[list[list[float]]]]
REQUEST = msgspec.json.Decoder(PredictRequest)
NAMED = msgspec.json.Decoder(Named)
NAMED_ROWS = msgspec.json.Decoder(list[Named])
PICTURE = msgspec.json.Decoder(B64 | str)
PICTURES = msgspec.json.Decoder(list[B64 | str])
NUMBERS = msgspec.json.Decoder(Row4)


@dataclass
class Asked:
    """A checked request."""

    model: CatalogEntry
    data: list[str] | NDArray[np.float32]
    by_rows: bool


def error_response(error: ServingError, _: RequestContext) -> Response:
    """`{"error": "..."}`."""
    return json_response({"error": error.detail}, STATUS.get(error.status, error.status), error.headers)


def parse(content: bytes, model: CatalogEntry, most: int) -> Asked:
    """Raises InvalidJsonError or InvalidRequestError."""
    request: PredictRequest = decoded(REQUEST, content)
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
        return Asked(model, rows(given, model, most), by_rows=True)
    return Asked(model, column(without_name(given, model), model, most), by_rows=False)


def rows(raw: msgspec.Raw, model: CatalogEntry, most: int) -> list[str] | NDArray[np.float32]:
    """`instances`: values, or objects that name the one input."""
    if not bytes(raw)[1:].lstrip().startswith(b"{"):
        return column(raw, model, most)
    found: list[Named] = decoded(NAMED_ROWS, raw)
    check_count(len(found), most)
    values = [value_of(each, model) for each in found]
    return column(msgspec.Raw(b"[" + b",".join(values) + b"]"), model, most)


def without_name(raw: msgspec.Raw, model: CatalogEntry) -> msgspec.Raw:
    """The value of the one input, whether it is named or not."""
    if bytes(memoryview(raw)[:1]) != b"{":
        return raw
    return msgspec.Raw(value_of(decoded(NAMED, raw), model))


def value_of(named: Named, model: CatalogEntry) -> bytes:
    """The JSON of one input's value, which TorchServe's clients of this API call `data`.

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
    """The batch of one input, by its kind; one picture may come without brackets."""
    if model.kind is Signature.IMAGE:
        if bytes(memoryview(raw)[:1]) != b"[":
            return [text_of(decoded(PICTURE, raw))]
        texts = [text_of(value) for value in decoded(PICTURES, raw)]
        check_count(len(texts), most)
        return texts
    numbers, of_one = commas(raw) + 1, int(np.prod(model.input.dims))
    if numbers % of_one or numbers > of_one * most:
        raise InvalidRequestError(
            f"{model.input.name} needs {of_one} numbers each, not {numbers} in all"
        )
    values: Row4 = decoded(NUMBERS, raw)
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
    """Base64, with or without its wrapping."""
    return value.b64 if isinstance(value, B64) else value


def check_count(count: int, most: int) -> None:
    """Raises InvalidRequestError."""
    if not 1 <= count <= most:
        raise InvalidRequestError(f"one request may have 1 to {most} inputs, not {count}")


async def infer(
    classifier: Classifier, asked: Asked, terms: RequestOptions
) -> tuple[dict[str, list[Any]], Timings]:
    """Each output's values, one per input, and where the time went."""
    if isinstance(asked.data, np.ndarray):
        logits = await classifier.infer(asked.data, terms.deadline(), terms.bulk)
        logits.check_finite()
        return {"output": logits.rows.tolist()}, logits.stages
    pictures = [(partial(from_base64, text), len(text)) for text in asked.data]
    found = await classifier.classify_all(pictures, 1, terms.deadline(), terms.bulk)
    labels = [top[0].label for top in found.tops]
    probabilities = [top[0].probability for top in found.tops]
    return {"FOOD_LABEL": labels, "PROBABILITY": probabilities}, found.stages


def answer(columns: dict[str, list[Any]], by_rows: bool) -> dict[str, Any]:
    """One output needs no name, as TensorFlow Serving has it."""
    if by_rows:
        values = list(zip(*columns.values(), strict=True))
        single = len(columns) == 1
        return {
            "predictions": [row[0] if single else dict(zip(columns, row, strict=True)) for row in values]
        }
    return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}


class Predict:
    """The handler of `:predict`."""

    def __init__(self, classifier: Classifier, door: Admission, models: ModelCatalog) -> None:
        self.classifier = classifier
        self.door = door
        self.models = models

    async def __call__(self, name: str, version: str | None, request: Request) -> Response:
        """Raises ServingError, and ClientDisconnect."""
        model = self.models.find(name, version)
        terms = self.door.admit(request, model.kind)
        async with self.door.body(request, compressed=True) as content:
            read = partial(parse, content, model, self.classifier.largest_request)
            if len(content) > LARGE and model.kind is Signature.TENSOR:
                asked = await self.classifier.on_thread(read, terms.bulk)
            else:
                asked = read()
            work = infer(self.classifier, asked, terms)
            columns, stages = await unless_disconnected(request, work)
        RequestContext.of(request).set_timings(stages)
        return json_response(answer(columns, asked.by_rows))

    def fast_routes(self) -> dict[str, FastRoute]:
        """The paths that most requests are for, without a version."""
        return {
            f"/v1/models/{name}:predict": FastRoute(PREDICT, partial(self, name, None))
            for name in self.models.kinds
        }


def create_router(models: ModelCatalog, handler: Predict) -> APIRouter:
    """All paths under `/v1`, bound to one classifier; their colon is not for OpenAPI's tools."""
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/models/{model}")
    @router.get("/v1/models/{model}/versions/{version}")
    async def status(model: str, version: str | None = None) -> Response:
        return json_response(status_of(models.find(model, version)))

    @router.get("/v1/models/{model}/metadata")
    @router.get("/v1/models/{model}/versions/{version}/metadata")
    async def metadata(model: str, version: str | None = None) -> Response:
        return json_response(metadata_of(models.find(model, version)))

    @router.post(PREDICT)
    async def predict(model_and_verb: str, request: Request) -> Response:
        return await handler(before_verb(model_and_verb), None, request)

    @router.post("/v1/models/{model}/versions/{version_and_verb}")
    async def predict_version(model: str, version_and_verb: str, request: Request) -> Response:
        return await handler(model, before_verb(version_and_verb), request)

    return router


def before_verb(text: str) -> str:
    """`NAME:predict` -> `NAME`. Raises NotFoundError for other verbs."""
    name, colon, verb = text.rpartition(":")
    if not colon or verb != "predict":
        raise NotFoundError("only :predict can be asked of a model")
    return name


def status_of(model: CatalogEntry) -> dict[str, Any]:
    """The one version in service is AVAILABLE."""
    state = {
        "version": model.version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [state]}


def metadata_of(model: CatalogEntry) -> dict[str, Any]:
    """The one signature."""

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

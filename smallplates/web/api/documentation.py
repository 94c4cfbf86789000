"""Adds errors and the models in service to the OpenAPI document that FastAPI generates."""

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from pydantic import BaseModel

from smallplates.models.tensors import EXAMPLE_LENGTHS
from smallplates.tasks.base import Schema, Task, json_value
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.fields import TOP_K
from smallplates.web.api.pipeline import KeyCheck
from smallplates.web.http.body import dump_json

DEFINITIONS, COMPONENTS = "#/$defs/", "#/components/schemas/"
BINARY = {"schema": {"type": "string", "format": "binary"}}
OF_ANY_MODEL = ("/predict/{model}", "/model/{model}")
"""Paths that are documented separately for each model by name if there are several models."""

MAX_ZEROS = 4096
"""Maximum number of zeros in an example for tensors; larger models are documented without one."""


CODES = {
    400: ("the body, its encoding or its content cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    404: ("no such model or version", "not_found"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes, pixels, tokens or numbers", "payload_too_large"),
    415: ("unsupported content type", "unsupported_media_type"),
    422: ("the request does not match the schema", "invalid_request"),
    500: ("the server or the model's own code failed", "internal_error"),
    503: ("no free slot, shutting down, or not ready", "overloaded"),
    504: ("the deadline passed", "deadline_exceeded"),
}


class ErrorResponse(BaseModel):
    """What went wrong, in words and as a code."""

    detail: str
    code: str
    request_id: str


class ErrorText(BaseModel):
    """What went wrong, in words."""

    error: str


def documented_errors(
    *statuses: int, model: type[BaseModel] = ErrorResponse
) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for these statuses; `model` is the schema of a protocol's errors."""
    return {status: documented_error(status, model) for status in statuses}


def documented_error(status: int, model: type[BaseModel]) -> dict[str, Any]:
    """Documents one error; native errors get an example."""
    text, code = CODES[status]
    documented: dict[str, Any] = {"model": model, "description": text[0].upper() + text[1:]}
    if model is ErrorResponse:
        example = {"detail": text, "code": code, "request_id": "5f0c9a61e5b14a06a4b3f6d6f8b3c7aa"}
        documented["content"] = {"application/json": {"example": example}}
    if status == 503:
        seconds = {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        documented["headers"] = {"Retry-After": seconds}
    return documented


def documented_call(key: KeyCheck, content: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Returns FastAPI's arguments for an inference path; `content` has the bodies by content type."""
    return {
        "responses": documented_errors(400, 401, 404, 408, 413, 415, 500, 503, 504, model=model),
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
        "dependencies": key.documented(),
    }


def describe_models(schema: dict[str, Any], models: Sequence[Sequence[CatalogEntry]]) -> None:
    """Adds the requests and answers of each model to an OpenAPI document.

    `models` has the entries of each model. The first model is the one of `/predict`. If there are more,
    each model also gets a path `/predict/NAME`.
    """
    paths = schema["paths"]
    templates = {path: paths.pop(path) for path in OF_ANY_MODEL}
    tidy(schema)
    predict = copy.deepcopy(paths["/predict"])
    default = models[0][0].model.task
    if default.request_signature is None:
        for path in [path for path in paths if path.startswith("/predict")]:  # TorchServe's, too
            del paths[path]
    else:
        describe_predict(schema, "/predict", default)
    for entries in models:
        entry = example_entry(entries)
        label = "this model" if entries is models[0] else entry.name
        add_examples(paths, entry, label, alone=len(models) == 1)
    for entries in models if len(models) > 1 else ():
        name, task = entries[0].model.description.name, entries[0].model.task
        if task.request_signature is not None:
            path = f"/predict/{name}"
            paths[path] = copy.deepcopy(predict)
            describe_predict(schema, path, task)
        about = {**templates["/model/{model}"]["get"], "operationId": f"get_model_{name}"}
        paths[f"/model/{name}"] = {"get": {**about, "parameters": []}}


def tidy(schema: dict[str, Any]) -> None:
    """Names operations by their paths, and drops what FastAPI adds beyond them."""
    for path, operations in schema["paths"].items():
        operations.pop("head", None)  # same as GET
        for method, operation in operations.items():
            operation["operationId"] = re.sub(r"\W+", "_", f"{method}{path}").strip("_")
            if parameters := operation.get("parameters"):  # drops `version` if the path has none
                operation["parameters"] = [each for each in parameters if each["in"] == "path"]
            for body in operation.get("requestBody", {}).get("content", {}).values():
                body["schema"] = hoisted(schema, body["schema"])


def add_examples(paths: dict[str, Any], entry: CatalogEntry, label: str, alone: bool) -> None:
    """Adds a model's name, version and example, labelled so, to the paths shared by all models."""
    values = example_values(entry, entry.model.task)
    names = {"model": entry.name, "version": entry.version}
    for path, operations in paths.items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if name := names.get(parameter["name"]):
                    parameter.setdefault("examples", {})[label] = {"value": name}
            if values and (body := example_body(path, values, entry)) is not None:
                content = operation["requestBody"]["content"]["application/json"]
                if alone:
                    content["example"] = body
                else:
                    content.setdefault("examples", {})[label] = {"value": body}


def example_entry(entries: Sequence[CatalogEntry]) -> CatalogEntry:
    """Returns the entry used to document a model: the last one for requests, else for tensors."""
    return ([entry for entry in entries if not entry.takes_tensors] or [*entries])[-1]


def describe_predict(schema: dict[str, Any], path: str, task: Task) -> None:
    """Adds a task's request and answer to a path of the native API."""
    predict = schema["paths"][path]["post"]
    predict["operationId"] = re.sub(r"\W+", "_", f"post{path}")
    predict["parameters"] = parameters(task.most_candidates)
    predict["requestBody"] = {"required": True, "content": bodies(schema, task)}
    answer = component(schema, task.answer_schema)
    if task.list_fields:
        answer = one_or_many(answer)
    predict["responses"]["200"]["content"] = {"application/json": {"schema": answer}}


def example_values(entry: CatalogEntry, task: Task) -> list[tuple[ColumnSpec, list[int], Any]]:
    """Returns an example for a model: its inputs, each with its shape and its value in JSON.

    Tensors are filled with zeros. The list is empty if they would be large, or without an example.
    """
    if entry.takes_tensors:
        batch = [1] if entry.is_batched else []
        shapes = [[*batch, *example_shape(spec)] for spec in entry.inputs]
        if sum(map(math.prod, shapes)) > MAX_ZEROS:
            return []
        return [
            (spec, shape, np.zeros(shape, bool if spec.datatype == "BOOL" else int).tolist())
            for spec, shape in zip(entry.inputs, shapes, strict=True)
        ]
    example: Any = task.example  # a mapping of fields, or the only field of a Python task
    if example is None:
        return []
    if not isinstance(example, Mapping):
        example = {task.request[0].name: example}
    return [
        (spec, [1, len(value) if spec.field.is_list else 1], value)
        for spec in entry.inputs
        if spec.field and (value := json_value(example.get(spec.field.name))) is not None
    ]


def example_shape(spec: ColumnSpec) -> Iterator[int]:
    """Yields the sizes of an example item; varying axes are as long as warm-up's shortest items."""
    for size, most in zip(spec.dims, spec.limits or spec.dims, strict=True):
        yield min(EXAMPLE_LENGTHS[0], most) if size < 0 else size


def example_body(path: str, values: list[tuple[ColumnSpec, list[int], Any]], entry: CatalogEntry) -> Any:
    """Returns the body of a request with `values`, in the protocol of this path; else None."""
    if path.endswith("/infer"):
        inputs = [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": shape,
                "data": tensor_data(spec, value if shape else [value]),
            }
            for spec, shape, value in values
        ]
        return {"inputs": inputs}
    if path.endswith(":predict"):
        row = {
            spec.name: row_value(spec, value[0] if entry.is_batched and spec.field is None else value)
            for spec, _, value in values
        }
        return {"instances": [row]} if entry.is_batched else {"inputs": row}
    return entry.model.task.json_example if path.startswith("/predictions/") else None


def tensor_data(spec: ColumnSpec, value: Any) -> list[Any]:
    """Returns a value as `data` in the Open Inference Protocol, which carries objects as text."""
    if spec.field is None or spec.field.is_list:
        return [*value]
    if spec.field.is_json:
        return [dump_json(value).decode()]
    return [value]


def row_value(spec: ColumnSpec, value: Any) -> Any:
    """Returns a value in TensorFlow Serving's form, which carries objects as text."""
    if spec.field is None:
        return value
    if spec.field.is_json:
        return dump_json(value).decode()
    return {"b64": value} if spec.field.is_bytes else value


def parameters(most: int) -> list[dict[str, Any]]:
    """Documents the parameters of `/predict`.

    X-Request-Timeout-Ms is left out: testing tools would try its whole range and get 504.
    """
    priority = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
    described = [
        (TOP_K, "query", top_k(most), "Also list the k best candidates."),
        ("X-Priority", "header", priority, "`bulk` gives way to everything else."),
    ]
    return [
        {"name": name, "in": place, "schema": kind, "description": text}
        for name, place, kind, text in described
    ]


def top_k(most: int) -> Schema:
    """Returns the schema of `top_k`; up to `most` candidates can be listed."""
    return {"type": "integer", "minimum": 1, "maximum": most, "description": "As in the query."}


def bodies(schema: dict[str, Any], task: Task) -> dict[str, Any]:
    """Documents the bodies of `/predict`, by content type."""
    properties = dict(task.request_schema.get("properties", {}))
    properties |= {name: one_or_many(properties[name]) for name in task.list_fields}
    request_schema = {**task.request_schema, "properties": properties}
    if not task.takes_json:
        properties[TOP_K] = {**top_k(task.most_candidates), "type": ["integer", "null"]}
        request_schema["additionalProperties"] = False
    content: dict[str, Any] = {"application/json": {"schema": component(schema, request_schema)}}
    if task.example is not None:
        content["application/json"]["example"] = task.json_example
    if task.body_field:
        content |= {task.example_type: BINARY, "application/octet-stream": BINARY}
    if task.form_fields:
        name, k = task.form_fields[0], top_k(task.most_candidates)
        form = {
            "type": "object",
            "properties": {name: {"type": "string", "format": "binary"}, TOP_K: k},
            "required": [name],
        }
        content["multipart/form-data"] = {"schema": form}
    return content


def one_or_many(schema: Schema) -> dict[str, Any]:
    """Returns a schema that accepts a value or a list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def component(schema: dict[str, Any], definition: Schema) -> dict[str, Any]:
    """Adds a schema to the document's components and returns a reference to it."""
    content = dict(definition)
    title, parts = content.get("title", "Object"), content.pop("$defs", {})
    reference: dict[str, Any] = hoisted(
        schema, {"$ref": DEFINITIONS + title, "$defs": {**parts, title: content}}
    )
    return reference


def hoisted(schema: dict[str, Any], definition: Any) -> Any:
    """Returns a JSON schema after moving its definitions to the document's components.

    A number is appended to their names if a different component already has one of them.
    """
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for number in count(1):
        suffix = "" if number == 1 else str(number)
        content = replaced(definition, suffix)
        parts = {name + suffix: part for name, part in content.pop("$defs", {}).items()}
        if all(components.get(name, part) == part for name, part in parts.items()):
            break
    components |= parts
    return content


def replaced(part: Any, suffix: str) -> Any:
    """Returns a JSON schema whose references point to the document's components and end in `suffix`."""
    if isinstance(part, dict):
        return {
            key: COMPONENTS + value.removeprefix(DEFINITIONS) + suffix
            if key == "$ref" and value.startswith(DEFINITIONS)
            else replaced(value, suffix)
            for key, value in part.items()
        }
    return [replaced(element, suffix) for element in part] if isinstance(part, list) else part

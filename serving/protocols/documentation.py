"""Adds errors and the models in service to the OpenAPI document that FastAPI generates."""

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from pydantic import BaseModel

from serving.http.body import dump_json
from serving.protocols.catalog import CatalogEntry, ColumnSpec
from serving.protocols.pipeline import KeyCheck
from serving.tasks.base import Schema, Task, json_value
from serving.tensors import EXAMPLE_LENGTHS

DEFINITIONS, COMPONENTS = "#/$defs/", "#/components/schemas/"
BINARY = {"schema": {"type": "string", "format": "binary"}}
OF_ANY_MODEL = ("/predict/{model}", "/model/{model}")
"""Paths that are documented separately for each model by name if there are several models."""

MOST_ZEROS = 4096
"""Maximum number of zeros in an example for tensors; larger models are documented without one."""


CODES = {
    400: ("the body, its encoding or its content cannot be read", "invalid_image"),
    401: ("the API key is missing or wrong", "unauthorized"),
    404: ("no such model or version", "not_found"),
    408: ("the body did not arrive in time", "request_timeout"),
    413: ("too many bytes, pixels, tokens or numbers", "payload_too_large"),
    415: ("unsupported content type", "unsupported_media_type"),
    422: ("the request does not match the schema", "invalid_request"),
    500: ("server error; the request may be retried", "internal_error"),
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
    templates = {path: copy.deepcopy(schema["paths"].pop(path)) for path in OF_ANY_MODEL}
    default, *others = models
    predict = copy.deepcopy(schema["paths"]["/predict"])
    describe_model(schema, default[0].model.task, {entry.name: entry for entry in default})
    for entries in models if others else ():
        name, task = entries[0].model.description.name, entries[0].model.task
        if task.request_signature is not None:
            path = f"/predict/{name}"
            schema["paths"][path] = copy.deepcopy(predict)
            describe_predict(schema, path, task)
        about = {**templates["/model/{model}"]["get"], "operationId": f"get_model_{name}"}
        schema["paths"][f"/model/{name}"] = {"get": {**about, "parameters": []}}
    for entries in others:
        add_examples(schema["paths"], entries)


def add_examples(paths: dict[str, Any], entries: Sequence[CatalogEntry]) -> None:
    """Adds another model's name and example to the paths shared by all models."""
    entry = example_entry(entries)
    values = example_values(entry, entry.model.task)
    for path, operations in paths.items():
        for operation in operations.values():
            names = {"model": entry.name, "version": entry.version}
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["examples"][entry.name] = {"value": names[parameter["name"]]}
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            made: dict[str, Any] = {"application/json": {}}
            if "{model}" in path and content and values:
                add_example(path, made, values, entry.model.task.json_example, entry.is_batched)
            if example := made["application/json"].get("example"):
                if "example" in content:
                    content["examples"] = {"this model": {"value": content.pop("example")}}
                content.setdefault("examples", {})[entry.name] = {"value": example}


def example_entry(entries: Sequence[CatalogEntry]) -> CatalogEntry:
    """Returns the entry used to document a model: the last one for requests, else for tensors."""
    return ([entry for entry in entries if not entry.takes_tensors] or [*entries])[-1]


def describe_model(schema: dict[str, Any], task: Task, entries: dict[str, CatalogEntry]) -> None:
    """Adds a task's types and example, and the model's names, to an OpenAPI document."""
    paths = schema["paths"]
    entry = example_entry([*entries.values()])
    values = example_values(entry, task)
    for path, operations in paths.items():
        operations.pop("head", None)  # same as GET
        for method, operation in operations.items():
            operation["operationId"] = re.sub(r"\W+", "_", f"{method}{path}").strip("_")
            fill_in(operation, entry)
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                body["schema"] = hoisted(schema, body["schema"])
            if content and values:
                add_example(path, content, values, task.json_example, entry.is_batched)
    if task.request_signature is None:
        for path in [path for path in paths if path.startswith("/predict")]:  # TorchServe's, too
            del paths[path]
        return
    describe_predict(schema, "/predict", task)


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


def fill_in(operation: dict[str, Any], entry: CatalogEntry) -> None:
    """Sets the model's name and version as examples of a path's parameters."""
    names = {"model": entry.name, "version": entry.version}
    if parameters := operation.get("parameters"):  # drops `version` if the path does not contain it
        operation["parameters"] = [parameter for parameter in parameters if parameter["in"] == "path"]
        for parameter in operation["parameters"]:
            parameter["examples"] = {"this model": {"value": names[parameter["name"]]}}


def example_values(entry: CatalogEntry, task: Task) -> list[tuple[ColumnSpec, list[int], Any]]:
    """Returns an example for a model: its inputs, each with its shape and its value in JSON.

    Tensors are filled with zeros. The list is empty if they would be large, or without an example.
    """
    if entry.takes_tensors:
        batch = [1] if entry.is_batched else []
        shapes = [[*batch, *example_shape(spec)] for spec in entry.inputs]
        if sum(map(math.prod, shapes)) > MOST_ZEROS:
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


def add_example(
    path: str,
    content: dict[str, Any],
    values: list[tuple[ColumnSpec, list[int], Any]],
    body: Any,
    is_batched: bool,
) -> None:
    """Adds an example with `values` to the body of a protocol's path; `body` is `/predict`'s example."""
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
        content["application/json"]["example"] = {"inputs": inputs}
    elif path.endswith(":predict"):
        row = {
            spec.name: row_value(spec, value[0] if is_batched and spec.field is None else value)
            for spec, _, value in values
        }
        content["application/json"]["example"] = {"instances": [row]} if is_batched else {"inputs": row}
    elif path.startswith("/predictions/"):
        content["application/json"]["example"] = body


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
    top_k = {"type": "integer", "minimum": 1, "maximum": most}
    priority = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
    described = [
        ("top_k", "query", top_k, "Also list the k best candidates."),
        ("X-Priority", "header", priority, "`bulk` gives way to everything else."),
    ]
    return [
        {"name": name, "in": place, "schema": kind, "description": text}
        for name, place, kind, text in described
    ]


def bodies(schema: dict[str, Any], task: Task) -> dict[str, Any]:
    """Documents the bodies of `/predict`, by content type."""
    request_schema = {
        **task.request_schema,
        "properties": dict(task.request_schema.get("properties", {})),
    }
    for name in task.list_fields:
        request_schema["properties"][name] = one_or_many(request_schema["properties"][name])
    content: dict[str, Any] = {"application/json": {"schema": component(schema, request_schema)}}
    if task.example is not None:
        content["application/json"]["example"] = task.json_example
    if task.body_field:
        content |= {task.example_type: BINARY, "application/octet-stream": BINARY}
    if task.form_fields:
        name = task.form_fields[0]
        form = {
            "type": "object",
            "properties": {name: {"type": "string", "format": "binary"}},
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

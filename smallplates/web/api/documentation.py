"""Adds errors and the models in service to the OpenAPI document that FastAPI generates."""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from smallplates.models.tensors import EXAMPLE_LENGTHS
from smallplates.tasks.base import Schema, Task, json_value
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.dialect import Route
from smallplates.web.api.fields import TOP_K
from smallplates.web.http.body import dump_json

REFERENCE = re.compile(rb'"\$ref":"#/\$defs/([^"]+)"')
BINARY = {"schema": {"type": "string", "format": "binary"}}
PRIORITY = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
OF_ANY_MODEL = ("/predict/{model}", "/model/{model}")
"""Paths that are documented separately for each model by name if there are several models."""

MAX_ZEROS = 4096
"""Maximum number of zeros in an example for tensors; larger models are documented without one."""


def describe_models(
    schema: dict[str, Any], routes: Sequence[Route], models: Sequence[CatalogEntry]
) -> None:
    """Adds the requests and answers of each model to an OpenAPI document.

    `models` has an entry of each model, the default one first. If there are more, each also gets native
    paths with its name; the only one names the document. Paths that are off are left out, and the others
    of a protocol that calls no model then.
    """
    unused = {route.dialect for route in routes if route.is_off}
    unused -= {route.dialect for route in routes if route.is_call and not route.is_off}
    paths = schema["paths"]
    about = {path: paths.pop(path) for path in OF_ANY_MODEL}["/model/{model}"]["get"]
    tidy(schema)
    template = copy.deepcopy(paths["/predict"])
    for route in routes:
        operations = paths.get(route.path_format, {})
        own = {name: each for name, each in operations.items() if name.upper() in (route.methods or ())}
        add_examples(own, route, models)
        is_callable = route.example or callable_models(route, models)
        if route.is_off or route.dialect in unused or not is_callable:
            for name in own:
                del operations[name]
    schema["paths"] = paths = {path: each for path, each in paths.items() if each}
    if len(models) == 1:
        description = models[0].model.description
        schema["info"]["title"] = description.title or description.name
    if "/predict" in paths:
        describe_predict(schema, "/predict", models[0].model.task, models[0].model.description.title)
    for entry in models if len(models) > 1 else ():
        name = entry.model.description.name
        if entry.model.task.request_signature is not None:
            path = f"/predict/{name}"
            paths[path] = copy.deepcopy(template)
            describe_predict(schema, path, entry.model.task, entry.model.description.title)
        paths[f"/model/{name}"] = {
            "get": {**about, "operationId": f"get_model_{name}", "parameters": []}
        }


def callable_models(route: Route, models: Sequence[CatalogEntry]) -> Sequence[CatalogEntry]:
    """Returns the models that a route can call or describe; without `{model}`, only the default one.

    If the route has examples of its own, it can call those models that have one.
    """
    if route.example:
        return [entry for entry in models if route.example(entry) is not None]
    if not route.is_call or route.dialect.takes_tensors:
        return models
    served = models if "{model}" in route.path else models[:1]
    return [entry for entry in served if not entry.takes_tensors]


def tidy(schema: dict[str, Any]) -> None:
    """Names operations by their paths, and drops what FastAPI adds beyond them."""
    for path, operations in schema["paths"].items():
        operations.pop("head", None)  # same as GET
        for method, operation in operations.items():
            operation["operationId"] = re.sub(r"\W+", "_", f"{method}{path}").strip("_")
            if parameters := operation.get("parameters"):  # drops `version` if the path has none
                operation["parameters"] = [each for each in parameters if each["in"] == "path"]
            for body in operation.get("requestBody", {}).get("content", {}).values():
                body["schema"] = hoist(schema, body["schema"])


def add_examples(operations: dict[str, Any], route: Route, models: Sequence[CatalogEntry]) -> None:
    """Adds each model's name, version and example to a route's operations."""
    for entry in callable_models(route, models):
        label = "this model" if entry is models[0] else entry.name
        names = {"model": entry.name, "version": entry.version}
        body = (route.example or route.dialect.example)(entry) if route.is_call else None
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if name := names.get(parameter["name"]):
                    parameter.setdefault("examples", {})[label] = {"value": name}
            if body is not None:
                content = operation["requestBody"]["content"]["application/json"]
                if len(models) == 1:
                    content["example"] = body
                else:
                    content.setdefault("examples", {})[label] = {"value": body}


def describe_predict(schema: dict[str, Any], path: str, task: Task, title: str = "") -> None:
    """Adds a model's title, if it has one, request and answer to a path of the native API."""
    predict = schema["paths"][path]["post"]
    predict |= {"summary": title} if title else {}
    predict["operationId"] = re.sub(r"\W+", "_", f"post{path}")
    predict["parameters"] = parameters(task.most_candidates)
    predict["requestBody"] = {"required": True, "content": bodies(schema, task)}
    answer = component(schema, task.answer_schema)
    if task.list_fields:
        answer = one_or_many(answer)
    predict["responses"]["200"]["content"] = {"application/json": {"schema": answer}}


def example_values(entry: CatalogEntry) -> list[tuple[ColumnSpec, list[int], Any]]:
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
    task = entry.model.task
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


def parameters(most: int) -> list[dict[str, Any]]:
    """Documents the parameters of `/predict`.

    X-Request-Timeout-Ms is left out: testing tools would try its whole range and get 504.
    """
    described = {
        TOP_K: ("query", top_k(most), "Also list the k best candidates."),
        "X-Priority": ("header", PRIORITY, "`bulk` gives way to everything else."),
    }
    return [
        {"name": name, "in": place, "schema": kind, "description": text}
        for name, (place, kind, text) in described.items()
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
        file: Schema = BINARY["schema"]
        if task.body_field and task.body_field.name in task.list_fields:
            file = {"type": "array", "items": file, "minItems": 1}
        form = {"type": "object", "properties": {name: file, TOP_K: k}, "required": [name]}
        content["multipart/form-data"] = {"schema": form}
    return content


def one_or_many(schema: Schema) -> dict[str, Any]:
    """Returns a schema that accepts a value or a list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def component(schema: dict[str, Any], definition: Schema) -> dict[str, Any]:
    """Adds a schema to the document's components and returns a reference to it."""
    content = dict(definition)
    title, parts = content.get("title", "Object"), content.pop("$defs", {})
    reference = {"$ref": f"#/$defs/{title}", "$defs": {**parts, title: content}}
    return hoist(schema, reference)


def hoist(schema: dict[str, Any], definition: Schema) -> dict[str, Any]:
    """Returns a JSON schema after moving its definitions to the document's components.

    A number is appended to their names if a different component already has one of them.
    """
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    text = dump_json(definition)
    for number in count(1):
        suffix = "" if number == 1 else str(number)
        reference = rf'"$ref":"#/components/schemas/\g<1>{suffix}"'
        content: dict[str, Any] = json.loads(REFERENCE.sub(reference.encode(), text))
        parts = {name + suffix: part for name, part in content.pop("$defs", {}).items()}
        if all(components.get(name, part) == part for name, part in parts.items()):
            break
    components |= parts
    return content

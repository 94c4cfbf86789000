"""What OpenAPI says of the model in service; FastAPI has made the rest."""

import math
from collections.abc import Mapping
from typing import Any

from serving.http.responses import dump_json
from serving.protocols.catalog import CatalogEntry, WireTensor
from serving.tasks.base import Schema, Task, json_value

COMPONENTS = "#/components/schemas/"
BINARY = {"schema": {"type": "string", "format": "binary"}}
MOST_ZEROS = 4096
"""Numbers of an example of tensors; a larger model is documented without one."""


def describe_model(schema: dict[str, Any], task: Task, entries: dict[str, CatalogEntry]) -> None:
    """Adds a task's types and example to an OpenAPI document, and the model's names."""
    paths = schema["paths"]
    of_requests = [entry for entry in entries.values() if not entry.takes_tensors]
    entry = (of_requests or [*entries.values()])[-1]
    for path, operations in paths.items():
        for operation in operations.values():
            fill_in(operation, entry)
            values = example_values(entry, task)
            if values and "requestBody" in operation:
                add_example(path, operation["requestBody"]["content"], values, task.json_example)
    if task.form is None:
        for path in [path for path in paths if path.startswith("/predict")]:  # TorchServe's, too
            del paths[path]
        return
    predict = paths["/predict"]["post"]
    predict["parameters"] = parameters(task.most_candidates)
    predict["requestBody"] = {"required": True, "content": bodies(schema, task)}
    answer = component(schema, task.answer_schema)
    if task.list_fields:
        answer = one_or_many(answer)
    predict["responses"]["200"]["content"] = {"application/json": {"schema": answer}}


def fill_in(operation: dict[str, Any], entry: CatalogEntry) -> None:
    """Gives the parameters of a path the model's name and its version as their examples."""
    names = {"model": entry.name, "version": entry.version}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and parameter["name"] in names:
            parameter["examples"] = {"this model": {"value": names[parameter["name"]]}}


def example_values(entry: CatalogEntry, task: Task) -> list[tuple[WireTensor, list[int], Any]]:
    """Returns a batch of one for a model: its inputs with their shapes, and their values in JSON.

    Tensors are zeros. Empty if they would be large, or there is none.
    """
    if entry.takes_tensors:
        shapes = [[1, *(max(1, size) for size in spec.dims)] for spec in entry.inputs]
        if sum(map(math.prod, shapes)) > MOST_ZEROS:
            return []
        return [
            (spec, shape, zeros(shape, spec.datatype == "BOOL"))
            for spec, shape in zip(entry.inputs, shapes, strict=True)
        ]
    example: Any = task.example  # a mapping of fields, or the one field of a Python task
    if example is None:
        return []
    if not isinstance(example, Mapping):
        example = {task.request[0].name: example}
    return [
        (spec, [1, len(value) if spec.field.is_list else 1], value)
        for spec in entry.inputs
        if spec.field and (value := json_value(example.get(spec.field.name))) is not None
    ]


def zeros(shape: list[int], is_bool: bool) -> Any:
    """Returns nested lists of zeros, of a batch's only item."""
    if len(shape) == 1:
        return False if is_bool else 0
    value: Any = False if is_bool else 0
    for size in reversed(shape[1:]):
        value = [value] * size
    return value


def add_example(
    path: str, content: dict[str, Any], values: list[tuple[WireTensor, list[int], Any]], body: Any
) -> None:
    """Adds a request of these values to the body of a protocol's path; `body` is that of `/predict`."""
    if path.endswith("/infer"):
        inputs = [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": shape,
                "data": tensor_data(spec, value),
            }
            for spec, shape, value in values
        ]
        content["application/json"]["example"] = {"inputs": inputs}
    elif path.endswith(":predict"):
        row = {spec.name: row_value(spec, value) for spec, _, value in values}
        content["application/json"]["example"] = {"instances": [row]}
    elif path.startswith("/predictions/"):
        content["application/json"]["example"] = body


def tensor_data(spec: WireTensor, value: Any) -> list[Any]:
    """Returns a value as `data` of the Open Inference Protocol; objects are text there."""
    if spec.field is None:
        return [value]
    if spec.field.is_json:
        return [dump_json(value).decode()]
    return [value] if not spec.field.is_list else [*value]


def row_value(spec: WireTensor, value: Any) -> Any:
    """Returns a value as TensorFlow Serving has it; objects are text there."""
    if spec.field is None:
        return value
    if spec.field.is_json:
        return dump_json(value).decode()
    return {"b64": value} if spec.field.is_bytes else value


def parameters(most: int) -> list[dict[str, Any]]:
    """Documents the parameters of `/predict`.

    X-Request-Timeout-Ms is left out: a tool that tries its range gets the 504 that it asks for.
    """
    top_k = {"type": "integer", "minimum": 1, "maximum": most}
    priority = {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"}
    given = [
        ("top_k", "query", top_k, "Also list the k best candidates."),
        ("X-Priority", "header", priority, "`bulk` gives way to everything else."),
    ]
    return [
        {"name": name, "in": place, "schema": kind, "description": text}
        for name, place, kind, text in given
    ]


def bodies(schema: dict[str, Any], task: Task) -> dict[str, Any]:
    """Documents the bodies of `/predict`, by content type."""
    own = {**task.request_schema, "properties": dict(task.request_schema.get("properties", {}))}
    for name in task.list_fields:
        own["properties"][name] = one_or_many(own["properties"][name])
    content: dict[str, Any] = {"application/json": {"schema": component(schema, own)}}
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
    """Returns the schema of a value, or of a list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def component(schema: dict[str, Any], own: Any) -> dict[str, Any]:
    """Adds a schema to the document's components; returns a reference to it."""
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    content = replaced(own)
    components |= content.pop("$defs", {})
    title = content.get("title", "Object")
    components[title] = content
    return {"$ref": COMPONENTS + title}


def replaced(part: Any) -> Any:
    """Returns a JSON schema whose references are those of an OpenAPI document."""
    if isinstance(part, dict):
        return {
            key: value.replace("#/$defs/", COMPONENTS) if key == "$ref" else replaced(value)
            for key, value in part.items()
        }
    return [replaced(each) for each in part] if isinstance(part, list) else part

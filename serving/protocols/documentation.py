"""What OpenAPI says of the model in service; FastAPI has made the rest."""

from collections.abc import Mapping
from typing import Any

from serving.protocols.catalog import CatalogEntry
from serving.tasks.base import Schema, Task, json_value

COMPONENTS = "#/components/schemas/"
BINARY = {"schema": {"type": "string", "format": "binary"}}


def describe_model(schema: dict[str, Any], task: Task, entries: dict[str, CatalogEntry]) -> None:
    """Adds a task's types and example to an OpenAPI document, and the model's names."""
    paths = schema["paths"]
    predict = paths["/predict"]["post"]
    if task.form is None:
        predict["description"] = "This model is asked in tensors, see `/v2`."
        return
    predict["parameters"] = parameters(task.most_candidates)
    predict["requestBody"] = {"required": True, "content": bodies(schema, task)}
    answer = component(schema, task.answer_schema)
    if task.list_fields:
        answer = one_or_many(answer)
    predict["responses"]["200"]["content"] = {"application/json": {"schema": answer}}
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        if isinstance(task.example, Mapping) and path in paths:
            of_requests = [entry for entry in entries.values() if not entry.takes_tensors]
            describe_infer(paths[path]["post"], of_requests[-1], task.example)


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


def describe_infer(operation: dict[str, Any], entry: CatalogEntry, example: Any) -> None:
    """Fills in the model's name, its tensors and an example of the Open Inference Protocol."""
    operation["parameters"][0]["examples"] = {"this model": {"value": entry.name}}
    inputs = [
        {"name": spec.name, "datatype": spec.datatype, "shape": [1, 1], "data": [value]}
        for spec in entry.inputs
        if spec.field and (value := json_value(example.get(spec.field.name))) is not None
    ]
    operation["requestBody"]["content"]["application/json"]["example"] = {"inputs": inputs}

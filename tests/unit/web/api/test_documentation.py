"""`smallplates.web.api.documentation`: components of one name."""

from typing import Any

from smallplates.web.api.documentation import component, hoist


def of_a_model(kind: str) -> dict[str, Any]:
    """The schema of a request, as pydantic writes it."""
    row = {"type": "object", "title": "Row", "properties": {"size": {"type": kind}}}
    rows = {"type": "array", "items": {"$ref": "#/$defs/Row"}}
    return {"title": "Request", "properties": {"rows": rows}, "$defs": {"Row": row}}


def row_of(document: dict[str, Any], reference: dict[str, Any]) -> Any:
    """The type of a row's size, by way of the references."""
    components = document["components"]["schemas"]
    request = components[reference["$ref"].rpartition("/")[2]]
    row = components[request["properties"]["rows"]["items"]["$ref"].rpartition("/")[2]]
    return row["properties"]["size"]["type"]


def test_models_whose_types_have_one_name_keep_their_own() -> None:
    document: dict[str, Any] = {}
    references = [component(document, of_a_model(kind)) for kind in ("integer", "string", "integer")]
    assert [row_of(document, reference) for reference in references] == ["integer", "string", "integer"]
    assert set(document["components"]["schemas"]) == {"Request", "Row", "Request2", "Row2"}


def test_references_to_components_stay() -> None:
    document: dict[str, Any] = {}
    component(document, of_a_model("integer"))
    mixed = {**of_a_model("string"), "properties": {"old": {"$ref": "#/components/schemas/Row"}}}
    assert hoist(document, mixed)["properties"] == mixed["properties"]

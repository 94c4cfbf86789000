"""`flask_app.forms`: from a JSON schema to a form, and from what was filled in to a request."""

import base64
import io
import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, Field, TypeAdapter

from flask_app.errors import UploadError
from flask_app.forms import Form, Limit, form_of, pretty


class Place(BaseModel):
    city: str


class Request(BaseModel):
    name: str = Field(max_length=10, description="As you call it.")
    letter: str
    count: Annotated[int, Field(ge=1, le=9)] = 2
    weight: float | None = None
    colour: Literal["red", "blue"]
    ripe: bool = False
    known: bool | None = None
    photo: Base64Bytes
    sizes: list[float]
    words: list[str] = []
    place: Place
    home: Place | None = None


EXAMPLE = {
    "name": "plum",
    "letter": "two\nlines",
    "colour": "blue",
    "photo": "eHg=",
    "sizes": [1, 2.5],
    "place": {"city": "Rome"},
}


def form(example: Any = EXAMPLE, **limits: int) -> Form:
    return form_of(TypeAdapter(Request).json_schema(), example, limits)


def filled(**texts: str) -> dict[str, str]:
    """What a browser sends where nothing but these was changed; an empty box is not sent."""
    values = {field.name: field.value for field in form().fields if field.kind not in ("yes", "file")}
    return values | texts


def test_every_type_has_its_field_and_says_what_it_takes() -> None:
    fields = form(text_bytes=300).by_name
    assert {name: field.kind for name, field in fields.items()} == {
        **{"name": "line", "letter": "text", "count": "number", "weight": "number"},
        **{"colour": "choice", "ripe": "yes", "known": "choice", "photo": "file"},
        **{"sizes": "numbers", "words": "lines", "place": "json", "home": "json"},
    }
    assert (fields["name"].label, fields["name"].help) == ("Name", "As you call it.")
    assert fields["name"].limit == Limit(10, "characters")
    assert fields["letter"].limit == Limit(300, "bytes")
    assert (fields["count"].minimum, fields["count"].maximum, fields["count"].whole) == (1, 9, True)
    assert fields["colour"].choices == (('"red"', "red"), ('"blue"', "blue"))
    optional = {name for name, field in fields.items() if not field.required}
    assert optional == {"count", "weight", "ripe", "known", "words", "home"}


def test_a_limit_in_tokens_is_told_in_words() -> None:
    assert form(text_bytes=300, letter_tokens=1000).by_name["letter"].limit == Limit(300, "bytes")
    field = form(text_bytes=9000, letter_tokens=1000).by_name["letter"]
    assert field.limit is None
    assert field.size_help == ("At most 1,000 tokens, about 700 English words.")


def test_the_form_begins_with_the_example_and_sends_it() -> None:
    assert form().request(filled(), {}) == {**EXAMPLE, "count": 2, "ripe": False}
    Request.model_validate(form().request(filled(), {}))


def test_what_was_filled_in_is_sent() -> None:
    """Beside what tests/browser/test_forms.py fills in."""
    texts = {"letter": "a\r\nb", "weight": "1.5e1", "known": "false", "home": ' {"city": "Oslo"}'}
    texts |= {"sizes": "[1; 2,  -3e2]", "words": "one\r\n\r\n two "}
    request = form().request(filled(**texts), {"photo": io.BytesIO(b"\xff\xd8")})
    expected = {"letter": "a\nb", "weight": 15.0, "known": False, "home": {"city": "Oslo"}}
    expected |= {"sizes": [1.0, 2.0, -300.0], "words": ["one", " two "]}
    photo = base64.b64encode(b"\xff\xd8").decode()
    assert request == {**EXAMPLE, "count": 2, "ripe": False, "photo": photo, **expected}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"count": "1.5"}, "Count: “1.5” is not a whole number"),
        ({"count": "9" * 5000}, f"Count: “{'9' * 40}” is not a whole number"),
        ({"weight": "heavy"}, "Weight: “heavy” is not a number"),
        ({"weight": "nan"}, "Weight: the number must be finite"),
        ({"sizes": "1, two"}, "Sizes: “two” is not a number"),
        ({"place": "{"}, "Place: this isn't valid JSON (line 1)"),
        ({"place": "[" * 100_000}, "Place: this isn't valid JSON"),
        ({"place": " "}, "Place: fill in this field"),
        ({"colour": ""}, "Colour: fill in this field"),
    ],
)
def test_what_cannot_be_read_is_named(texts: dict[str, str], words: str) -> None:
    with pytest.raises(UploadError) as raised:
        form().request(filled(**texts), {})
    assert raised.value.detail.startswith(words)


def test_a_number_beyond_all_floats_is_the_services_to_refuse() -> None:
    assert form().request(filled(count="9" * 400), {})["count"] == 10**400 - 1


@pytest.mark.parametrize("kind", [int, float, float | None])
def test_a_number_that_is_needed(kind: Any) -> None:
    made = form_of(TypeAdapter(kind).json_schema(), None, {})
    with pytest.raises(UploadError, match="Request: fill in this field"):
        made.request({"request": " "}, {})


def test_a_file_that_is_needed() -> None:
    with pytest.raises(UploadError, match="Photo: choose a file"):
        form(None).request(filled(), {"photo": io.BytesIO()})


@pytest.mark.parametrize(
    ("kind", "example", "text", "wanted"),
    [
        (list[float], [1.0, 2.0], "3 4", [3.0, 4.0]),
        (str, "hello", "bye", "bye"),
        (dict[str, int], {"a": 1}, '{"b": 2}', {"b": 2}),
        (Any, None, "[1, null]", [1, None]),
        (list[int | None], [1, 2], "3 4", [3, 4]),
    ],
)
def test_a_request_that_is_no_object_is_one_field(
    kind: Any, example: Any, text: str, wanted: Any
) -> None:
    made = form_of(TypeAdapter(kind).json_schema(), example, {})
    (field,) = made.fields
    assert json.dumps(made.request({field.name: text}, {})) == json.dumps(wanted)  # 3 is not 3.0
    if example is not None:
        assert made.request({field.name: field.value}, {}) == example


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": True, "b": {"$ref": "#/$defs/None"}, "c": {"type": ["string", "null"]}}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        {"properties": 3},
        {"properties": {"a": {"type": "array", "items": True}}},
    ],
)
def test_an_odd_schema_is_asked_in_json(schema: dict[str, Any]) -> None:
    assert {field.kind for field in form_of(schema, {"a": 1}, {}).fields} == {"json"}


def test_names_with_commas_are_a_text() -> None:
    names = {
        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}, {"type": "null"}]
    }
    (field,) = form_of(
        {"properties": {"names": {**names, "default": None}}}, {"names": "a, b"}, {}
    ).fields
    assert (field.kind, field.value) == ("text", "a, b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_pretty_changes_no_value(value: Any) -> None:
    assert json.loads(pretty(value)) == value


def test_pretty_keeps_short_lists_on_one_line() -> None:
    assert pretty({"a": [1, 2], "b": {"c": "d"}}) == '{\n  "a": [ 1, 2 ],\n  "b": { "c": "d" }\n}'
    assert len(pretty({"a": list(range(100))}).splitlines()) > 100

"""Form of a model's request: from its JSON schema to fields, and from what was filled in to JSON."""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flask_app.errors import UploadError

Kind = Literal["line", "text", "number", "yes", "choice", "file", "numbers", "lines", "names", "json"]
Schema = Mapping[str, Any]  # Any: JSON
WHOLE = "request"
"""Name of the only field where a request is no object, or of any shape."""

SHORT = 100  # characters of a text that has one line only
WIDTH = 88
WORDS_A_TOKEN = 0.7  # of English text
BYTES_A_TOKEN = 8  # and more than usual; a limit in tokens ends a text before one of so many bytes
INNERMOST = re.compile(r"\[\n[^][{}]*\n *\]|\{\n[^][{}]*\n *\}")
"""Lists and objects without others in them; a line ends nowhere inside a string of JSON."""

KINDS: dict[str, Kind] = {"number": "number", "integer": "number", "boolean": "yes"}
LISTS: dict[str, Kind] = {"number": "numbers", "integer": "numbers", "string": "lines"}


@dataclass(frozen=True)
class Limit:
    """Most of a text or a file: a number and its unit, `characters` or `bytes`."""

    most: int
    unit: str


@dataclass(frozen=True)
class FormField:
    """Field of the form, and how it is read."""

    name: str
    label: str
    kind: Kind
    required: bool
    help: str = ""
    size_help: str = ""
    """Its limit in tokens, as a sentence."""

    rows: int = 2
    by_line: bool = False
    """Whether each line is a text, and has the limit."""

    value: str = ""
    """What the form begins with."""

    example: Any = None  # Any: JSON
    """The example's value; it is sent where no file is chosen."""

    whole: bool = False
    """Whether numbers are integers."""

    choices: tuple[tuple[str, str], ...] = ()
    """Values, in JSON, and their names."""

    minimum: float | None = None
    maximum: float | None = None
    limit: Limit | None = None

    @property
    def id(self) -> str:
        """The name as a part of an element's id."""
        return re.sub(r"\W", "-", self.name)


class Upload(Protocol):
    """File of a form."""

    def read(self) -> bytes:
        """Returns its content."""


@dataclass(frozen=True)
class Form:
    """Fields of one model's requests."""

    fields: tuple[FormField, ...] = ()
    is_object: bool = True
    """Whether a request is an object of these fields; else it is the only field's value."""

    by_name: Mapping[str, FormField] = field(init=False)

    def __post_init__(self) -> None:
        """Names the fields."""
        object.__setattr__(self, "by_name", {form_field.name: form_field for form_field in self.fields})

    def request(self, texts: Mapping[str, str], files: Mapping[str, Upload]) -> Any:  # Any: JSON
        """Returns the request that was filled in. Raises UploadError, which names the field."""
        values = {}
        for form_field in self.fields:
            text = texts.get(form_field.name, "").replace("\r\n", "\n")  # as forms are sent
            upload = files.get(form_field.name)
            content = upload.read() if upload else b""
            value = (
                file(form_field, content)
                if form_field.kind == "file"
                else READERS[form_field.kind](form_field, text)
            )
            if value is not None:
                values[form_field.name] = value
        return values if self.is_object else values[WHOLE]


def form_of(schema: Schema, example: Any, limits: Mapping[str, int]) -> Form:  # Any: JSON
    """Returns the form of a request's JSON schema; what has no field of its own is a field of JSON."""
    whole_schema = resolve(schema, schema)
    properties = whole_schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return Form((form_field(WHOLE, whole_schema, schema, True, example, limits),), is_object=False)
    required = whole_schema.get("required", ())
    examples = example if isinstance(example, Mapping) else {}
    return Form(
        tuple(
            form_field(
                name,
                resolve(property_schema, schema),
                schema,
                name in required,
                examples.get(name),
                limits,
            )
            for name, property_schema in properties.items()
        )
    )


def resolve(schema: Any, root: Schema) -> Schema:  # Any: JSON
    """Returns the schema that a reference stands for; null is as good as a field that is left out.

    A text that may also be a list of texts is a text.
    """
    if not isinstance(schema, Mapping):
        return {}  # true: anything
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if sorted(str(choice.get("type")) for choice in choices) == ["array", "string"]:
        choices = [choice for choice in choices if choice["type"] == "string"]
    if len(choices) == 1:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return resolve({**choices[0], **rest}, root)
    if name := str(schema.get("$ref", "")).rpartition("/")[2]:
        definition = root.get("$defs", {}).get(name, {})
        return {**definition, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def form_field(
    name: str,
    schema: Schema,
    root: Schema,
    required: bool,
    example: Any,  # JSON
    limits: Mapping[str, int],
) -> FormField:
    """Returns the field of one property."""
    kind = kind_of(schema, root)
    default = schema.get("default") if example is None else example
    choices: list[tuple[str, str]] = []
    if kind == "choice":
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        choices = [(json.dumps(choice), str(choice)) for choice in values]
    elif kind == "yes" and not required and not isinstance(schema.get("default"), bool):
        kind, choices = "choice", [("true", "yes"), ("false", "no")]
    if kind == "choice" and not required and schema.get("default") is None:
        choices.insert(0, ("", "not set"))
    limit, size_help = None, ""
    if kind in ("line", "text", "lines"):
        tokens = limits.get(f"{name}_tokens") or (limits.get("tokens", 0) if required else 0)
        size = limits.get("text_bytes", 0)
        if "maxLength" in schema:
            limit = Limit(int(schema["maxLength"]), "characters")
        elif size and not 0 < BYTES_A_TOKEN * tokens < size:
            limit = Limit(size, "bytes")
        if tokens:
            words = round(tokens * WORDS_A_TOKEN, -1) or tokens
            size_help = f"At most {tokens:,} tokens, about {words:,.0f} English words."
    if kind == "file" and "request_bytes" in limits:
        limit = Limit(limits["request_bytes"] * 3 // 4, "bytes")  # base64 is a third larger
    return FormField(
        name,
        label_of(name, schema),
        kind,
        required,
        str(schema.get("description") or ""),
        size_help,
        rows=4 if kind == "json" else 2,
        value=initial(kind, default),
        example=example,
        whole="integer" in (schema.get("type"), resolve(schema.get("items"), root).get("type")),
        choices=tuple(choices),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
        limit=limit,
    )


def label_of(name: str, schema: Schema) -> str:
    """Returns the title of a property for people; one that was made of the name is made anew."""
    words = name.replace("_", " ")
    title = str(schema.get("title") or "")
    return f"{words[:1].upper()}{words[1:]}" if title in ("", words.title()) else title


def pretty(value: Any) -> str:  # Any: JSON
    """Returns JSON in lines, where short lists and objects of plain values have one."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return INNERMOST.sub(on_one_line, text)


def on_one_line(match: re.Match[str]) -> str:
    """Returns a list or an object on one line, if it is short enough."""
    line = re.sub(r"\n\s*", " ", match[0])
    return line if len(line) <= WIDTH else match[0]


def kind_of(schema: Schema, root: Schema) -> Kind:
    """Returns how a value of this schema is filled in."""
    if "enum" in schema or "const" in schema:
        return "choice"
    kind = schema.get("type")
    if kind == "string":
        if "base64" in (schema.get("contentEncoding"), schema.get("format")):
            return "file"
        return "line" if schema.get("maxLength", SHORT + 1) <= SHORT else "text"
    if kind == "array":
        items = resolve(schema.get("items", {}), root)
        return "json" if "enum" in items else LISTS.get(str(items.get("type")), "json")
    return KINDS.get(str(kind), "json")


def initial(kind: Kind, value: Any) -> str:  # Any: JSON
    """Returns a value as the form has it."""
    if value is None or kind == "file":
        return ""
    if kind == "numbers" and isinstance(value, Sequence):
        return ", ".join(map(str, value))
    if kind == "lines" and isinstance(value, Sequence):
        return "\n".join(map(str, value))
    if kind in ("choice", "yes"):
        return json.dumps(value)
    if kind == "json":
        return pretty(value)
    return str(value)


def invalid(field: FormField, problem: str) -> UploadError:
    """Returns the error for a field that cannot be sent."""
    return UploadError("invalid_form", f"{field.label}: {problem}")


def file(field: FormField, content: bytes) -> str | None:
    """Returns a file as base64; the example's where none was chosen. Raises UploadError."""
    if content:
        return base64.b64encode(content).decode()
    if field.example is None and field.required:
        raise invalid(field, "choose a file")
    return None if field.example is None else str(field.example)


def number(field: FormField, text: str) -> float | int | None:
    """Returns a number; None for a field that may be left empty. Raises UploadError."""
    if not text.strip():
        if field.required:
            raise invalid(field, "fill in this field")
        return None
    try:
        value = int(text) if field.whole else float(text)
    except ValueError as error:
        kind = "whole number" if field.whole else "number"
        raise invalid(field, f"“{text.strip()[:40]}” is not a {kind}") from error
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(field, "the number must be finite")
    return value


def numbers(field: FormField, text: str) -> list[float | int | None] | None:
    """Returns numbers between commas, semicolons or spaces, also in brackets. Raises UploadError."""
    parts = [part for part in re.split(r"[\s,;]+", text.strip().strip("[]")) if part]
    return [number(field, part) for part in parts] if parts or field.required else None


def text_of(field: FormField, text: str) -> str | None:
    """Returns a text; None where it may be left out."""
    return text if text or field.required else None


def lines(field: FormField, text: str) -> list[str] | None:
    """Returns the lines that are not empty."""
    rest = [line for line in text.split("\n") if line.strip()]
    return rest if rest or field.required else None


def names(field: FormField, text: str) -> list[str]:
    """Returns the names between commas or lines. Raises UploadError if there are none."""
    found = [name.strip() for name in re.split(r"[,\n]", text) if name.strip()]
    if not found:
        raise invalid(field, "fill in this field")
    return found


def value_of(field: FormField, text: str) -> Any:  # Any: JSON
    """Returns the value that a text is in JSON; None for none. Raises UploadError."""
    if not text.strip():
        if field.required:
            raise invalid(field, "fill in this field")
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise invalid(field, f"this isn't valid JSON{place}") from error


READERS: dict[Kind, Callable[[FormField, str], Any]] = {  # Any: JSON
    "line": text_of,
    "text": text_of,
    "number": number,
    "yes": lambda _, text: bool(text),
    "choice": value_of,
    "numbers": numbers,
    "lines": lines,
    "names": names,
    "json": value_of,
}

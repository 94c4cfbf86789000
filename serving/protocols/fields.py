"""Finds a task's fields in the kinds of bodies that several protocols share.

If a request needs only one field, a client may also send it as a form field or as the body itself.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from serving.base64 import from_base64, to_bytes
from serving.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTensorError,
    InvalidTextError,
    UnsupportedMediaTypeError,
)
from serving.http.body import decode_json, dump_json, form_parts, only_file, parsed_content_type
from serving.tasks.base import JSON_BODY, Field, Fields, Task

JSON, FORM, BYTES = b"application/json", b"multipart/form-data", b"application/octet-stream"
TYPES: dict[str, Any] = {"FP32": float, "FP64": float, "INT64": int, "BOOL": bool}
JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # possibly unterminated
TOP_K = "top_k"
MAX_ELEMENTS = 16 * 1024
"""Maximum number of list elements in a body; more are refused before they are built."""

NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]


def fields_from_body(task: Task, body: bytes, content_type: str | None, native: bool = False) -> Fields:
    """Finds the fields in a body: JSON, a form, or the value of the task's `body_field`.

    Without a content type, the body is taken as the value of `body_field` if there is one, else as JSON.
    In `native` JSON, TOP_K is a field, too, and the task's `list_fields` may be lists. In forms, TOP_K
    is a list of texts. Both refuse unknown fields. Raises RequestError.
    """
    single = task.body_field
    media_type, options = parsed_content_type(content_type or (BYTES if single else JSON).decode())
    if media_type == JSON:
        return fields_from_json(task, body, native)
    if single:
        if media_type == FORM and task.form_fields:
            parts = form_parts(body, options.get(b"boundary"))
            check_names("field", [part.name for part in parts], [*task.form_fields, TOP_K])
            top_k = [part.content.decode("latin-1") for part in parts if part.name == TOP_K]
            return {single.name: only_file(parts, task.form_fields), TOP_K: top_k}
        if media_type == BYTES or media_type.decode("latin-1").startswith(task.media_types):
            return {single.name: value_of(single, body)}
    forms = [FORM.decode()] if task.form_fields else []
    bodies = [
        f"{media_type}*" if media_type.endswith("/") else media_type for media_type in task.media_types
    ]
    known = ["application/json", *forms, *bodies]
    if single:
        known = [f"{', '.join(known)} or application/octet-stream"]
    raise UnsupportedMediaTypeError(
        f"send {', '.join(known)}, not {media_type.decode('latin-1')[:80]!r}"
    )


def value_of(field: Field, body: bytes) -> str | bytes:
    """Returns a field's value, given as the whole body. Raises InvalidTextError."""
    return body if field.is_bytes else text_of(body)


def fields_from_json(task: Task, body: bytes, native: bool = False) -> Fields:
    """Finds the fields in a JSON object; see `fields_from_body`. Raises RequestError."""
    if task.takes_json:
        return {JSON_BODY: body}
    names = task.list_fields if native else ()
    if names and commas(without_texts(body)) > MAX_ELEMENTS:
        raise InvalidRequestError(f"the body has more than {MAX_ELEMENTS} elements")
    wanted = (*task.request, Field(TOP_K, "INT64", required=False)) if native else task.request
    try:
        request = decode_json(decoder(wanted, names, native), body, "body")
    except InvalidRequestError as error:
        if "unknown field" in error.detail:
            error.detail += f"; known are {', '.join(field.name for field in wanted)}"
        raise
    return {
        field.name: from_base64(value) if field.is_bytes else value
        for field in wanted
        if (value := getattr(request, field.name)) is not None
    }


def check_names(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raises InvalidRequestError if one of the names is not among those that are known."""
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequestError(f"unknown {kind} {unknown[0][:80]!r}; known are {', '.join(known)}")


def rows_of(task: Task, fields: Fields) -> list[Fields] | None:
    """Splits lists of values into one set of fields per request; returns None if there are no lists.

    Raises InvalidRequestError unless all given `list_fields` of the task are lists of the same length.
    """
    columns = {name: fields[name] for name in task.list_fields if name in fields}
    if not any(isinstance(value, list) for value in columns.values()):
        return None
    lengths = {len(value) if isinstance(value, list) else None for value in columns.values()}
    if len(lengths) > 1:
        raise InvalidRequestError(f"{' and '.join(columns)} must be lists of the same length")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def given(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    """Returns a value of JSON; None if it is left out or null."""
    return None if isinstance(raw, msgspec.UnsetType) or bytes(memoryview(raw)[:5]) == b"null" else raw


def commas(text: bytes | memoryview | msgspec.Raw) -> int:
    """Counts commas, which bounds the number of JSON elements before they are built."""
    return bytes(text).count(b",")


def without_texts(text: bytes | memoryview | msgspec.Raw) -> bytes:
    """Returns JSON with its strings cut out, so that all remaining commas separate elements."""
    return JSON_TEXT.sub(b"", bytes(text))


@cache
def decoder(fields: tuple[Field, ...], lists: tuple[str, ...], strict: bool) -> Any:
    """Returns a decoder for JSON objects with these fields.

    The fields named in `lists` may also be lists of values. Other keys are refused if `strict`, else
    skipped without being built.
    """

    def kind(field: Field) -> Any:
        if field.is_json:
            return Any
        value_type: Any = TYPES.get(field.datatype, NotEmpty if field.is_bytes else str)
        if field.name in lists:
            return value_type | list[value_type]
        return list[value_type] if field.is_list else value_type

    required = [(field.name, kind(field)) for field in fields if field.required]
    optional = [(field.name, kind(field) | None, None) for field in fields if not field.required]
    struct = msgspec.defstruct("Request", [*required, *optional], forbid_unknown_fields=strict)
    return msgspec.json.Decoder(struct)


def field_value(field: Field, element: Any) -> Any:
    """Converts an element of a tensor (text, bytes, a list of these, or numbers) to a field's value.

    Bytes are taken as they are; text for bytes is base64. Raises RequestError.
    """
    if isinstance(element, list):
        return [field_value(field, part) for part in element]
    if isinstance(element, np.ndarray):
        if not np.isfinite(element).all():
            raise InvalidTensorError(f"{field.name} is not finite")
        return element.tolist() if field.is_list else element.item()
    if field.is_bytes:
        return element if isinstance(element, bytes) and not field.is_image else to_bytes(element)
    text = element if isinstance(element, str) else text_of(element)
    if not field.is_json:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"{field.name} is not JSON: {error}"[:200]) from error


def element_of(field: Field, value: Any, binary: bool) -> bytes:
    """Converts a field's value to an element of a BYTES tensor; base64 becomes bytes if `binary`."""
    if field.is_json:
        return dump_json(value)
    return urlsafe_b64decode(value) if field.is_bytes and binary else str(value).encode()


def text_of(data: bytes) -> str:
    """Decodes UTF-8. Raises InvalidTextError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidTextError(f"the text is not UTF-8: {error}"[:200]) from error

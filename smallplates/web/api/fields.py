"""Finds a task's fields in the kinds of bodies that several protocols share.

If a request needs only one field, a client may also send it as a form field or as the body itself.
"""

import codecs
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from encodings import normalize_encoding
from encodings.aliases import aliases as encodings
from functools import cache, partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import orjson

from smallplates.base64 import from_base64, to_bytes
from smallplates.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTensorError,
    InvalidTextError,
    RequestError,
    UnsupportedMediaTypeError,
)
from smallplates.tasks.base import JSON_BODY, Field, Fields, Task
from smallplates.web.http import body as http
from smallplates.web.http.body import FormPart
from smallplates.web.inference.served_model import check_count

T = TypeVar("T")
R = TypeVar("R")
JSON, BYTES = b"application/json", b"application/octet-stream"
MULTIPART, URLENCODED = b"multipart/form-data", b"application/x-www-form-urlencoded"
IS_FORM = re.compile(rb"[\w.%+-]++=[^\0]*+\Z|[^\s=%+]*+[%+][^\s=]*+\Z")
"""What looks like a form: a text or a file that `curl -d` or urllib sends need not be one."""

JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*[{\[]")  # `curl -d` calls JSON urlencoded
JSON_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*{\s*"')  # Python's `requests` may send it without a type
CODECS = {codec for codec in encodings.values() if not codec.endswith("_codec")}
CODECS -= {"mbcs", "rot_13", "utf_7"}
"""Python's names of charsets; it would remember every unknown name for ever."""

ORDERS = {
    "utf_16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf_32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""Charsets whose order of bytes only a byte order mark says -> the marks."""

TYPES: dict[str, Any] = {"FP32": float, "FP64": float, "INT64": int, "BOOL": bool}
JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # possibly unterminated
TOP_K = "top_k"
TOP_K_FIELD = Field(TOP_K, "INT64", required=False)
MAX_URLENCODED = 1024 * 1024  # bytes; decoding takes many times as much memory
MAX_ELEMENTS, MAX_IDS = 16 * 1024, 256 * 1024
"""Maximum number of list elements in a body, and of such that may be token ids; more are refused before
they are built."""

INLINE_BYTES = 1024 * 1024
"""Size of the largest body that is read on the event loop."""

NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]


def fields_from_body(
    task: Task,
    body: bytes,
    content_type: str | None,
    native: bool = False,
    aliases: tuple[str, ...] = (),
) -> Fields:
    """Finds the fields in a body: JSON, a form, or the value of the task's `body_field`.

    Without a content type, what begins like a JSON object is JSON; for a task that takes JSON unparsed,
    also what begins like a list. Other bodies are taken as the value of `body_field` if there is one.
    The task's `list_fields` may be lists: of JSON, or of what a form repeats. If `native`, TOP_K may be
    a field, too (in multipart forms a list of texts), and unknown fields are refused. `aliases` are
    further names of `body_field` in a form; with them, an unknown content type means the same as none.
    Raises RequestError.
    """
    single, names, lenient = task.body_field, (*aliases, *task.form_fields), bool(aliases)
    kind, options = http.parse_content_type(content_type or default_type(task, body))
    more: Fields = {}
    if kind == MULTIPART and single and names:
        parts = http.form_parts(body, options.get(b"boundary"))
        if native:
            check_names("field", [part.name for part in parts], [*names, TOP_K])
            more = {TOP_K: [part.content.decode("latin-1") for part in parts if part.name == TOP_K]}
        part, *others = http.files_of(parts, names, several=single.name in task.list_fields)
        if others:
            return {single.name: [*each(partial(value_of_part, single), [part, *others])], **more}
        body, lenient = part.content, True
        kind, options = http.parse_content_type(part.content_type or default_type(task, body))
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if kind == URLENCODED and IS_FORM.match(body, 0, MAX_URLENCODED):
        return {**fields_from_json(task, json_of_form(task, body, charset, names), native), **more}
    if kind == JSON or (kind == URLENCODED and JSON_START.match(body)) or (lenient and not single):
        if codec_of(charset) not in ("utf_8", "ascii"):
            raise UnsupportedMediaTypeError(f"JSON must be UTF-8 (RFC 8259), not {charset[:40]!r}")
        return {**fields_from_json(task, body, native), **more}
    suits = kind == BYTES or kind.decode("latin-1").startswith(task.media_types)
    if single and (suits or lenient):
        return {single.name: body if single.is_bytes else text_of(body, charset), **more}
    known = "application/json"
    if single:
        bodies = [f"{prefix}*" if prefix.endswith("/") else prefix for prefix in task.media_types]
        known = ", ".join([known, *([MULTIPART.decode()] if names else []), *bodies])
        known += " or application/octet-stream"
    raise UnsupportedMediaTypeError(f"send {known}, not {kind.decode('latin-1')[:80]!r}")


def default_type(task: Task, body: bytes = b"") -> str:
    """Returns the content type of a body that has none."""
    is_json = (JSON_START if task.takes_json else JSON_OBJECT).match(body)
    return (BYTES if task.body_field and not is_json else JSON).decode()


def value_of_part(field: Field, part: FormPart) -> bytes | str:
    """Returns the value of a field in one of several files of a form. Raises RequestError."""
    kind, options = http.parse_content_type(part.content_type or BYTES.decode())
    if kind in (JSON, URLENCODED):
        raise UnsupportedMediaTypeError(f"send {kind.decode()} alone: the form has several files")
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    return part.content if field.is_bytes else text_of(part.content, charset)


def inline_bytes(task: Task, content_type: str | None) -> int:
    """Returns the size of the largest body of this type to read on the event loop.

    It is small only for JSON and forms that may be lists of texts. Base64 and files are long, not many.
    Without a type it may be JSON.
    """
    kind = (content_type or JSON.decode()).lower()
    lists_texts = any(field.name in task.list_fields and not field.is_bytes for field in task.request)
    return task.inline_limit if lists_texts and ("json" in kind or "form" in kind) else INLINE_BYTES


def json_of_form(task: Task, body: bytes, charset: str, names: Sequence[str]) -> bytes:
    """Returns a urlencoded form as JSON: texts as they are, values of other types are JSON already.

    `names` are further names of the task's `body_field`. Raises RequestError.
    """
    if len(body) > MAX_URLENCODED or body.count(b"&") >= http.MAX_PARTS:
        text = f"a urlencoded form may have up to {http.MAX_PARTS} fields and {MAX_URLENCODED} bytes"
        raise InvalidRequestError(text)
    fields = {field.name: field for field in (*task.request, TOP_K_FIELD)}
    fields |= {name: task.body_field for name in names if task.body_field}
    content: dict[str, list[Any]] = {}
    for pair in parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1"):
        name, text = (text_of(part.encode("latin-1"), charset) for part in pair)
        field = fields.get(name, Field(name, "BYTES"))
        is_text = field.datatype == "BYTES" and not (field.is_list or field.is_json)
        text = text.replace(" ", "+") if field.is_bytes else text  # base64 as it was before decoding
        label = f"field {name[:80]!r}"
        if field.name in content and field.name not in task.list_fields:
            raise InvalidRequestError(f"the form has several values for {field.name[:80]!r}")
        value = text if is_text else http.decode_json(http.SYNTAX, text.encode(), label)
        content.setdefault(field.name, []).append(value)
    given = {name: values if len(values) > 1 else values[0] for name, values in content.items()}
    return msgspec.json.encode(given)


def fields_from_json(task: Task, body: bytes, native: bool = False) -> Fields:
    """Finds the fields in a JSON object; see `fields_from_body`. Raises RequestError."""
    if task.takes_json:
        return {JSON_BODY: body.removeprefix(http.BOM)}
    names = task.list_fields if b"[" in body else ()
    if names or any(field.takes_list for field in task.request):
        check_elements(body)
    fields = (*task.request, TOP_K_FIELD) if native else task.request
    try:
        request = http.decode_json(decoder(fields, names, native), body, "body")
    except InvalidRequestError as error:
        if "unknown field" in error.detail:
            error.detail += f"; known are {', '.join(field.name for field in fields)}"
        raise
    return {
        field.name: bytes_of(value) if field.is_bytes else value
        for field in fields
        if (value := getattr(request, field.name)) is not None
    }


def bytes_of(value: str | list[str]) -> bytes | list[bytes]:
    """Decodes base64, or a list of it. Raises InvalidBase64Error."""
    return from_base64(value) if isinstance(value, str) else [*each(from_base64, value)]


def each(read: Callable[[T], R], elements: Iterable[T]) -> Iterator[R]:
    """Yields what `read` returns for each element; a RequestError begins with the element's place."""
    for index, element in enumerate(elements):
        try:
            yield read(element)
        except RequestError as error:
            error.detail = f"element {index}: {error.detail}"
            raise


def check_names(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raises InvalidRequestError if one of the names is not among those that are known."""
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequestError(f"unknown {kind} {unknown[0][:80]!r}; known are {', '.join(known)}")


def rows_of(task: Task, fields: Fields, most: int) -> list[Fields] | None:
    """Splits lists of values into one set of fields per request; returns None if there are no lists.

    Other fields are the same for all requests. Raises InvalidRequestError unless all given `list_fields`
    of the task are lists of the same length, from 1 to `most`.
    """
    columns = {name: fields[name] for name in task.list_fields if name in fields}
    if not any(isinstance(value, list) for value in columns.values()):
        return None
    lengths = {len(value) if isinstance(value, list) else None for value in columns.values()}
    if len(lengths) > 1:
        raise InvalidRequestError(f"{' and '.join(columns)} must be lists of the same length")
    check_count(lengths.pop() or 0, most)
    rows = zip(*columns.values(), strict=True)
    return [{**fields, **dict(zip(columns, row, strict=True))} for row in rows]


def value_of(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    """Returns a value of JSON; None if it is left out or null."""
    return None if isinstance(raw, msgspec.UnsetType) or bytes(memoryview(raw)[:5]) == b"null" else raw


def commas(text: bytes | memoryview | msgspec.Raw) -> int:
    """Counts commas, which bounds the number of JSON elements before they are built."""
    return bytes(text).count(b",")


def check_elements(body: bytes, most: int = MAX_ELEMENTS) -> None:
    """Raises InvalidRequestError for JSON with more than `most` elements, before any is built."""
    if commas(body) > most and commas(without_texts(body)) > most:
        raise InvalidRequestError(f"the body has more than {most} elements")


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
        if field.name in lists or field.takes_list:
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
        return http.dump_json(value)
    return urlsafe_b64decode(value) if field.is_bytes and binary else str(value).encode()


def text_of(data: bytes, charset: str = "utf-8") -> str:
    """Decodes text and drops a byte order mark at its start.

    Raises InvalidTextError, or UnsupportedMediaTypeError for an unknown charset.
    """
    codec = codec_of(charset)
    if data and codec in ORDERS and not data.startswith(ORDERS[codec]):
        name = codec.upper().replace("_", "-")
        text = f"{name} without a byte order mark is ambiguous: declare {name}LE or {name}BE"
        raise InvalidTextError(text)
    try:
        return data.decode(codec).removeprefix("\ufeff")
    except UnicodeError as error:
        raise InvalidTextError(f"the text is not {charset.upper()}: {error}"[:200]) from error


def codec_of(charset: str) -> str:
    """Returns Python's name of a charset. Raises UnsupportedMediaTypeError."""
    name = normalize_encoding(charset.lower())
    codec = encodings.get(name, name)
    if codec not in CODECS:
        raise UnsupportedMediaTypeError(f"the charset {charset[:40]!r} is not supported: send UTF-8")
    return codec

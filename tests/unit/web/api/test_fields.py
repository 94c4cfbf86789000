"""What a body is: JSON, a form, a file or a text, by its content type, its charset and the task."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, create_model

from smallplates.errors import (
    InvalidBase64Error,
    InvalidJsonError,
    InvalidRequestError,
    InvalidTextError,
    ServingError,
    UnsupportedMediaTypeError,
)
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.base import JSON_BODY, Field, Task
from smallplates.tasks.python.web import PythonRequests
from smallplates.web.api.fields import MAX_ELEMENTS, codec_of, fields_from_body
from smallplates.web.dialects.torchserve import FORM_FIELDS
from smallplates.web.http.body import MAX_PARTS

FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=B"
PNG = b"\x89PNG\r\n\x1a\n=&%41"
BOM = "\ufeff"
Read = Callable[[Task, bytes, str | None], Mapping[str, Any]]


class Fields(Task):
    """A task without a model."""

    def __init__(self) -> None:
        """There is no model."""


class Texts(Fields):
    """A task of a text, or a pair."""

    request = (Field("text", "BYTES"), Field("text_pair", "BYTES", required=False))
    list_fields = ("text", "text_pair")
    media_types = ("text/plain",)


class OneImage(Fields):
    """A task of one file, and no more."""

    request = (Field("image", "BYTES", is_bytes=True),)
    media_types = ("image/",)
    form_fields = ("image", "file")


class Images(OneImage):
    """A task of one file, or several."""

    list_fields = ("image",)


class Questions(Fields):
    """A task of several fields."""

    request = (
        Field("question", "BYTES"),
        Field("context", "BYTES"),
        Field("allow_no_answer", "BOOL", required=False),
        Field("weights", "FP64", is_list=True, required=False),
    )


class Json(Fields):
    """A task of the user's own code."""

    takes_json = True
    request = (Field("number", "INT64"), Field("name", "BYTES", required=False))


def own(kind: type[BaseModel]) -> PythonRequests:
    """Returns the task of a Python class whose requests have this type."""
    description = ModelDescription(name="own", version="1", task="own:Own", files={})
    model, settings = Model(Path(), description), Settings()
    schemas = {"request": kind.model_json_schema(), "answer": {}}
    return PythonRequests(model, settings, PythonRequests.plan(model, settings), schemas)


OWN_TEXT = own(create_model("Text", text=str, count=(int, 1)))
OWN_FILE = own(create_model("File", file=Base64Bytes))
OWN_TEXTS = own(create_model("Texts", texts=list[str]))
OWN_PAIR = own(create_model("Pair", text=str, other=str))
TEXTS, IMAGES, ONE, QUESTIONS, JSON = Texts(), Images(), OneImage(), Questions(), Json()


def multipart(value: bytes, name: str = "data", content_type: str = "", file: bool = True) -> bytes:
    """Returns a form of one part, with the boundary B."""
    head = f'--B\r\nContent-Disposition: form-data; name="{name}"' + ('; filename="f"' if file else "")
    head += f"\r\nContent-Type: {content_type}" if content_type else ""
    return head.encode() + b"\r\n\r\n" + value + b"\r\n--B--\r\n"


def native(task: Task, body: bytes, content_type: str | None) -> Mapping[str, Any]:
    """Returns the fields of a body at /predict."""
    return fields_from_body(task, body, content_type, native=True)


def torchserve(task: Task, body: bytes, content_type: str | None) -> Mapping[str, Any]:
    """Returns the fields of a body at /predictions."""
    return fields_from_body(task, body, content_type, aliases=FORM_FIELDS)


def parts(*forms: bytes) -> bytes:
    """Returns the parts of several forms as one form."""
    return b"".join(form.removesuffix(b"--B--\r\n") for form in forms) + b"--B--\r\n"


BOTH = (native, torchserve)
GOOD, FILM, MARK = {"text": "a"}, {"text": "good film+"}, BOM.encode()
PAIR_AS_JSON = multipart(b'{"text": "a", "text_pair": "b"}', content_type="application/json")
LATIN = multipart(b"caf\xe9", content_type="text/plain; charset=latin-1")
SEVERAL = parts(multipart(PNG, "image", "image/png"), multipart(b"", "file"))
TOP_K = multipart(b"2", "top_k", file=False)
FORM_IN_FORM = multipart(b"a", content_type=MULTIPART).replace(b"B", b"C")
ASKED = b"question=what%3F&context=caf%C3%A9+caf\xc3\xa9&allow_no_answer=true&weights=[1,2.5]"
ANSWERED = {
    "question": "what?",
    "context": "caf\xe9 caf\xe9",
    "allow_no_answer": True,
    "weights": [1, 2.5],
}
QUESTION = {"question": "a", "context": "b"}
READ: list[tuple[Sequence[Read], Task, str | None, bytes, Mapping[str, Any]]] = [
    # what curl sends by default
    ([torchserve], TEXTS, FORM, b"data=good+film%2B", FILM),
    ([torchserve], TEXTS, FORM, b"data=good%20film%2b", FILM),
    ([torchserve], TEXTS, FORM, b"body=good+film%2B", FILM),
    ([torchserve], TEXTS, FORM, b"text=good+film%2B&other=1", FILM),
    ([torchserve], TEXTS, FORM, b"other=&&text=good+film%2B&", FILM),
    (BOTH, TEXTS, FORM, b"text=good+film%2B", FILM),
    (BOTH, TEXTS, FORM, b'{"text": "good film+"}', FILM),
    (BOTH, TEXTS, FORM, MARK + b' \n{"text": "good film+"}', FILM),
    ([native], TEXTS, FORM, b"text=good&top_k=2", {"text": "good", "top_k": 2}),
    ([torchserve], TEXTS, FORM, b"data=100%25+%zz%", {"text": "100% %zz%"}),
    ([torchserve], TEXTS, FORM, b"data=%EF%BB%BFa", GOOD),
    ([torchserve], TEXTS, f"{FORM}; charset=latin-1", b"data=caf%E9", {"text": "caf\xe9"}),
    ([torchserve], TEXTS, f"{FORM}; charset=UTF8", b"data=caf%C3%A9", {"text": "caf\xe9"}),
    (BOTH, QUESTIONS, FORM, ASKED, ANSWERED),
    (BOTH, JSON, FORM, b"number=3&name=3", {JSON_BODY: b'{"number":3,"name":"3"}'}),
    ([native], IMAGES, FORM, b"image=+/+/", {"image": b"\xfb\xff\xbf"}),
    ([native], IMAGES, FORM, b"image=%2B/%2B/", {"image": b"\xfb\xff\xbf"}),
    # files and texts that curl calls a form
    ([torchserve], IMAGES, FORM, PNG, {"image": PNG}),
    *(
        ([torchserve], IMAGES, FORM, file, {"image": file})
        for file in (
            *(b"GIF89a=\0=\0" + bytes(9), b"BM6=\0\0" + bytes(9)),
            *(b"RIFF%=\0\0WEBPVP8 ", b"RIFF=+\0\0WEBP"),
        )
    ),
    *(
        ([torchserve], TEXTS, FORM, text.encode(), {"text": text.removeprefix(BOM)})
        for text in ("", "good film", "good film = great", f"{BOM}good", "a & b")
    ),
    # JSON
    (BOTH, TEXTS, "application/json; charset=utf-8", b'{"text": "a"}', GOOD),
    (BOTH, TEXTS, "application/json; charset=UTF8", b'{"text": "a"}', GOOD),
    (BOTH, TEXTS, "application/json; charset=us-ascii", b'{"text": "a"}', GOOD),
    ([native], TEXTS, "application/json", MARK + b'{"text": "a"}', GOOD),
    ([native], JSON, "application/json", MARK + b"{}", {JSON_BODY: b"{}"}),
    # without a content type, or with another
    (BOTH, TEXTS, None, MARK + b' {\n"text": "a"}', GOOD),
    (BOTH, IMAGES, None, b'{"image": "YWJj"}', {"image": b"abc"}),
    (BOTH, TEXTS, "application/octet-stream", b'{"text": "a"}', {"text": '{"text": "a"}'}),
    (BOTH, TEXTS, None, b"{a} film", {"text": "{a} film"}),
    (BOTH, TEXTS, None, b'["a"]', {"text": '["a"]'}),
    ([native], QUESTIONS, None, json.dumps(QUESTION).encode(), QUESTION),
    ([torchserve], QUESTIONS, "text/x", json.dumps(QUESTION).encode(), QUESTION),
    ([native], IMAGES, "image/png; charset=klingon", PNG, {"image": PNG}),
    # the only field that a Python class needs
    (BOTH, OWN_TEXT, None, b"a", GOOD),
    (BOTH, OWN_TEXT, "text/plain; charset=latin-1", b"caf\xe9", {"text": "caf\xe9"}),
    (BOTH, OWN_TEXT, None, b' {"text": "a"}', {JSON_BODY: b' {"text": "a"}'}),
    (BOTH, OWN_TEXT, "application/json", b'"a"', {JSON_BODY: b'"a"'}),
    (BOTH, OWN_FILE, "image/png", PNG, {"file": PNG}),
    (BOTH, OWN_FILE, None, PNG, {"file": PNG}),
    ([native], OWN_FILE, MULTIPART, multipart(PNG, "file"), {"file": PNG, "top_k": []}),
    ([torchserve], OWN_FILE, MULTIPART, multipart(PNG, "body"), {"file": PNG}),
    ([torchserve], OWN_FILE, FORM, PNG, {"file": PNG}),
    (BOTH, OWN_PAIR, None, b"a", {JSON_BODY: b"a"}),
    # a byte order mark
    (BOTH, TEXTS, None, MARK + b"a", GOOD),
    (BOTH, TEXTS, "text/plain", MARK + b"a", GOOD),
    (BOTH, TEXTS, "application/octet-stream", MARK + b"a", GOOD),
    ([native], IMAGES, "image/png", MARK, {"image": MARK}),
    # parts of forms
    ([torchserve], TEXTS, MULTIPART, multipart(MARK + b"a", file=False), GOOD),
    ([torchserve], TEXTS, MULTIPART, PAIR_AS_JSON, {"text": "a", "text_pair": "b"}),
    # several values
    (BOTH, TEXTS, "application/json", b'{"text": ["a", "b"]}', {"text": ["a", "b"]}),
    (BOTH, TEXTS, FORM, b"text=a&text=b", {"text": ["a", "b"]}),
    ([torchserve], TEXTS, FORM, b"data=a&text=b", {"text": ["a", "b"]}),
    ([torchserve], TEXTS, MULTIPART, parts(LATIN, multipart(b"a")), {"text": ["caf\xe9", "a"]}),
    (BOTH, IMAGES, "application/json", b'{"image": ["YWJj"]}', {"image": [b"abc"]}),
    (BOTH, IMAGES, FORM, b"image=YWJj&image=+/+/", {"image": [b"abc", b"\xfb\xff\xbf"]}),
    ([torchserve], IMAGES, MULTIPART, SEVERAL, {"image": [PNG, b""]}),
    ([native], IMAGES, MULTIPART, parts(TOP_K, SEVERAL), {"image": [PNG, b""], "top_k": ["2"]}),
]


@pytest.mark.parametrize(("readers", "task", "kind", "body", "fields"), READ, ids=range(len(READ)))
def test_what_is_read(
    readers: Sequence[Read], task: Task, kind: str | None, body: bytes, fields: Mapping[str, Any]
) -> None:
    for read in readers:
        assert read(task, body, kind) == fields


REFUSED: list[tuple[Sequence[Read], Task, str | None, bytes, type[ServingError]]] = [
    # names of TorchServe, and others
    *(
        ([native], TEXTS, FORM, body, InvalidRequestError)
        for body in (b"data=a", b"body=a", b"text=a&other=1", b"other=&&text=a&")
    ),
    *(
        (BOTH, TEXTS, FORM, body, InvalidRequestError)
        for body in (
            *(b"other=good", b"text_pair=a&text_pair=b"),
            *(b"good%20film", b"good+film", b"a&b+c"),
            *(b"data=" + b"%" * (1024 * 1024), b"data=a" + b"&x=1" * MAX_PARTS, b"a=1&" * 100_000),
        )
    ),
    ([native], TEXTS, FORM, b"text=good&top_k=1&top_k=2", InvalidRequestError),
    # several values
    (BOTH, ONE, MULTIPART, SEVERAL, InvalidRequestError),
    (BOTH, ONE, FORM, b"image=YWJj&image=YWJj", InvalidRequestError),
    (BOTH, ONE, "application/json", b'{"image": ["YWJj"]}', InvalidRequestError),
    (BOTH, IMAGES, "application/json", b'{"image": [["YWJj"]]}', InvalidRequestError),
    (BOTH, IMAGES, "application/json", b'{"image": ["YWJj", null]}', InvalidRequestError),
    (
        BOTH,
        IMAGES,
        "application/json",
        b'{"image": [' + b'"",' * MAX_ELEMENTS + b'""]}',
        InvalidRequestError,
    ),
    (BOTH, IMAGES, MULTIPART, multipart(PNG, "top_k"), InvalidRequestError),
    ([torchserve], TEXTS, MULTIPART, parts(multipart(b"a"), PAIR_AS_JSON), UnsupportedMediaTypeError),
    *(([native], task, "image/png", PNG, UnsupportedMediaTypeError) for task in (OWN_PAIR, OWN_TEXTS)),
    (BOTH, OWN_TEXT, None, b"\xff", InvalidTextError),
    (BOTH, TEXTS, FORM, b"data=%ff", InvalidTextError),
    (BOTH, TEXTS, FORM, b'{"text": ', InvalidJsonError),
    *(
        (BOTH, QUESTIONS, FORM, b"question=a&context=b&allow_no_answer=" + value, error)
        for value, error in (
            (b"maybe", InvalidJsonError),
            (b'"true"', InvalidRequestError),
            (b"3", InvalidRequestError),
        )
    ),
    # a value is JSON by itself
    *(
        ([native], task, FORM, body + value, InvalidJsonError)
        for task, body in ((TEXTS, b"text=good&top_k="), (JSON, b"number="))
        for value in (b'1,"text":"bad"', b"1%2C%22text%22%3A%22bad%22", b"02", b"x", b"")
    ),
    ([native], IMAGES, FORM, PNG, UnsupportedMediaTypeError),
    ([native], TEXTS, FORM, b"good film", UnsupportedMediaTypeError),
    *(
        (BOTH, TEXTS, f"application/json; charset={charset}", b"{}", UnsupportedMediaTypeError)
        for charset in ("utf-16", "latin-1", "klingon")
    ),
    # charsets
    *(
        (BOTH, TEXTS, f'text/plain; charset="{charset}"', b"YWJj", UnsupportedMediaTypeError)
        for charset in (
            *("klingon", "base64", "rot13", "zip", "bz2", "hex", "utf-7", "idna", "punycode"),
            *("unicode_escape", "undefined", "mbcs", "..", "os", "", "x" * 900),
        )
    ),
    *(
        ([native], TEXTS, f"text/plain; charset={charset}", body, InvalidTextError)
        for body, charset in (
            *((b"\xff", "utf-8"), (b"a", "utf-16")),
            *((b"\x00\xd8", "utf-16le"), (b"\xe9", "ascii")),
        )
    ),
]


@pytest.mark.parametrize(("readers", "task", "kind", "body", "error"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(
    readers: Sequence[Read], task: Task, kind: str, body: bytes, error: type[ServingError]
) -> None:
    for read in readers:
        with pytest.raises(error):
            read(task, body, kind)


@pytest.mark.parametrize(
    ("kind", "body"), [("application/json", b'{"image": ["YWJj", "-"]}'), (FORM, b"image=YWJj&image=-")]
)
def test_the_place_of_what_is_not_base64(kind: str, body: bytes) -> None:
    with pytest.raises(InvalidBase64Error) as refused:
        native(IMAGES, body, kind)
    assert refused.value.detail.startswith("element 1: not valid base64")


def test_a_form_within_a_form_is_not_read() -> None:
    form = multipart(FORM_IN_FORM, content_type="multipart/form-data; boundary=C")
    assert torchserve(TEXTS, form, MULTIPART)["text"].startswith("--C")


@given(st.text(min_size=1))
def test_a_form_comes_out_as_it_went_in(text: str) -> None:
    body = f"data={quote_plus(text)}".encode()
    assert torchserve(TEXTS, body, FORM) == {"text": text.removeprefix(BOM)}


@pytest.mark.parametrize(
    "charset",
    ["utf-8", "UTF8", '"utf-8"', "utf-16", "UTF-16LE", "utf-16be", "utf-32", "latin-1", "iso-8859-15"],
)
def test_declared_charsets_are_obeyed(charset: str) -> None:
    data = "caf\xe9".encode(charset.strip('"'))
    form = multipart(data, content_type=f"text/plain; charset={charset}")
    for read, kind, body in (
        (native, f"text/plain; charset={charset}", data),
        (native, f"TEXT/Plain;Charset={charset}", data),
        (torchserve, f"text/html; charset={charset}", data),
        (torchserve, MULTIPART, form),
    ):
        assert read(TEXTS, body, kind) == {"text": "caf\xe9"}


@pytest.mark.parametrize("order", ["utf-16le", "utf-16be", "utf-32le", "utf-32be"])
def test_without_a_byte_order_mark_the_order_must_be_declared(order: str) -> None:
    data, charset = "good film".encode(order), order[:6]
    assert native(TEXTS, data, f"text/plain; charset={order}") == {"text": "good film"}
    with_mark = (BOM + "good film").encode(order)
    assert native(TEXTS, with_mark, f"text/plain; charset={charset}") == {"text": "good film"}
    for read in BOTH:
        with pytest.raises(InvalidTextError, match=f"{charset.upper()}LE or {charset.upper()}BE"):
            read(TEXTS, data, f"text/plain; charset={charset}")


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-16le", "utf-16be", "utf-32"])
def test_a_byte_order_mark_at_the_start_is_no_text(charset: str) -> None:
    for text, rest in ((BOM + "a", "a"), (f"a{BOM}b", f"a{BOM}b"), (BOM, "")):
        fields = native(TEXTS, text.encode(charset), f"text/plain; charset={charset}")
        assert fields == {"text": rest}


@given(st.text(max_size=20))
def test_any_name_of_a_charset(name: str) -> None:
    try:
        "a".encode(codec_of(name))
    except UnsupportedMediaTypeError:
        return

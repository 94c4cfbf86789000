"""What a body is: JSON, a form, a file or a text, by its content type, its charset and the task."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_from_bytes, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallplates.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTextError,
    ServingError,
    UnsupportedMediaTypeError,
)
from smallplates.tasks.base import JSON_BODY, Field, Task
from smallplates.web.api.fields import codec_of, fields_from_body, text_of
from smallplates.web.api.torchserve import FORM_FIELDS

FORM = "application/x-www-form-urlencoded"
PNG = b"\x89PNG\r\n\x1a\n=&%41"
BOM = "\ufeff"


class Texts(Task):
    """A task of a text, or a pair."""

    request = (Field("text", "BYTES"), Field("text_pair", "BYTES", required=False))
    list_fields = ("text", "text_pair")
    media_types = ("text/plain",)

    def __init__(self) -> None:
        """There is no model."""


class Images(Task):
    """A task of one file."""

    request = (Field("image", "BYTES", is_bytes=True),)
    media_types = ("image/",)
    form_fields = ("image", "file")

    def __init__(self) -> None:
        """There is no model."""


class Questions(Task):
    """A task of several fields."""

    request = (
        Field("question", "BYTES"),
        Field("context", "BYTES"),
        Field("allow_no_answer", "BOOL", required=False),
        Field("weights", "FP64", is_list=True, required=False),
    )

    def __init__(self) -> None:
        """There is no model."""


class Json(Task):
    """A task of the user's own code."""

    takes_json = True
    request = (Field("number", "INT64"), Field("name", "BYTES", required=False))

    def __init__(self) -> None:
        """There is no model."""


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


@pytest.mark.parametrize(
    "body",
    [
        b"data=good+film%2B",
        b"data=good%20film%2b",
        b"body=good+film%2B",
        b"text=good+film%2B&other=1",
        b"other=&&text=good+film%2B&",
        b'{"text": "good film+"}',
        b'\xef\xbb\xbf \n{"text": "good film+"}',
    ],
)
def test_what_curl_sends_by_default(body: bytes) -> None:
    wanted = {"text": "good film+"}
    assert torchserve(Texts(), body, FORM) == wanted
    if body.startswith((b"data", b"body")) or b"other" in body:  # TorchServe's names, and others
        with pytest.raises(InvalidRequestError, match="unknown field"):
            native(Texts(), body, FORM)
    else:
        assert native(Texts(), body, FORM) == wanted


def test_a_form_of_predict_may_have_top_k() -> None:
    assert native(Texts(), b"text=good&top_k=2", FORM) == {"text": "good", "top_k": 2}
    for wrong in (b"text=good&top_k=", b"text=good&top_k=x", b"text=good&top_k=1&top_k=2"):
        with pytest.raises(ServingError) as refused:
            native(Texts(), wrong, FORM)
        assert 400 <= refused.value.status < 500


@pytest.mark.parametrize("value", [b'1,"text":"bad"', b"1%2C%22text%22%3A%22bad%22", b"02", b"x", b""])
def test_a_value_of_a_form_is_json_by_itself(value: bytes) -> None:
    with pytest.raises(InvalidJsonError, match="'top_k' is not JSON"):
        native(Texts(), b"text=good&top_k=" + value, FORM)
    with pytest.raises(InvalidJsonError, match="'number' is not JSON"):
        native(Json(), b"number=" + value, FORM)


@pytest.mark.parametrize(
    "file",
    [b"GIF89a=\0=\0" + bytes(9), b"BM6=\0\0" + bytes(9), b"RIFF%=\0\0WEBPVP8 ", b"RIFF=+\0\0WEBP"],
)
def test_a_file_whose_size_looks_like_a_form(file: bytes) -> None:
    assert torchserve(Images(), file, FORM) == {"image": file}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"other=good", InvalidRequestError),
        (b"data=a&data=b", InvalidRequestError),
        (b"text=a&text=b", InvalidRequestError),
        (b"good%20film", InvalidRequestError),
        (b"good+film", InvalidRequestError),
        (b"a&b+c", InvalidRequestError),
        (b"data=%ff", InvalidTextError),
        (b"data=" + b"%" * (1024 * 1024), InvalidRequestError),
        (b"data=a" + b"&x=1" * 16, InvalidRequestError),
        (b"a=1&" * 100_000, InvalidRequestError),
        (b'{"text": ', InvalidJsonError),
    ],
)
def test_what_curl_sends_by_default_and_is_refused(body: bytes, error: type[ServingError]) -> None:
    for read in (native, torchserve):
        with pytest.raises(error):
            read(Texts(), body, FORM)


def test_a_form_has_the_names_and_types_of_json() -> None:
    body = b"question=what%3F&context=caf%C3%A9+caf\xc3\xa9&allow_no_answer=true&weights=[1,2.5]"
    wanted = {"question": "what?", "context": "caf\xe9 caf\xe9", "allow_no_answer": True}
    for read in (native, torchserve):
        assert read(Questions(), body, FORM) == {**wanted, "weights": [1, 2.5]}
        for value in (b"maybe", b'"true"', b"3"):
            with pytest.raises(ServingError):
                read(Questions(), b"question=a&context=b&allow_no_answer=" + value, FORM)
        assert read(Json(), b"number=3&name=3", FORM) == {JSON_BODY: b'{"number":3,"name":"3"}'}


def test_a_field_and_its_alias_are_the_same() -> None:
    with pytest.raises(InvalidRequestError):
        torchserve(Texts(), b"data=a&text=b", FORM)


def test_percent_signs_that_encode_nothing_stay() -> None:
    assert torchserve(Texts(), b"data=100%25+%zz%", FORM) == {"text": "100% %zz%"}


@given(st.text(min_size=1))
def test_a_form_comes_out_as_it_went_in(text: str) -> None:
    body = f"data={quote_plus(text)}".encode()
    assert torchserve(Texts(), body, FORM) == {"text": text.removeprefix(BOM)}


@pytest.mark.parametrize("text", ["", "good film", "good film = great", "\ufeffgood", "a & b"])
def test_a_file_or_a_text_that_curl_calls_a_form(text: str) -> None:
    assert torchserve(Texts(), text.encode(), FORM) == {"text": text.removeprefix(BOM)}
    assert torchserve(Images(), PNG, FORM) == {"image": PNG}
    for task, body in ((Images(), PNG), (Texts(), text.encode())):
        with pytest.raises(UnsupportedMediaTypeError):
            native(task, body, FORM)


def test_base64_in_a_form() -> None:
    for encoded in (b"image=+/+/", b"image=" + quote_from_bytes(b"+/+/").encode()):
        assert native(Images(), encoded, FORM) == {"image": b"\xfb\xff\xbf"}


@pytest.mark.parametrize(
    "charset",
    ["utf-8", "UTF8", '"utf-8"', "utf-16", "UTF-16LE", "utf-16be", "utf-32", "latin-1", "iso-8859-15"],
)
def test_declared_charsets_are_obeyed(charset: str) -> None:
    text = "caf\xe9"
    data = text.encode(charset.strip('"'))
    assert native(Texts(), data, f"text/plain; charset={charset}") == {"text": text}
    assert native(Texts(), data, f"TEXT/Plain;Charset={charset}") == {"text": text}
    assert torchserve(Texts(), data, f"text/html; charset={charset}") == {"text": text}
    form = multipart(data, content_type=f"text/plain; charset={charset}")
    assert torchserve(Texts(), form, "multipart/form-data; boundary=B") == {"text": text}
    body = b"data=" + quote_from_bytes(data).encode()
    if charset in ("latin-1", "UTF8"):
        assert torchserve(Texts(), body, f"{FORM}; charset={charset}") == {"text": text}


@pytest.mark.parametrize(
    "charset",
    [
        *("klingon", "base64", "rot13", "zip", "bz2", "hex", "utf-7", "idna", "punycode"),
        *("unicode_escape", "undefined", "mbcs", "..", "os", "", "x" * 900),
    ],
)
def test_other_charsets_are_refused(charset: str) -> None:
    for read in (native, torchserve):
        with pytest.raises(UnsupportedMediaTypeError, match="charset"):
            read(Texts(), b"YWJj", f'text/plain; charset="{charset}"')


@pytest.mark.parametrize(
    ("data", "charset"),
    [(b"\xff", "utf-8"), (b"a", "utf-16"), (b"\x00\xd8", "utf-16le"), (b"\xe9", "ascii")],
)
def test_bytes_that_are_not_of_the_declared_charset(data: bytes, charset: str) -> None:
    with pytest.raises(InvalidTextError, match=charset.upper()):
        native(Texts(), data, f"text/plain; charset={charset}")


@pytest.mark.parametrize("order", ["utf-16le", "utf-16be", "utf-32le", "utf-32be"])
def test_without_a_byte_order_mark_the_order_must_be_declared(order: str) -> None:
    data, charset = "good film".encode(order), order[:6]
    assert native(Texts(), data, f"text/plain; charset={order}") == {"text": "good film"}
    marked = (BOM + "good film").encode(order)
    assert native(Texts(), marked, f"text/plain; charset={charset}") == {"text": "good film"}
    for read in (native, torchserve):
        with pytest.raises(InvalidTextError, match=f"{charset.upper()}LE or {charset.upper()}BE"):
            read(Texts(), data, f"text/plain; charset={charset}")


def test_json_is_utf_8() -> None:
    text = '{"text": "a"}'
    for charset in ("utf-8", "UTF8", "us-ascii"):
        assert native(Texts(), text.encode(), f"application/json; charset={charset}") == {"text": "a"}
    for charset in ("utf-16", "latin-1", "klingon"):
        for read in (native, torchserve):
            with pytest.raises(UnsupportedMediaTypeError):
                read(Texts(), text.encode(), f"application/json; charset={charset}")


def test_a_charset_of_a_file_is_ignored() -> None:
    assert native(Images(), PNG, "image/png; charset=klingon") == {"image": PNG}


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-16le", "utf-16be", "utf-32"])
def test_a_byte_order_mark_at_the_start_is_no_text(charset: str) -> None:
    for text, wanted in ((BOM + "a", "a"), (f"a{BOM}b", f"a{BOM}b"), (BOM, "")):
        assert text_of(text.encode(charset), charset) == wanted
        found = native(Texts(), text.encode(charset), f"text/plain; charset={charset}")
        assert found == {"text": wanted}


def test_a_byte_order_mark_everywhere() -> None:
    mark = BOM.encode()
    for kind in (None, "text/plain", "application/octet-stream"):
        assert (
            native(Texts(), mark + b"a", kind) == torchserve(Texts(), mark + b"a", kind) == {"text": "a"}
        )
    assert torchserve(Texts(), b"data=%EF%BB%BFa", FORM) == {"text": "a"}
    form = multipart(mark + b"a", file=False)
    assert torchserve(Texts(), form, "multipart/form-data; boundary=B") == {"text": "a"}
    assert native(Texts(), mark + b'{"text": "a"}', "application/json") == {"text": "a"}
    assert native(Json(), mark + b"{}", "application/json") == {JSON_BODY: b"{}"}
    assert native(Images(), mark, "image/png") == {"image": mark}


def test_the_part_of_a_form_may_be_json() -> None:
    form = multipart(b'{"text": "a", "text_pair": "b"}', content_type="application/json")
    found = torchserve(Texts(), form, "multipart/form-data; boundary=B")
    assert found == {"text": "a", "text_pair": "b"}


def test_a_form_within_a_form_is_not_read() -> None:
    inner = multipart(b"a", content_type="multipart/form-data; boundary=B")
    outer = multipart(inner.replace(b"B", b"C"), content_type="multipart/form-data; boundary=C")
    assert torchserve(Texts(), outer, "multipart/form-data; boundary=B")["text"].startswith("--C")


def test_without_a_content_type() -> None:
    text = b'{"text": "a"}'
    assert native(Texts(), text, None) == torchserve(Texts(), text, None) == {"text": text.decode()}
    assert native(Questions(), b'{"question": "a", "context": "b"}', None)["question"] == "a"
    assert torchserve(Questions(), b'{"question": "a", "context": "b"}', "text/x")["question"] == "a"


@given(st.text(max_size=20))
def test_any_name_of_a_charset(name: str) -> None:
    try:
        "a".encode(codec_of(name))
    except UnsupportedMediaTypeError:
        return

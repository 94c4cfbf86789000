"""Reads a request's body within its limits, and finds the picture in it; called by front-ends."""

import asyncio

import pybase64
from fastapi import Request
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from serving.errors import (
    InvalidBase64Error,
    InvalidImageError,
    InvalidJsonError,
    InvalidRequestError,
    PayloadTooLargeError,
    SlowBodyError,
    UnsupportedMediaTypeError,
)
from serving.schemas import PredictRequest

IMAGE_FIELDS = (b"image", b"file")
MAX_PARTS = 16


async def read(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises PayloadTooLargeError, SlowBodyError or UnsupportedMediaTypeError."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaTypeError(f"the content encoding {encoding[:40]!r} is not supported")
    too_large = PayloadTooLargeError(f"the body has more than {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError as error:
        raise SlowBodyError(f"the body did not arrive within {timeout_s:g} s") from error
    return b"".join(chunks)


def picture(body: bytes, content_type: str | None) -> bytes:
    """The picture's bytes out of a body: JSON with base64, multipart form, or the bytes themselves.

    A body without a content type counts as the picture itself.
    """
    media_type, options = parse_options_header(content_type or "application/octet-stream")
    if media_type == b"application/json":
        return from_json(body)
    if media_type == b"multipart/form-data":
        return from_multipart(body, options.get(b"boundary"))
    if media_type == b"application/octet-stream" or media_type.startswith(b"image/"):
        if not body:
            raise InvalidImageError("the body is empty")
        return body
    raise UnsupportedMediaTypeError(
        "send application/json, multipart/form-data, image/* or application/octet-stream, "
        f"not {media_type.decode('latin-1')[:80]!r}"
    )


def from_json(body: bytes) -> bytes:
    """`{"image": "<base64>"}` -> the picture's bytes."""
    try:
        return from_base64(PredictRequest.model_validate_json(body).image)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if problem["type"] == "json_invalid":
            raise InvalidJsonError(f"the body is not JSON: {problem['msg']}") from error
        place = ".".join(str(part) for part in problem["loc"]) or "body"
        raise InvalidRequestError(f"{place}: {problem['msg']}") from error


def from_base64(text: str) -> bytes:
    """Standard base64, with or without a data URL's prefix; line breaks are allowed."""
    if text[:5].lower() == "data:":
        prefix, comma, text = text.partition(",")
        if not comma or not prefix.lower().endswith(";base64"):
            raise InvalidBase64Error("a data URL must look like data:image/jpeg;base64,...")
    try:
        return decode_base64(text)
    except ValueError as error:
        raise InvalidBase64Error(f"image is not base64: {error}"[:200]) from error


def decode_base64(text: str) -> bytes:
    """Strict in alphabet and padding; the usual text has no line breaks and needs no copy."""
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        return pybase64.b64decode("".join(text.split()), validate=True)


def from_multipart(body: bytes, boundary: bytes | None) -> bytes:
    """The one file field `image` or `file` of a form, kept in memory."""
    if not boundary:
        raise InvalidRequestError("multipart/form-data needs a boundary")
    files: list[bytes] = []
    parts = 0

    def count() -> None:
        nonlocal parts
        parts += 1
        if parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")

    def on_field(_: Field) -> None:
        count()

    def on_file(file: File) -> None:
        count()
        if file.field_name in IMAGE_FIELDS:
            file.file_object.seek(0)
            files.append(file.file_object.read())

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field,
            on_file,
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequestError(f"the form cannot be read: {error}"[:200]) from error
    if len(files) != 1:
        raise InvalidRequestError(f"send one file in the field image or file; got {len(files)}")
    return files[0]

"""Reads a request's body within its limits, and finds the picture in it; called by front-ends."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Annotated

import msgspec
from fastapi import Request
from python_multipart.multipart import parse_options_header

from serving.errors import (
    InvalidBodyError,
    InvalidImageError,
    InvalidJsonError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    SlowBodyError,
    UnsupportedMediaTypeError,
)
from serving.tasks.image.decode import from_base64

IMAGE_FIELDS = (b"image", b"file")
MAX_PARTS = 16
MAX_PART_HEAD = 4096
MAX_BOUNDARY = 70  # RFC 2046
MAX_CONTENT_TYPE = 1024  # characters; the parser takes a time that grows with their square


WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}  # RFC 1952, RFC 1950
FORBIDDEN = re.compile(r"q *= *0(\.0*)?")  # a weight of nought, RFC 9110
LARGE = 64 * 1024  # bytes; more is a thread's work
FAST = 1
WORTH_IT = 512  # bytes; what is smaller travels in one packet anyway


class Body(msgspec.Struct):
    """`schemas.PredictRequest`, as it is read."""

    image: Annotated[str, msgspec.Meta(min_length=1)]


DECODER = msgspec.json.Decoder(Body)
SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks, and builds nothing


class BodyReader:
    """Reads bodies within a limit for each and one for all that are held at the same time."""

    def __init__(self, max_bytes: int, max_buffered_bytes: int, timeout_s: float) -> None:
        self.max_bytes = max_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.timeout_s = timeout_s
        self._buffered = 0

    def read(self, request: Request, compressed: bool = False) -> AbstractAsyncContextManager[bytes]:
        """The whole body of an HTTP request, see `collect`. Raises also UnsupportedMediaTypeError.

        `compressed` bodies are unpacked where their encoding is known.
        """
        encoding = encoding_of(request.headers.get("content-encoding"))
        if encoding and not compressed:
            raise UnsupportedMediaTypeError(f"the content encoding {encoding!r} is not supported here")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_bytes:
            raise self._too_large()
        return self.collect(request.stream(), encoding)

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"the body has more than {self.max_bytes} bytes")

    @asynccontextmanager
    async def collect(
        self, stream: AsyncIterable[bytes], encoding: str | None = None
    ) -> AsyncIterator[bytes]:
        """All chunks in one, unpacked within the same limit; they count as held until the block ends.

        Raises PayloadTooLargeError, SlowBodyError, OverloadedError or InvalidBodyError.
        """
        chunks, size = [], 0
        try:
            try:
                async with asyncio.timeout(self.timeout_s):
                    async for chunk in stream:
                        size += len(chunk)
                        self._buffered += len(chunk)
                        if size > self.max_bytes:
                            raise self._too_large()
                        if self._buffered > self.max_buffered_bytes:
                            raise OverloadedError("too many bytes are waiting already")
                        chunks.append(chunk)
            except TimeoutError as error:
                text = f"the body did not arrive within {self.timeout_s:g} s"
                raise SlowBodyError(text) from error
            body = b"".join(chunks)
            del chunks
            if encoding:
                body = await unpacked(body, encoding, self.max_bytes)
                size += len(body)
                self._buffered += len(body)
                if self._buffered > self.max_buffered_bytes:
                    raise OverloadedError("too many bytes are waiting already")
            yield body
        finally:
            self._buffered -= size

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Counts a message that something else has read. Raises OverloadedError."""
        self._buffered += size
        try:
            if self._buffered > self.max_buffered_bytes:
                raise OverloadedError("too many bytes are waiting already")
            yield
        finally:
            self._buffered -= size


def picture(body: bytes, content_type: str | None) -> bytes:
    """The picture's bytes out of a body: JSON with base64, multipart form, or the bytes themselves.

    A body without a content type counts as the picture itself.
    """
    media_type, options = parsed_content_type(content_type or "application/octet-stream")
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


def parsed_content_type(text: str) -> tuple[bytes, dict[bytes, bytes]]:
    """The media type in small letters, and its parameters. Raises UnsupportedMediaTypeError."""
    if len(text) > MAX_CONTENT_TYPE:
        raise UnsupportedMediaTypeError(f"the content type has more than {MAX_CONTENT_TYPE} characters")
    return parse_options_header(text)


def from_json(body: bytes) -> bytes:
    """`{"image": "<base64>"}` -> the picture's bytes; other keys are skipped, not built."""
    try:
        try:
            return from_base64(DECODER.decode(body).image)
        except msgspec.ValidationError as error:
            SYNTAX.decode(body)  # what breaks off further on is no JSON at all
            raise InvalidRequestError(f"the body is not as documented: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJsonError(f"the body is not JSON: {error}"[:200]) from error


def from_multipart(
    body: bytes,
    boundary: bytes | None,
    fields: tuple[bytes, ...] = IMAGE_FIELDS,
    nameless: bool = False,
) -> bytes:
    """The one file in one of these fields of a form (RFC 7578), without a copy of the rest.

    A `nameless` one has no file name, and is taken for text elsewhere.
    """
    if not boundary or len(boundary) > MAX_BOUNDARY:
        raise InvalidRequestError("multipart/form-data needs a boundary of 1 to 70 characters")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 2)
    if len(parts) > MAX_PARTS + 2:
        raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise InvalidRequestError("the form cannot be read: it does not end with its boundary")
    found = [split_part(part, nameless) for part in parts[1:-1]]
    files = [content for name, content in found if name in fields]
    if len(files) != 1:
        names = " or ".join(name.decode() for name in fields)
        raise InvalidRequestError(f"send one file in the field {names}; got {len(files)}")
    return files[0]


def split_part(part: bytes, nameless: bool) -> tuple[bytes, bytes]:
    """One part of a form -> (field name, content); the field name of what is no file is empty."""
    head, separator, content = part.partition(b"\r\n\r\n")
    if not separator or len(head) > MAX_PART_HEAD:
        raise InvalidRequestError("the form cannot be read: a part has no head, or too long a one")
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            _, options = parse_options_header(value)
            if nameless or b"filename" in options:
                return options.get(b"name", b""), content
    return b"", content


def encoding_of(header: str | None) -> str | None:
    """The one encoding of a body, or None without one. Raises UnsupportedMediaTypeError."""
    name = (header or "identity").strip().lower()
    if name == "identity":
        return None
    if name not in WINDOW_BITS:
        raise UnsupportedMediaTypeError(f"the content encoding {name[:40]!r} is not supported")
    return name


async def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """At most `limit` bytes. Raises InvalidBodyError or PayloadTooLargeError."""
    if len(body) <= LARGE and limit <= LARGE:
        return unpack(body, encoding, limit)
    return await asyncio.to_thread(unpack, body, encoding, limit)


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """See `unpacked`; never makes more than one byte over the limit."""
    stream = zlib.decompressobj(WINDOW_BITS[encoding])
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidBodyError(f"the body is not {encoding}: {error}") from error
    if len(content) > limit:
        raise PayloadTooLargeError(f"the body unpacks to more than {limit} bytes")
    if not stream.eof or stream.unused_data:
        raise InvalidBodyError(f"the body is not one whole {encoding} stream")
    return content


def accepted(header: str | None) -> str | None:
    """The first encoding of an Accept-Encoding header that we know and it does not forbid."""
    for part in (header or "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in WINDOW_BITS and not FORBIDDEN.fullmatch(weight.strip()):
            return name.strip()
    return None


async def packed(body: bytes, encoding: str) -> bytes:
    """The body, compressed quickly rather than well."""
    if len(body) <= LARGE:
        return pack(body, encoding)
    return await asyncio.to_thread(pack, body, encoding)


def pack(body: bytes, encoding: str) -> bytes:
    """See `packed`."""
    stream = zlib.compressobj(FAST, wbits=WINDOW_BITS[encoding])
    return stream.compress(body) + stream.flush()

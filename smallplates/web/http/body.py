"""Reads request bodies within limits and encodes responses: JSON, forms, gzip and deflate.

A body that decompresses to more than its limit is refused. The bytes count as held in steps while they
are decompressed. A large answer is encoded in parts, while the client reads it. Called by the protocols.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import orjson
from fastapi import Request, Response
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from smallplates.errors import (
    InvalidBodyError,
    InvalidJsonError,
    InvalidRequestError,
    InvalidTextError,
    OverloadedError,
    PayloadTooLargeError,
    SlowBodyError,
    UnsupportedMediaTypeError,
)
from smallplates.web.http.protocol import cycle_of

MAX_PARTS = 256  # of a form; each takes about 15 us to read
FORM_CONFIG = {"MAX_MEMORY_FILE_SIZE": None}  # keeps files in memory instead of writing to disk
MAX_BOUNDARY = 70  # RFC 2046
MAX_CONTENT_TYPE = 1024  # characters; the parser's time grows with their square
GZIP = zlib.MAX_WBITS | 16  # RFC 1952
WINDOW_BITS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}  # the last: RFC 1950
MAX_MEMBERS = 4096  # of a gzip body; each costs time, even if it is empty
STEP = 256 * 1024  # bytes that are decompressed before they are counted
UNPACKED_AT_ONCE = 4
FORBIDDEN = re.compile(r"q *= *0(\.0*)?")  # a weight of zero, RFC 9110
LARGE = 64 * 1024  # bytes; larger bodies are processed on a thread
FAST = 1
WORTH_IT = 512  # bytes; smaller responses fit into one packet anyway
AT_ONCE = 256 * 1024  # bytes; larger responses are sent in parts
PART = 16 * 1024  # numbers of an answer that are encoded at a time, which takes a millisecond or two

HALF_SURROGATE = re.compile(rb"\\u(?i:d(?:[89ab]..(?!\\ud[c-f])|[c-f](?<!\\ud[89ab]..\\ud[c-f])))")
"""Begins with plain characters, which a search finds quickly: bodies may have 20 MB."""

BOM = b"\xef\xbb\xbf"  # byte order mark in UTF-8
SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks the syntax without building anything
T = Any  # depends on the decoder's type


class BodyReader:
    """Reads bodies, with a limit for each body and one for all bodies held at the same time."""

    def __init__(self, max_bytes: int, max_buffered_bytes: int, timeout_s: float) -> None:
        self.max_bytes = max_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.timeout_s = timeout_s
        self.buffered = 0
        self.unpacking = asyncio.Semaphore(UNPACKED_AT_ONCE)

    async def read(self, request: Request) -> "Body":
        """Reads the whole body of an HTTP request, plain or in gzip or deflate.

        Raises UnsupportedMediaTypeError for other encodings, and what `Body.receive` raises.
        """
        body = Body(self, content_coding(request.headers.getlist("content-encoding")))
        declared = request.headers.get("content-length", "")
        self.check_size(int(declared) if declared.isdecimal() else 0)
        cycle = cycle_of(request.receive)
        if cycle and (content := cycle.take_body()) is not None:
            body.take(content)
        else:
            await body.receive(request.stream())
        return body

    def check_size(self, size: int) -> None:
        """Raises PayloadTooLargeError for a body of too many bytes."""
        if size > self.max_bytes:
            raise PayloadTooLargeError(f"the body has more than {self.max_bytes} bytes")


class Body:
    """A body, possibly compressed, and the bytes that count as held until its block ends."""

    def __init__(self, reader: BodyReader, coding: str | None = None, content: Any = b"") -> None:
        """`content` is bytes, or a message that gRPC has read."""
        self.content = content
        self.size = 0
        """Bytes that count as held."""

        self._reader = reader
        self._coding = coding

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Counts nothing any more."""
        self.hold(-self.size)

    def hold(self, more: int) -> None:
        """Counts more bytes as held, or fewer. Raises OverloadedError, and does not count them then."""
        if more > 0 and self._reader.buffered + more > self._reader.max_buffered_bytes:
            raise OverloadedError("the memory for bodies and large answers is full")
        self.size += more
        self._reader.buffered += more

    def grow(self, size: int) -> None:
        """Counts all bytes of an answer that has grown to `size`. Raises OverloadedError."""
        if size > LARGE:
            self.hold(size - self.size)

    def take(self, content: bytes) -> None:
        """Takes a body that has arrived. Raises PayloadTooLargeError or OverloadedError."""
        self._reader.check_size(len(content))
        self.hold(len(content))
        self.content = content

    async def receive(self, stream: AsyncIterable[bytes]) -> None:
        """Joins all chunks. If that fails, holds nothing.

        Raises PayloadTooLargeError, SlowBodyError or OverloadedError.
        """
        chunks: list[bytes] = []
        reader = self._reader
        try:
            async with asyncio.timeout(reader.timeout_s):
                async for chunk in stream:
                    reader.check_size(self.size + len(chunk))
                    self.hold(len(chunk))
                    chunks.append(chunk)
        except BaseException as error:
            self.hold(-self.size)
            if isinstance(error, TimeoutError):
                text = f"the body did not arrive within {reader.timeout_s:g} s"
                raise SlowBodyError(text) from error
            raise
        self.content = b"".join(chunks)

    async def decompress(self) -> Any:
        """Returns the body, decompressed on a thread if it is compressed.

        Raises InvalidBodyError, PayloadTooLargeError or OverloadedError.
        """
        if self._coding:
            parts, packed_size = [b""], self.size
            steps = unpack(self.content, self._coding)
            async with self._reader.unpacking:
                while (part := await asyncio.to_thread(next, steps, None)) is not None:
                    self.hold(len(part))
                    if self.size - packed_size > (most := self._reader.max_bytes):
                        raise PayloadTooLargeError(f"the body decompresses to more than {most} bytes")
                    parts.append(part)
            self.hold(-packed_size)
            self.content, self._coding = b"".join(parts), None
        return self.content


def parse_content_type(text: str) -> tuple[bytes, dict[bytes, bytes]]:
    """Returns the media type in lower case, and its parameters. Raises UnsupportedMediaTypeError."""
    if len(text) > MAX_CONTENT_TYPE:
        raise UnsupportedMediaTypeError(f"the content type has more than {MAX_CONTENT_TYPE} characters")
    return parse_options_header(text)


def decode_json(
    decoder: "msgspec.json.Decoder[T]", data: bytes | memoryview | msgspec.Raw, name: str = "request"
) -> T:
    """Decodes JSON, also after a byte order mark; `name` is for error messages.

    Raises InvalidJsonError for text that is not JSON, InvalidTextError for an unpaired surrogate, and
    InvalidRequestError for JSON that does not match the decoder's type.
    """
    if isinstance(data, bytes | memoryview) and data[:3] == BOM:
        data = data[3:]
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            SYNTAX.decode(data)  # text that breaks off further on is not JSON at all
            text = f"the {name} does not match the schema: {error}"  # may contain a key of any length
            raise InvalidRequestError(text[:400]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if HALF_SURROGATE.search(bytes(memoryview(data))):  # msgspec reports malformed or truncated data
            raise InvalidTextError(f"the {name} contains an unpaired UTF-16 surrogate") from error
        raise InvalidJsonError(f"the {name} is not JSON: {error}"[:200]) from error


def dump_json(content: Any) -> bytes:
    """Returns JSON, also of arrays. Integers keep all their digits, although orjson has only 64 bits."""
    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return msgspec.json.encode(content)


class JsonResponse(Response):
    """A small response in JSON; Starlette would take 4 us for the same two headers."""

    def __init__(self, body: bytes, status: int) -> None:
        self.body, self.status_code, self.background = body, status, None
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]


def json_response(
    content: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    encoding: str | None = None,
) -> Response:
    """Returns a response with `content`, anything that `dump_json` takes, as application/json."""
    if weight(content) > PART or encoding or headers:
        return respond(json_parts(content), status, headers, encoding=encoding)
    return JsonResponse(dump_json(content), status)


def respond(
    parts: Iterable[bytes],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
    encoding: str | None = None,
) -> Response:
    """Returns a response, in parts if it is large, and compressed if that is worth it."""
    start, rest = b"", iter(parts)
    while len(start) <= AT_ONCE and (part := next(rest, None)) is not None:
        start += part
    parts = chain([start], rest)
    if encoding and len(start) >= WORTH_IT:
        parts, headers = compress(parts, encoding), {**(headers or {}), "Content-Encoding": encoding}
    if len(start) > AT_ONCE:
        return ResponseInParts(parts, status, headers, media_type)
    return Response(b"".join(parts), status, headers, media_type)


class ResponseInParts(Response):
    """A large response: a part is made when the client has read those before, and others have turns."""

    def __init__(self, parts: Iterable[bytes], *args: Any) -> None:
        super().__init__(None, *args)  # Any: as of Response
        self._parts = parts
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends the response; with its length to a client of HTTP/1.0. Raises ClientDisconnect."""
        if scope.get("http_version") == "1.0":
            self._parts = [part async for part in in_turns(self._parts)]
            self.headers["content-length"] = str(sum(map(len, self._parts)))
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        gone = scope.get("disconnect")
        async for part in in_turns(self._parts):
            if gone is not None and gone.done():
                raise ClientDisconnect
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


async def in_turns(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Joins parts until they are worth a write; between two writes, other tasks have their turn."""
    joined = bytearray()
    for part in parts:
        joined += part
        if len(joined) >= LARGE:
            yield bytes(joined)
            joined.clear()
            await asyncio.sleep(0)
    yield bytes(joined)


def weight(content: Any) -> int:
    """Estimates how many numbers and texts some content has; of a long list it looks at a few values."""
    if isinstance(content, float | int):
        return 1
    if isinstance(content, str):
        return 1 + len(content) // 16
    if isinstance(content, np.ndarray):
        return content.size
    values = [*content.values()] if isinstance(content, dict) else content
    if not isinstance(values, list | tuple):
        return 1
    step = 1 + len(values) // 8
    return 1 + step * sum(map(weight, values[::step]))


def json_parts(content: Any) -> Iterator[bytes]:
    """Yields the JSON of `dump_json` in parts, each of up to PART numbers."""
    if weight(content) <= PART or isinstance(content, str):
        yield dump_json(content)
    elif isinstance(content, dict):
        mark = b"{"
        for key, value in content.items():
            yield mark + dump_json({key: 0})[1:-2]
            yield from json_parts(value)
            mark = b","
        yield b"}"
    else:
        mark, step = b"[", 1
        if isinstance(content, np.ndarray):
            step = max(1, PART * len(content) // content.size)
        for at in range(0, len(content), step):
            group = content[at : at + step]
            yield mark
            if weight(group) <= PART:
                yield dump_json(group)[1:-1]
            else:
                yield from json_parts(group[0])
            mark = b","
        yield b"]"


class FormPart(NamedTuple):
    """A field of a form."""

    name: str
    content: bytes
    content_type: str | None


def form_parts(body: bytes, boundary: bytes | None) -> list[FormPart]:
    """Returns the parts of a multipart form (RFC 7578). Raises InvalidRequestError."""
    if not boundary or len(boundary) > MAX_BOUNDARY:
        raise InvalidRequestError("multipart/form-data needs a boundary of 1 to 70 characters")
    parts: list[FormPart] = []
    ends: list[bool] = []

    def add(part: Field | File) -> None:
        if len(parts) == MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts")
        if isinstance(part, File):
            part.file_object.seek(0)
        content = part.file_object.read() if isinstance(part, File) else part.value or b""
        name = (part.field_name or b"").decode("latin-1")
        parts.append(FormPart(name, content, part.content_type))

    form = FormParser(
        "multipart/form-data", add, add, lambda: ends.append(True), boundary, config=FORM_CONFIG
    )
    try:
        form.write(body)
    except FormParserError as error:
        raise InvalidRequestError(f"the form cannot be read: {error}"[:200]) from error
    finally:
        assert form.parser  # noqa: S101 set for this content type
        form.parser.callbacks = {}  # breaks a reference cycle, which would keep the form's parts
    if not ends:
        raise InvalidRequestError("the form cannot be read: it does not end with its boundary")
    return parts


def files_of(parts: Sequence[FormPart], fields: Sequence[str], several: bool = False) -> list[FormPart]:
    """Returns the files in these fields of a form: at least one, and no more unless `several`.

    They need no file name. Raises InvalidRequestError.
    """
    files = [part for part in parts if part.name in fields]
    if not files or (len(files) > 1 and not several):
        wanted = "at least one file" if several else "one file"
        raise InvalidRequestError(f"send {wanted} in the field {' or '.join(fields)}; got {len(files)}")
    return files


def content_coding(headers: Sequence[str]) -> str | None:
    """Returns the coding of a body, or None; several headers are one list (RFC 9110).

    Raises UnsupportedMediaTypeError.
    """
    codings = [name.strip().lower() for name in ",".join(headers).split(",")]
    codings = [name for name in codings if name not in ("", "identity")]
    if len(codings) > 1 or not set(codings) <= WINDOW_BITS.keys():
        text = f"the content encoding {', '.join(codings)[:80]!r} is not supported"
        raise UnsupportedMediaTypeError(text, {"Accept-Encoding": "gzip, deflate"})
    return codings[0] if codings else None


def unpack(body: bytes, coding: str) -> Iterator[bytes]:
    """Yields the content of a compressed body in parts of up to STEP bytes. Raises InvalidBodyError.

    A gzip body may have several members. A deflate body may lack zlib's header, as some clients send it.
    """
    left, bits = memoryview(body), WINDOW_BITS[coding]
    if coding == "deflate" and not has_zlib_header(body):
        bits = -bits  # RFC 1951
    for _ in range(MAX_MEMBERS if bits == GZIP else 1):
        stream = zlib.decompressobj(bits)
        while not stream.eof:
            given = left[:STEP]  # zlib copies what it leaves over
            try:
                part = stream.decompress(given, STEP)
            except zlib.error as error:
                raise InvalidBodyError(f"the body is not valid {coding}: {error}") from error
            left = left[len(given) - len(stream.unused_data or stream.unconsumed_tail) :]
            if not part and not given:
                raise InvalidBodyError(f"the body ends within its {coding} stream")
            yield part
        if not left:
            return
    raise InvalidBodyError(f"more data follow the last {coding} stream")


def has_zlib_header(body: bytes) -> bool:
    """Returns whether a body begins as RFC 1950 says. A raw deflate stream has other bits there."""
    return body[:1] != b"" and body[0] & 15 == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0


def accepted_encoding(header: str | None) -> str | None:
    """Returns the first encoding in an Accept-Encoding header that is supported and not forbidden."""
    for part in (header or "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in WINDOW_BITS and not FORBIDDEN.fullmatch(weight.strip()):
            return name.strip()
    return None


def compress(parts: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Compresses a body as gzip or deflate, quickly rather than well."""
    stream = zlib.compressobj(FAST, zlib.DEFLATED, WINDOW_BITS[encoding])
    yield from map(stream.compress, parts)
    yield stream.flush()

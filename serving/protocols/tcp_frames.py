"""The frames of the TCP protocol, to bytes and back; shared by `tcp.py` and `tcp_client.py`.

Numbers are big-endian and unsigned. A length counts the bytes after itself.

    request   uint32 length, uint32 id, uint16 length of the options (at most 1024), options, body
    response  uint32 length, uint32 id, uint16 HTTP status, JSON object

The options are a JSON object with any of the fields of `Options`, or nothing at all. A response carries
the id of its request, or 0 where the request's frame could not be read. Its JSON object is

    200       the answer of `/predict`, "request_id", and "ms": {"decode", "queue", "infer", "total"};
              what is no object is its "answer"
    others    {"detail", "code", "request_id"} as in `/predict`; "retry_after" in seconds for a 503

The body is one that `/predict` takes without a content type: an image file, a text, or JSON.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from serving.errors import InvalidJsonError, InvalidRequestError, PayloadTooLargeError, ServingError
from serving.http.responses import dump_json

REQUEST = struct.Struct(">IIH")  # length, id, length of the options
LENGTH = struct.Struct(">I")
RESPONSE = struct.Struct(">IIH")  # length, id, status
AFTER_LENGTH = REQUEST.size - 4
MAX_OPTIONS_BYTES = 1024
MAX_ID = 2**32 - 1


class Options(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a request; their meanings are those of `/predict`."""

    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    priority: Literal["interactive", "bulk"] = "interactive"
    request_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    key: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    """The API key; needed in the first frame of a connection only."""


DECODER = msgspec.json.Decoder(Options)
SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks, and builds nothing


class BrokenFrameError(InvalidRequestError):
    """The lengths in a frame make no sense, so that the next frame cannot be found."""


@dataclass(frozen=True)
class Head:
    """The first ten bytes of a request frame."""

    id: int
    options_bytes: int
    body_bytes: int


def parse_head(data: bytes) -> Head:
    """Reads the first ten bytes of a request frame. Raises BrokenFrameError."""
    length, number, options_bytes = REQUEST.unpack(data)
    body_bytes = length - AFTER_LENGTH - options_bytes
    if body_bytes < 0:
        text = f"a length of {length} with {options_bytes} bytes of options"
        raise BrokenFrameError(f"the frame cannot be read: {text}")
    return Head(number, options_bytes, body_bytes)


def check_length(data: bytes) -> None:
    """Checks the first four bytes of a request frame: there must be a head. Raises BrokenFrameError."""
    (length,) = LENGTH.unpack(data)
    if length < AFTER_LENGTH:
        raise BrokenFrameError(f"the frame cannot be read: a length of {length}, below {AFTER_LENGTH}")


def check_sizes(head: Head, max_body_bytes: int) -> None:
    """Raises PayloadTooLargeError."""
    if head.options_bytes > MAX_OPTIONS_BYTES:
        raise PayloadTooLargeError(f"the options have more than {MAX_OPTIONS_BYTES} bytes")
    if head.body_bytes > max_body_bytes:
        raise PayloadTooLargeError(f"the body has more than {max_body_bytes} bytes")


def parse_options(data: bytes) -> Options:
    """Reads the options of a request. Raises InvalidJsonError or InvalidRequestError."""
    if not data:
        return Options()
    try:
        try:
            return DECODER.decode(data)
        except msgspec.ValidationError as error:
            SYNTAX.decode(data)  # broken JSON behind the wrong field is the greater mistake
            raise InvalidRequestError(f"the options are not as documented: {error}"[:200]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJsonError(f"the options are not JSON: {error}"[:200]) from error


def request(number: int, body: bytes, options: Options) -> bytes:
    """Builds a request frame; `number` is its id."""
    text = msgspec.json.encode(options)
    length = AFTER_LENGTH + len(text) + len(body)
    return b"".join((REQUEST.pack(length, number, len(text)), text, body))


def response(number: int, status: int, content: dict[str, Any]) -> bytes:
    """Builds a response frame; `number` is the request's id, `content` any JSON object."""
    text = dump_json(content)
    return RESPONSE.pack(AFTER_LENGTH + len(text), number, status) + text


def error_content(error: ServingError, request_id: str) -> dict[str, Any]:
    """Returns the JSON object of a response that reports an error."""
    content: dict[str, Any] = {"detail": error.detail, "code": error.code, "request_id": request_id}
    if "Retry-After" in error.headers:
        content["retry_after"] = int(error.headers["Retry-After"])
    return content

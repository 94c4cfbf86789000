"""The frames of the TCP front-end: bytes to numbers and back, no I/O. `tcp.py` describes the format.

Used by the server and by `serving.protocols.tcp_client`.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import orjson

from serving.errors import InvalidJsonError, InvalidRequestError, PayloadTooLargeError, ServingError

LENGTH = struct.Struct(">I")
REQUEST = struct.Struct(">IIH")  # length, id, length of the options
RESPONSE = struct.Struct(">IIH")  # length, id, status
AFTER_LENGTH = REQUEST.size - LENGTH.size
MAX_OPTIONS_BYTES = 1024
MAX_ID = 2**32 - 1


class Options(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a request frame may say; the meanings are those of `/predict`."""

    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    priority: Literal["interactive", "bulk"] = "interactive"
    request_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    key: Annotated[str, msgspec.Meta(max_length=512)] | None = None


DECODER = msgspec.json.Decoder(Options)
SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks, and builds nothing


class BrokenFrameError(Exception):
    """The lengths make no sense: where the next frame begins cannot be known."""


@dataclass(frozen=True)
class Head:
    """The first ten bytes of a request frame."""

    id: int
    options_bytes: int
    photo_bytes: int


def parse_head(data: bytes) -> Head:
    """Ten bytes -> what follows them. Raises BrokenFrameError."""
    length, number, options_bytes = REQUEST.unpack(data)
    photo_bytes = length - AFTER_LENGTH - options_bytes
    if length < AFTER_LENGTH or photo_bytes < 0:
        raise BrokenFrameError(f"a length of {length} with {options_bytes} bytes of options")
    return Head(number, options_bytes, photo_bytes)


def check_sizes(head: Head, max_photo_bytes: int) -> None:
    """Raises PayloadTooLargeError."""
    if head.options_bytes > MAX_OPTIONS_BYTES:
        raise PayloadTooLargeError(f"the options have more than {MAX_OPTIONS_BYTES} bytes")
    if head.photo_bytes > max_photo_bytes:
        raise PayloadTooLargeError(f"the photo has more than {max_photo_bytes} bytes")


def parse_options(data: bytes) -> Options:
    """JSON, or nothing at all. Raises InvalidJsonError or InvalidRequestError."""
    if not data:
        return Options()
    try:
        try:
            return DECODER.decode(data)
        except msgspec.ValidationError as error:
            SYNTAX.decode(data)  # what breaks off further on is no JSON at all
            raise InvalidRequestError(f"the options are not as documented: {error}"[:200]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJsonError(f"the options are not JSON: {error}"[:200]) from error


def request(number: int, photo: bytes, options: Options) -> bytes:
    """A request frame."""
    said = msgspec.json.encode(options)
    length = AFTER_LENGTH + len(said) + len(photo)
    return b"".join((REQUEST.pack(length, number, len(said)), said, photo))


def complaint(error: ServingError, request_id: str) -> dict[str, Any]:
    """The content of an answer that is no 200."""
    said: dict[str, Any] = {"detail": error.detail, "code": error.code, "request_id": request_id}
    if "Retry-After" in error.headers:
        said["retry_after"] = int(error.headers["Retry-After"])
    return said


def response(number: int, status: int, content: dict[str, Any]) -> bytes:
    """A response frame; `content` is anything that orjson takes."""
    body = orjson.dumps(content)
    return RESPONSE.pack(AFTER_LENGTH + len(body), number, status) + body

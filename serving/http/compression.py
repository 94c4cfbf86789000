"""gzip and deflate of whole bodies, both ways; a body that unpacks to more than its limit is refused.

Called by `body.py` for requests and by `frontends/v2.py` for answers.
"""

import asyncio
import re
import zlib

from serving.errors import InvalidBodyError, PayloadTooLargeError, UnsupportedMediaTypeError

WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}  # RFC 1952, RFC 1950
FORBIDDEN = re.compile(r"q *= *0(\.0*)?")  # a weight of nought, RFC 9110
LARGE = 64 * 1024  # bytes; more is a thread's work
FAST = 1
WORTH_IT = 512  # bytes; what is smaller travels in one packet anyway


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

"""Base64 -> a picture's bytes; called by `body.py`, the front-ends, and Triton's photo model.

Triton's Python backend gets a copy of this file: it imports nothing that only the service needs.
"""

import pybase64

from serving.errors import InvalidBase64Error

WHITESPACE = b" \t\r\n"
TEXT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n"
LOOKED_AT = 64  # bytes; every format has a byte within them that no base64 has


def image_bytes(element: str | bytes) -> bytes:
    """A picture's bytes; those of its base64 are recognised. Raises InvalidBase64Error."""
    if isinstance(element, str):
        return from_base64(element)
    if not element[:LOOKED_AT].translate(None, TEXT) or element[:5].lower() == b"data:":
        return from_base64(element.decode("latin-1"))
    return element


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
        return pybase64.b64decode(text.encode("ascii").translate(None, WHITESPACE), validate=True)

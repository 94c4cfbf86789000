"""Base64 of untrusted clients, strict in alphabet and padding."""

import pybase64

from serving.errors import InvalidBase64Error

WHITESPACE = b" \t\r\n"
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=" + WHITESPACE
PREFIX = 64  # bytes; every image format has a byte among them that base64 has not


def to_bytes(element: str | bytes) -> bytes:
    """Returns bytes, given these or their base64. Raises InvalidBase64Error."""
    if isinstance(element, str):
        return from_base64(element)
    if not element[:PREFIX].translate(None, ALPHABET) or element[:5].lower() == b"data:":
        return from_base64(element.decode("latin-1"))
    return element


def from_base64(text: str) -> bytes:
    """Decodes standard base64, with or without a data URL's prefix; line breaks are allowed.

    Raises InvalidBase64Error.
    """
    if text[:5].lower() == "data:":
        prefix, comma, text = text.partition(",")
        if not comma or not prefix.lower().endswith(";base64"):
            raise InvalidBase64Error("a data URL must look like data:image/jpeg;base64,...")
    try:
        return decode_base64(text)
    except ValueError as error:
        raise InvalidBase64Error(f"not valid base64: {error}"[:200]) from error


def decode_base64(text: str) -> bytes:
    """Decodes base64, strict in alphabet and padding. Raises ValueError."""
    try:
        return pybase64.b64decode(text, validate=True)  # text without line breaks needs no copy
    except ValueError:
        return pybase64.b64decode(text.encode("ascii").translate(None, WHITESPACE), validate=True)

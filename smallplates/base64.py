"""Base64 from untrusted clients, standard or URL-safe, with strict checks of alphabet and padding."""

import pybase64

from smallplates.errors import InvalidBase64Error

WHITESPACE = b" \t\r\n"
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=" + WHITESPACE
URL_SAFE = bytes.maketrans(b"-_", b"+/")
PREFIX = 64  # bytes, which in every image format include one that is not base64


def to_bytes(element: str | bytes) -> bytes:
    """Returns bytes, given either the bytes or their base64. Raises InvalidBase64Error."""
    if isinstance(element, str):
        return from_base64(element)
    if not element[:PREFIX].translate(None, ALPHABET) or element[:5].lower() == b"data:":
        return from_base64(element.decode("latin-1"))
    return element


def from_base64(text: str) -> bytes:
    """Decodes base64, optionally with a data URL's prefix; line breaks are allowed.

    Raises InvalidBase64Error.
    """
    if text[:5].lower() == "data:":
        prefix, comma, text = text.partition(",")
        if not comma or not prefix.lower().endswith(";base64"):
            raise InvalidBase64Error("a data URL must look like data:image/jpeg;base64,...")
    if text[:8].lower().startswith(("http://", "https://")):
        raise InvalidBase64Error("the service doesn't download URLs: send the file itself in base64")
    try:
        return decode_base64(text)
    except ValueError as error:
        raise InvalidBase64Error(f"not valid base64: {error}"[:200]) from error


def decode_base64(text: str) -> bytes:
    """Decodes base64; checks alphabet and padding strictly. Raises ValueError."""
    try:
        return pybase64.b64decode(text, validate=True)  # saves a copy of standard base64 on one line
    except ValueError:
        data = text.encode("ascii").translate(URL_SAFE, WHITESPACE)
        if len(data) % 4 and not data.translate(None, ALPHABET):
            raise ValueError("the length, with = as padding, must be a multiple of 4") from None
        return pybase64.b64decode(data, validate=True)

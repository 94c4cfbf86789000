"""`serving.base64`: forms that are read, and those that are refused."""

import pytest

from serving.base64 import from_base64
from serving.errors import InvalidBase64Error


@pytest.mark.parametrize(
    "text", ["AAAA", " AA\nAA\r\n", "data:image/png;base64,AAAA", "DATA:;BASE64,AAAA"]
)
def test_base64_forms(text: str) -> None:
    assert from_base64(text) == b"\0\0\0"


@pytest.mark.parametrize("text", ["A", "AA", "AAAA=", "A-_A", "data:image/png,AAAA", "data:AAAA"])
def test_base64_refusals(text: str) -> None:
    with pytest.raises(InvalidBase64Error):
        from_base64(text)

"""`smallplates.base64`: forms that are read, and those that are refused."""

import pytest

from smallplates.base64 import from_base64, to_bytes
from smallplates.errors import InvalidBase64Error


@pytest.mark.parametrize(
    "text", ["AAAA", " AA\nAA\r\n", "data:image/png;base64,AAAA", "DATA:;BASE64,AAAA"]
)
def test_base64_forms(text: str) -> None:
    assert from_base64(text) == b"\0\0\0"


@pytest.mark.parametrize("text", ["-_-_8A==", "+/+/8A==", "-/+_8A==", "data:;base64,-_\n-_8A=="])
def test_both_alphabets_are_read(text: str) -> None:
    assert from_base64(text) == b"\xfb\xff\xbf\xf0"
    assert to_bytes(text.encode()) == b"\xfb\xff\xbf\xf0"


@pytest.mark.parametrize("text", ["https://example.com/a.jpg", "HTTP://example.com/AAAA"])
def test_urls_are_not_fetched(text: str) -> None:
    with pytest.raises(InvalidBase64Error, match="URL"):
        from_base64(text)


PADDED_WRONGLY = ["A", "AA", "AAA", "AA=", "AAAA=", "A-_", "data:;base64,AA A\n"]
OTHERS = ["AA*", "AA=A", "A.AA", "====", "AA==AAAA", "AÄAA", "data:image/png,AAAA", "data:AAAA"]


@pytest.mark.parametrize("text", [*PADDED_WRONGLY, *OTHERS])
def test_a_refusal_names_the_padding_if_that_is_wrong(text: str) -> None:
    with pytest.raises(InvalidBase64Error) as refusal:
        from_base64(text)
    assert ("multiple of 4" in str(refusal.value)) == (text in PADDED_WRONGLY)

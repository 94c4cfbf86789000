"""Files that cost much and are no pictures: bounded by what they are made of, before they are read."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smallplates.errors import ImageTooLargeError, InvalidImageError
from smallplates.tasks.image import decode
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures
from tests.pictures import chunk, jpeg_with, segment
from tests.unit.tasks.image.test_decode import LIMIT, SQUEEZED

DECODER = ImageDecoder(SQUEEZED, LIMIT)


def png_with(content: bytes) -> bytes:
    data = pictures.encode(pictures.plate(64, 48), "PNG")
    return data[:33] + content + data[33:]


def gif_with(content: bytes) -> bytes:
    data = pictures.encode(pictures.plate(64, 48), "GIF")
    start = 13 + 3 * (2 << (data[10] & 7))
    return data[:start] + content + data[start:]


EXIF = segment(0xE1, b"Exif\0\0x")
PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1000)))


@pytest.mark.parametrize(
    ("make", "most"),
    [(lambda n: jpeg_with(EXIF * n), 32), (lambda n: png_with(PROFILE * n), 8)],
    ids=["EXIF segments", "colour profiles"],
)
def test_what_costs_more_each_time_is_counted(make: Callable[[int], bytes], most: int) -> None:
    assert DECODER.decode(make(most)).shape == (224, 224, 3)
    with pytest.raises(InvalidImageError, match=f"more than {most}"):
        DECODER.decode(make(most + 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: jpeg_with(segment(0xE5, b"") * n),
        lambda n: jpeg_with(b"\xff" * n),
        lambda n: png_with(chunk(b"abCd", b"") * n),
        lambda n: gif_with(b"!\xfe" + b"\1a" * n + b"\0"),
    ],
    ids=["jpeg segments", "jpeg padding", "png chunks", "gif blocks"],
)
def test_pieces_are_counted(make: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_READS", 2000)
    assert DECODER.decode(make(100)).shape == (224, 224, 3)
    with pytest.raises(InvalidImageError, match="too many segments"):
        DECODER.decode(make(2000))


def run_lengths(width: int, height: int, row: bytes) -> bytes:
    """A BMP of equal rows of runs, with a black palette."""
    start = 14 + 40 + 1024
    data = (row + b"\0\0") * height + b"\0\1"
    sizes = (40, width, height, 1, 8, 1, len(data), 0, 0, 256, 0)
    head = struct.pack("<2sIHHI", b"BM", start + len(data), 0, 0, start)
    return head + struct.pack("<IiiHHIIiiII", *sizes) + bytes(1024) + data


def test_a_bmp_of_run_lengths_is_small() -> None:
    with pytest.raises(ImageTooLargeError):
        DECODER.decode(run_lengths(49_999_999, 1, b"\1\0"))
    assert not DECODER.decode(run_lengths(100, 100, b"\x64\0")).any()


def tiff(values: np.ndarray[Any, Any], **tags: int) -> bytes:
    """Pillow's own file of an array, with tags that Pillow would not write."""
    data = bytearray(pictures.encode(Image.fromarray(values), "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    for index in range(count):
        place = start + 2 + 12 * index
        tag, kind = struct.unpack_from("<HH", data, place)
        if (value := tags.get(str(tag))) is not None:
            struct.pack_into("<H" if kind == 3 else "<I", data, place + 8, value)
    return bytes(data)


@pytest.mark.parametrize(
    "values",
    [
        np.full((9, 9), 50 * 257, np.uint16),
        np.full((9, 9), 50, np.uint8),
        np.full((9, 9), 50, np.float32),
    ],
    ids=["16 bit", "8 bit", "float"],
)
def test_a_tiff_whose_0_is_white(values: np.ndarray[Any, Any]) -> None:
    assert (DECODER.decode(tiff(values)) == 50).all()
    assert (DECODER.decode(tiff(values, **{"262": 0})) == 205).all()


def layout(bits: int, channels: int, end: str = "<", **tags: int) -> bytes:
    """A TIFF of 6x6 pixels, a plane for each channel if there are several, whose bytes are all 0x40."""
    plane = 36 * bits // 8
    table = {
        **{"256": 6, "257": 6, "258": bits, "259": 1, "262": 2 if channels > 2 else 1},
        **{"273": 8, "277": channels, "278": 6, "279": plane, "284": 2 if channels > 1 else 1},
        **({"338": 2} if channels == 2 else {}),
        **tags,
    }
    after = 8 + channels * plane
    entries = more = b""
    for tag, value in table.items():
        count = channels if tag in ("258", "273", "279") else 1
        step = plane if tag == "273" else 0
        content = struct.pack(f"{end}{count}I", *(value + step * index for index in range(count)))
        if count > 1:
            place = struct.pack(f"{end}I", after + 2 + 12 * len(table) + 4 + len(more))
            content, more = place, more + content
        entries += struct.pack(f"{end}HHI", int(tag), 4, count) + content
    head = (b"II" if end == "<" else b"MM") + struct.pack(f"{end}HI", 42, after)
    directory = struct.pack(f"{end}H", len(table)) + entries + bytes(4)
    return head + b"\x40" * (channels * plane) + directory + more


@pytest.mark.parametrize(
    ("data", "shade"), [(layout(8, 3), 0x40), (layout(16, 1), 0x40), (layout(32, 1), 0x40)]
)
def test_layouts_of_a_tiff(data: bytes, shade: int) -> None:
    assert (DECODER.decode(data) == shade).all()


@pytest.mark.parametrize(
    "data",
    [layout(16, 3), layout(32, 1, ">", **{"339": 3, "259": 5})],
    ids=["planes of 16 bits", "compressed floats, big-endian"],
)
def test_a_layout_that_would_give_other_pixels_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidImageError, match="layout of a TIFF"):
        DECODER.decode(data)


def test_a_damaged_tiff_is_no_matter_for_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    data = pictures.encode(pictures.plate().convert("1"), "TIFF", compression="group4")
    DECODER.decode(data[:8] + b"\xa5" * 200 + data[208:])
    assert not capfd.readouterr().err


def test_a_tiff_of_large_integers_without_a_sign() -> None:
    values = np.full((9, 9), 200 << 24, np.uint32)
    data = tiff(values.view(np.int32), **{"339": 1})
    assert (DECODER.decode(data) == 200).all()


def test_a_tiff_of_grey_that_is_premultiplied() -> None:
    grey = Image.new("LA", (9, 9), (100, 255))
    unspecified, premultiplied = (struct.pack("<HHIHH", 338, 3, 1, kind, 0) for kind in (2, 1))
    data = pictures.encode(grey, "TIFF").replace(unspecified, premultiplied)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "La"
    assert (DECODER.decode(data) == 100).all()

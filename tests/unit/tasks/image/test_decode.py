"""`decode`: odd files, orientation and modes, and safe with any bytes."""

import io
import struct
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from smallplates.errors import ImageTooLargeError, InvalidImageError
from smallplates.models.description import ImagePipeline
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures

IDENTITY: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
CROPPED = ImagePipeline(resize=64, center_crop=64, enlarge=(224, 224), **IDENTITY)
SQUEEZED = ImagePipeline(resize=(224, 224), **IDENTITY)
LIMIT = 50_000_000


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1)])
def test_a_thread_of_a_picture_does_not_grow_without_bound(size: tuple[int, int]) -> None:
    stretched = ImagePipeline(resize=256, enlarge=(224, 224), **IDENTITY)
    data = pictures.encode(Image.new("RGB", size), "PNG")
    with pytest.raises(ImageTooLargeError):
        ImageDecoder(stretched, LIMIT).decode(data)


@pytest.mark.parametrize(("rounding", "border"), [("nearest", 7), ("down", 8)])
def test_an_odd_border_is_narrower_on_the_left_as_in_torchvision_or_wider_as_in_transformers(
    rounding: Literal["nearest", "down"], border: int
) -> None:
    pipeline = ImagePipeline(resize=33, center_crop=48, crop_rounding=rounding, **IDENTITY)
    data = pictures.encode(Image.new("RGB", (33, 33), "white"), "PNG")
    shades = ImageDecoder(pipeline, LIMIT).decode(data)[24, :, 0]
    assert np.flatnonzero(shades).tolist() == [*range(border, border + 33)]


@pytest.mark.parametrize("format_", ["JPEG", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, format_: str) -> None:
    data = pictures.rotated(orientation, format_)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        stored = np.asarray(image)
    turned = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: np.rot90(stored, -1),
        7: stored[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(stored),
    }[orientation]
    upright = pictures.encode(Image.fromarray(np.ascontiguousarray(turned)), "PNG")
    decoder = ImageDecoder(SQUEEZED, LIMIT)
    assert np.array_equal(decoder.decode(data), decoder.decode(upright))


def centre(data: bytes) -> list[int]:
    pixels = ImageDecoder(SQUEEZED, LIMIT).decode(data)
    return [int(value) for value in pixels[112, 112]]


def sixteen_bits_with_transparency() -> bytes:
    """A grey PNG of 0x4000 in which another value is transparent."""
    image = Image.fromarray(np.full((9, 9), 0x4000, np.uint16))
    return pictures.encode(image, "PNG", transparency=1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: pictures.encode(Image.new("RGBA", (9, 9), (255, 0, 0, 0)), "PNG"), 255),
        (lambda: pictures.encode(Image.new("RGBA", (9, 9), (0, 0, 0, 127)), "PNG"), 128),
        (lambda: pictures.encode(Image.new("LA", (9, 9), (0, 0)), "PNG"), 255),
        (lambda: pictures.encode(Image.fromarray(np.full((9, 9), 128 * 256, np.uint16)), "PNG"), 128),
        (lambda: pictures.encode(Image.new("L", (9, 9), 77), "PNG"), 77),
        (sixteen_bits_with_transparency, 64),
        (lambda: pictures.encode(Image.new("F", (9, 9), 77.9), "TIFF"), 77),
        (lambda: pictures.encode(Image.new("F", (9, 9), 0.5), "TIFF"), 127),
        (lambda: pictures.encode(Image.new("F", (9, 9), -0.5), "TIFF"), 0),
        (lambda: pictures.encode(Image.new("I", (9, 9), 77), "TIFF"), 77),
        (lambda: pictures.encode(Image.new("I", (9, 9), 128 * 256), "TIFF"), 128),
        (lambda: pictures.encode(Image.new("I", (9, 9), -77), "TIFF"), 0),
    ],
    ids=[
        *("transparent", "half transparent", "grey transparent", "16 bit", "grey", "16 bit transparent"),
        *("floats to 255", "floats to 1", "negative floats"),
        *("integers to 255", "integers to 65535", "negative integers"),
    ],
)
def test_every_mode_becomes_rgb_over_white(make: Callable[[], bytes], expected: int) -> None:
    assert centre(make()) == [expected] * 3


def bmp(alpha: int, masks: tuple[int, ...], header: int = 124) -> bytes:
    """A BMP of 9x9 red pixels, with alpha as a mask says."""
    red, alpha_mask = masks[0], masks[3]
    value = red | (alpha_mask & -alpha_mask) * alpha
    pixels = struct.pack("<I", value) * 81
    head = struct.pack("<IiiHHIIiiII", header, 9, 9, 1, 32, 3, len(pixels), 0, 0, 0, 0)
    head = (head + struct.pack("<4I", *masks)).ljust(header, b"\0")
    start = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + head + pixels


def tiff_of_four(alpha: int, *extra: int) -> bytes:
    """A TIFF of red pixels with a fourth sample, which the tag ExtraSamples explains, or none."""
    data = bytes([255, 0, 0, alpha]) * 81
    tags = [
        *((256, 1, 9), (257, 1, 9), (258, 4, 0), (259, 1, 1), (262, 1, 2), (273, 1, 8), (277, 1, 4)),
        *((278, 1, 9), (279, 1, len(data))),
        *((338, 1, each) for each in extra),
    ]
    start = 8 + len(data)
    place = start + 6 + 12 * len(tags)
    entries = b"".join(
        struct.pack("<HHII", tag, 3, count, value if count == 1 else place) for tag, count, value in tags
    )
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", start) + data + directory + struct.pack("<4H", 8, 8, 8, 8)


BGRA, ABGR = (0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF000000, 0xFF0000, 0xFF00, 0xFF)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bmp(0, BGRA), [255, 0, 0]),
        (bmp(255, BGRA), [255, 0, 0]),
        (bmp(0, BGRA, header=108), [255, 0, 0]),
        (bmp(0, ABGR), [255, 0, 0]),
        (bmp(51, BGRA), [255, 204, 204]),
        (tiff_of_four(0), [255, 0, 0]),
        (tiff_of_four(0, 0), [255, 0, 0]),
        (tiff_of_four(0, 2), [255, 0, 0]),
        (tiff_of_four(51, 2), [255, 204, 204]),
        (tiff_of_four(0, 1), [255, 255, 255]),  # the colours are multiplied with alpha
        (pictures.encode(Image.new("LA", (9, 9), (7, 0)), "TIFF"), [7, 7, 7]),
    ],
)
def test_alpha_that_a_program_has_left_empty_is_none(data: bytes, expected: list[int]) -> None:
    assert centre(data) == expected


def test_parts_of_an_avif_are_no_larger_than_it_says() -> None:
    data = pictures.avif(64, 48)
    assert ImageDecoder(SQUEEZED, LIMIT).decode(data).shape == (224, 224, 3)
    for size in ((32, 48), (64, 47)):
        with pytest.raises(InvalidImageError):
            ImageDecoder(SQUEEZED, LIMIT).decode(pictures.avif(*size))


def test_scans_of_a_tiff_are_limited() -> None:
    """libtiff decodes what its strips contain, also a progressive JPEG."""
    decoder, grey = ImageDecoder(SQUEEZED, LIMIT), pictures.plate(64, 48).convert("L")
    assert decoder.decode(pictures.tiff_of_jpeg(pictures.jpeg_with_scans(1, grey), 64, 48)).any()
    with pytest.raises(InvalidImageError):
        decoder.decode(pictures.tiff_of_jpeg(pictures.jpeg_with_scans(60, grey), 64, 48))


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (0x7F0, 127), (0x80F, 128), (4095, 255)])
def test_12_bits_of_grey_become_8(value: int, expected: int) -> None:
    assert centre(pictures.tiff_of_12_bits(value)) == [expected] * 3


@pytest.mark.parametrize(
    ("depth", "key", "others", "expected"),
    [
        (1, 0, [1], [255]),
        (1, 1, [0], [0]),
        (2, 2, [1, 3], [85, 255]),
        (2, 0x13, [0], [0]),  # of a key, only the lower bits count
        (4, 7, [0, 10], [0, 170]),
        (8, 7, [0, 8], [0, 8]),
        (16, 0, [1, 256], [0, 1]),
        (16, 1799, [1798, 1800, 30000], [7, 7, 117]),
        (16, 65535, [65534], [255]),
    ],
)
def test_the_transparent_grey_of_a_png_is_white(
    depth: int, key: int, others: list[int], expected: list[int]
) -> None:
    values = [key & (1 << depth) - 1, *others]
    data = pictures.png_with_key(depth, [[value] for value in values], [key])
    pixels = ImageDecoder(ImagePipeline(resize=(1, len(values)), **IDENTITY), LIMIT).decode(data)
    assert pixels[0].tolist() == [[grey] * 3 for grey in [255, *expected]]


@pytest.mark.parametrize(
    ("depth", "key", "other", "expected"),
    [
        (8, [1, 2, 3], [1, 2, 4], [1, 2, 4]),
        (16, [0x0101, 0x0202, 0x0303], [0x0401, 0x0202, 0x0303], [4, 2, 3]),
        (16, [0x0701, 0x0702, 0x0703], [0x0101, 0x0202, 0x0303], [1, 2, 3]),
        (16, [0, 0, 0], [0, 0, 0x0100], [0, 0, 1]),
    ],
)
def test_the_transparent_colour_of_a_png_is_white(
    depth: int, key: list[int], other: list[int], expected: list[int]
) -> None:
    data = pictures.png_with_key(depth, [key, other], key)
    pixels = ImageDecoder(ImagePipeline(resize=(1, 2), **IDENTITY), LIMIT).decode(data)
    assert pixels[0].tolist() == [[255, 255, 255], expected]


@pytest.mark.parametrize("format_", ["GIF", "AVIF"])
def test_the_first_frame_counts(format_: str) -> None:
    red, green, blue = centre(pictures.animated(format_))
    assert red >= 254
    assert max(green, blue) <= 1


JPEGS: dict[str, Callable[[], bytes]] = {
    "plain": pictures.jpeg,
    "progressive": lambda: pictures.encode(pictures.plate(), progressive=True),
    "restart markers": lambda: pictures.encode(pictures.plate(), restart_marker_rows=1),
    "rotated": lambda: pictures.rotated(6),
    "rotated, progressive": lambda: pictures.encode(
        pictures.plate(), progressive=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"
    ),
    "cmyk": lambda: pictures.encode(pictures.plate().convert("CMYK")),
}
"""Of those in the upper half, libjpeg-turbo decodes the pixels; Pillow those in the lower half."""


@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_needs_its_pixels_but_not_its_end(name: str) -> None:
    data = JPEGS[name]()
    decoder = ImageDecoder(SQUEEZED, LIMIT)
    whole = decoder.decode(data)
    for ending in (data[:-2], data[:-1], data + b"behind the end"):
        assert np.array_equal(decoder.decode(ending), whole)
    for missing in (3, 5, 30, len(data) // 2):
        with pytest.raises(InvalidImageError):
            decoder.decode(data[:-missing])


def test_a_progressive_jpeg_without_its_last_scans_is_truncated() -> None:
    data = pictures.encode(pictures.plate(), progressive=True)
    scans = data.split(b"\xff\xda")
    for count in range(2, 6):  # of ten
        before = b"\xff\xda".join(scans[:count])
        tables = before.rfind(b"\xff\xc4")  # of the next scan
        with pytest.raises(InvalidImageError):
            ImageDecoder(SQUEEZED, LIMIT).decode(before[:tables])


def test_without_libjpeg_turbo_a_jpeg_needs_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smallplates.tasks.image.decode.TURBO", None)
    with pytest.raises(InvalidImageError, match="truncated"):
        ImageDecoder(SQUEEZED, LIMIT).decode(pictures.jpeg()[:-2])


def test_the_size_of_a_jpeg_without_its_end_is_checked_before_decoding() -> None:
    with pytest.raises(ImageTooLargeError):
        ImageDecoder(SQUEEZED, 1000).decode(pictures.jpeg()[:-2])


def test_the_refusal_names_the_formats() -> None:
    with pytest.raises(InvalidImageError, match=r"WebP, GIF, BMP, TIFF or AVIF image$"):
        ImageDecoder(SQUEEZED, LIMIT).decode(b"no picture")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC .* JPEG"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"%PDF-1.7", "a PDF"),
        (b"\n<!DOCTYPE html>", "HTML"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b'{"error": "not found"}', "Content-Type"),
        (b"data:image/png;base64,iVBORw0KGgo", "base64"),
        (b"/9j/4AAQSkZJRgABAQ", "base64"),
        (pictures.jpeg().replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "damaged"),
    ],
    ids=["heic", "jp2", "pdf", "html", "svg", "json", "data url", "base64", "jpeg of 12 bits"],
)
def test_the_refusal_names_what_was_sent(data: bytes, words: str) -> None:
    with pytest.raises(InvalidImageError, match=words):
        ImageDecoder(SQUEEZED, LIMIT).decode(data)


def test_odd_metadata_is_no_matter_for_the_log() -> None:
    tags = b"".join(struct.pack("<HHII", tag, 2, 60_000, 8) for tag in range(1000, 2000))
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 1000) + tags + bytes(4)
    data = pictures.encode(pictures.plate(), exif=exif)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        decoder = ImageDecoder(SQUEEZED, LIMIT)
        assert decoder.decode(data).shape == (224, 224, 3)
    assert not noted


@given(st.binary(max_size=2000))
def test_any_bytes_end_in_pixels_or_in_a_refusal(data: bytes) -> None:
    try:
        pixels = ImageDecoder(CROPPED, LIMIT).decode(data)
    except (InvalidImageError, ImageTooLargeError):
        return
    assert pixels.shape == (224, 224, 3)


FILES = [make() for name, make in pictures.READABLE.items() if "large" not in name]


@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=20),
    st.integers(0, 2**20),
)
@settings(max_examples=300)
def test_any_damage_ends_in_pixels_or_in_a_refusal(
    data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(data[: cut % (2 * len(data)) + 1])
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        pixels = ImageDecoder(CROPPED, 1_000_000).decode(bytes(damaged))
    except (InvalidImageError, ImageTooLargeError):
        return
    assert pixels.shape == (224, 224, 3)

"""`smallplates.tasks.image.decode`: which JPEG files are plain, and that those have Pillow's own
pixels.
"""

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from smallplates.errors import ImageTooLargeError, InvalidImageError
from smallplates.models.description import ImagePipeline
from smallplates.tasks.image import decode
from smallplates.tasks.image.decode import (
    INLINE_BYTES,
    MAX_MARKERS,
    MAX_SEGMENTS,
    SMALLEST_SIDE,
    USUAL_SCANS,
    Header,
    ImageDecoder,
)
from smallplates.tasks.image.resize import MAX_SIMD_PIXELS
from tests import pictures
from tests.pictures import jpeg_with, segment

SCAN = b"\xff\xda"
MEAN, STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
SQUEEZED = ImagePipeline(resize=(224, 224), mean=MEAN, std=STD)
CROPPED = ImagePipeline(resize=40, center_crop=32, enlarge=(96, 96), mean=MEAN, std=STD)
MAX_PIXELS = 4_000_000
needs_turbo = pytest.mark.skipif(decode.TURBO is None, reason="simplejpeg has no wheel for this system")


def both_ways(
    data: bytes, pipeline: ImagePipeline = SQUEEZED
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Decoded as installed, and by Pillow alone."""
    decoder = ImageDecoder(pipeline, MAX_PIXELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "TURBO", None)
        by_pillow = decoder.decode(data)
    return decoder.decode(data), by_pillow


def without_pillow(data: bytes) -> NDArray[np.uint8]:
    """Decoded; fails where Pillow is asked."""

    def open_(*_: object, **__: object) -> None:
        raise AssertionError("Pillow was asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", open_)
        return ImageDecoder(SQUEEZED, MAX_PIXELS).decode(data)


@needs_turbo
@settings(max_examples=120)
@given(
    st.integers(1, 900),
    st.integers(1, 900),
    st.sampled_from(["RGB", "L"]),
    st.sampled_from([SQUEEZED, CROPPED]),
    st.fixed_dictionaries(
        {},
        optional={
            "quality": st.integers(5, 98),
            "subsampling": st.integers(0, 2),
            "progressive": st.just(True),
            "restart_marker_blocks": st.integers(1, 9),
            "icc_profile": st.just(b"profile"),
            "comment": st.just(b"comment"),
        },
    ),
)
def test_plain_files_have_pillows_pixels(
    width: int, height: int, mode: str, pipeline: ImagePipeline, options: dict[str, Any]
) -> None:
    data = pictures.encode(pictures.plate(width, height).convert(mode), **options)
    head = decode.read_header(data)
    scans = decode.scans_of(data)
    assert head == Header(width, height, scans, plain=min(width, height) >= SMALLEST_SIDE)
    by_turbo, by_pillow = both_ways(data, pipeline)
    assert np.array_equal(by_turbo, by_pillow)


@needs_turbo
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"icc_profile": b"profile"}])
def test_plain_files_go_past_pillow(options: dict[str, Any]) -> None:
    assert without_pillow(pictures.encode(pictures.plate(), **options)).shape == (224, 224, 3)
    large = pictures.encode(pictures.plate(1800, 1500), **options)  # at half its size, small enough
    assert without_pillow(large).shape == (224, 224, 3)


@needs_turbo
@pytest.mark.parametrize("transform", [0, 1])
def test_the_colour_space_is_what_adobes_segment_says(transform: int) -> None:
    adobe = segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform))
    jfif = pictures.encode(pictures.plate(), subsampling=0)
    by_turbo, by_pillow = both_ways(jfif[:2] + adobe + jfif[2:].replace(b"JFIF", b"none", 1))
    assert np.array_equal(by_turbo, by_pillow)
    assert (transform == 1) == (np.abs(by_turbo.astype(int) - without_pillow(jfif)).max() <= 1)


def pieces(*scans: bytes, frame: int = 0xC0, colours: int = 3, precision: int = 8) -> bytes:
    """A JPEG's outline: the head of a frame of 320x240, and scans of these heads."""
    size = struct.pack(">BHHB", precision, 240, 320, colours) + bytes(3 * colours)
    return b"\xff\xd8" + segment(frame, size) + b"".join(segment(0xDA, scan) for scan in scans)


def resized(data: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims another size, and ends after the head of its first scan."""
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    head = data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 : scan + 14]
    return head + b"\xff\xd9"


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (pieces(b"\3......"), True),
        (pieces(b"\1......", colours=1), True),
        (pieces(*[b"\1......"] * 3), True),
        (pieces(*[b"\3......"] * 3, frame=0xC2), True),
        (pieces(b"\3......", frame=0xC9), False),
        (pieces(b"\3......", precision=12), False),
        (pieces(b"\4......", colours=4), False),
        (pieces() + segment(0xE1, b"Exif") + b"\xff\xda", False),
        (pieces() + segment(0xC4, b"") * (MAX_SEGMENTS + 1), False),
        (pieces() + b"\0" * 9, False),
        (pieces(), False),
        (jpeg_with(segment(0xE1, b"Exif\0\0")), False),
        (jpeg_with(segment(0xDC, b"\0\1")), False),
        (jpeg_with(segment(0xEE, b"Adobe")), True),
    ],
)
def test_what_is_plain(data: bytes, plain: bool) -> None:
    head = decode.read_header(data)
    assert head is not None
    assert head.plain is plain


JPEG = pictures.jpeg()


@pytest.mark.parametrize(
    ("data", "scans"),
    [
        (pieces(*[b"\3......"] * 9), 1),  # the first has all colours
        (pieces(*[b"\1......"] * 9), 9),
        (pieces(b"\1......", *[b"\3......"] * 8), 9),
        (pieces(*[b"\3......"] * 9, frame=0xC2), 9),
        (pieces(*[b"\3......\xff\x01"] * 9, frame=0xC2), 9),
        (
            pieces(*[b"\3......"] * 9, frame=0xC2) + b"\xff\xd9" + SCAN * 99,
            9,
        ),  # such as a film behind it
        (pieces(b"\3......", frame=0xC2) + segment(0xFE, SCAN * 99), 1),
        (pieces(b"\3......", frame=0xC2) + segment(0xFE, b"\xff\xd9") + pieces(b"")[2:], 2),
        (JPEG, 1),
    ],
)
def test_the_number_of_scans(data: bytes, scans: int) -> None:
    assert decode.scans_of(data) == scans


def test_scans_count_as_pixels_whoever_decodes_them() -> None:
    data = pictures.encode(pictures.plate(), progressive=True)
    last = data[data.rindex(SCAN) : -2]
    usual = decode.scans_of(data)
    exif = segment(0xE1, b"Exif\0\0")
    decoder = ImageDecoder(SQUEEZED, 2 * 320 * 240)
    for head in (b"", exif):
        for more in (0, 2 * USUAL_SCANS - usual):
            decoder.decode(data[:2] + head + data[2:-2] + last * more + data[-2:])
        hostile = data[:2] + head + data[2:-2] + last * (2 * USUAL_SCANS) + data[-2:]
        with pytest.raises(ImageTooLargeError):
            decoder.decode(hostile)
        assert not decode.is_cheap(hostile)
        with pytest.raises(InvalidImageError):
            decoder.decode(data[:2] + head + segment(0xFE, b"") * MAX_MARKERS + data[2:])


@pytest.mark.parametrize(
    ("data", "size", "cheap"),
    [
        (JPEG, (320, 240), True),
        (pictures.jpeg(321, 123), (321, 123), True),
        (pictures.rotated(6), (320, 240), True),
        (pictures.encode(pictures.plate(), progressive=True), (320, 240), None),
        (JPEG[:-2].ljust(INLINE_BYTES, b"\0"), (320, 240), True),
        (JPEG[:-2].ljust(INLINE_BYTES + 1, b"\0"), (320, 240), False),
        (resized(JPEG, 2000, 2000), (2000, 2000), True),
        (resized(JPEG, 2000, 2001), (2000, 2001), False),
        (jpeg_with(segment(0xE5, b"") * 100), None, None),
        (jpeg_with(b"\xff\xff\xff"), None, None),
        (JPEG[:100], None, False),
        (b"\xff\xd8", None, False),
        (b"", None, False),
        (pictures.encode(pictures.plate(), "PNG"), None, False),
    ],
    ids=range(14),
)
def test_size_and_cost_are_known_before_a_file_is_decoded(
    data: bytes, size: tuple[int, int] | None, cheap: bool | None
) -> None:
    head = decode.read_header(data)
    assert (head and (head.width, head.height)) == size
    assert decode.is_cheap(data) == cheap or cheap is None


def test_what_libjpeg_complains_of_is_pillows_to_judge() -> None:
    data = pictures.jpeg()
    # bytes between the scan and its end
    by_turbo, by_pillow = both_ways(data[:-2] + b"\0\0" + data[-2:])
    assert np.array_equal(by_turbo, by_pillow)
    with pytest.raises(InvalidImageError, match="truncated"):
        ImageDecoder(SQUEEZED, MAX_PIXELS).decode(data[:-500])
    with pytest.raises(InvalidImageError):
        ImageDecoder(SQUEEZED, MAX_PIXELS).decode(pieces(b"\3......"))


@pytest.mark.parametrize("options", [{}, {"exif": b"Exif\0\0"}])
def test_the_nearest_pixel_is_one_of_the_whole_file(options: dict[str, Any]) -> None:
    data = pictures.encode(pictures.plate(1800, 1600), **options)
    nearest = SQUEEZED.model_copy(update={"filter": "nearest"})
    with Image.open(io.BytesIO(data)) as whole:
        expected = np.asarray(whole.resize((224, 224), Image.Resampling.NEAREST))
    assert np.array_equal(ImageDecoder(nearest, MAX_PIXELS).decode(data), expected)


def test_the_size_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(decode, "TURBO", never)
    with pytest.raises(ImageTooLargeError):
        ImageDecoder(SQUEEZED, MAX_PIXELS).decode(resized(pictures.jpeg(), 7000, 7000))
    wide = pictures.encode(pictures.plate(MAX_SIMD_PIXELS // 300, 320))  # too large for the resizer
    assert ImageDecoder(SQUEEZED, MAX_PIXELS).decode(wide).shape == (224, 224, 3)

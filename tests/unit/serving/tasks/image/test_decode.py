"""`decode`: odd files, orientation and modes, and safe with any bytes."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from serving.description import ImagePipeline
from serving.errors import ImageTooLargeError, InvalidImageError
from serving.tasks.image.decode import ImageDecoder
from tests import pictures

IDENTITY: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
CROPPED = ImagePipeline(resize=64, center_crop=64, enlarge=(224, 224), **IDENTITY)
SQUEEZED = ImagePipeline(resize=(224, 224), **IDENTITY)
LIMIT = 50_000_000


@pytest.mark.parametrize("name", pictures.READABLE)
def test_odd_pictures_are_read(name: str) -> None:
    pixels = ImageDecoder(CROPPED, LIMIT).decode(pictures.READABLE[name]())
    assert pixels.shape == (224, 224, 3)
    assert pixels.dtype == np.uint8


@pytest.mark.parametrize("name", pictures.UNREADABLE)
def test_what_is_no_picture_is_refused(name: str) -> None:
    with pytest.raises(InvalidImageError):
        ImageDecoder(CROPPED, LIMIT).decode(pictures.UNREADABLE[name]())


@pytest.mark.parametrize("name", pictures.TOO_LARGE)
def test_too_many_pixels_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(ImageTooLargeError):
        ImageDecoder(CROPPED, LIMIT).decode(pictures.TOO_LARGE[name]())


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1)])
def test_a_thread_of_a_picture_does_not_grow_without_bound(size: tuple[int, int]) -> None:
    stretched = ImagePipeline(resize=256, enlarge=(224, 224), **IDENTITY)
    data = pictures.encode(Image.new("RGB", size), "PNG")
    with pytest.raises(ImageTooLargeError):
        ImageDecoder(stretched, LIMIT).decode(data)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    data = pictures.rotated(orientation)
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
    """The middle pixel after decoding."""
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
        (
            lambda: pictures.encode(Image.fromarray(np.full((9, 9), 128 * 256, np.uint16)), "PNG"),
            128,
        ),
        (lambda: pictures.encode(Image.new("L", (9, 9), 77), "PNG"), 77),
        (sixteen_bits_with_transparency, 64),
    ],
    ids=["transparent", "half transparent", "grey transparent", "16 bit", "grey", "16 bit transparent"],
)
def test_every_mode_becomes_rgb_over_white(make: Callable[[], bytes], expected: int) -> None:
    assert centre(make()) == [expected] * 3


def test_the_first_frame_counts() -> None:
    assert centre(pictures.animated("GIF")) == [255, 0, 0]


@given(st.binary(max_size=2000))
@settings(deadline=None)
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
@settings(deadline=None, max_examples=300)
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

"""`resize`: Pillow's answer within one grey level, rarely two, with the SIMD code and without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.Image import Resampling

from smallplates.tasks.image import resize
from smallplates.tasks.image.resize import MAX_SIMD_PIXELS, Resizer

SIDES = st.integers(1, 400)
SHARES = st.floats(0, 1)


def noise(width: int, height: int) -> Image.Image:
    """The hardest picture: full contrast from pixel to pixel."""
    values = np.random.default_rng(width * 1000 + height).integers(0, 2, (height, width, 3), np.uint8)
    return Image.fromarray(values * 255)


@settings(max_examples=150)
@given(SIDES, SIDES, st.integers(1, 300), SHARES, SHARES)
def test_any_box_of_any_picture(width: int, height: int, side: int, left: float, right: float) -> None:
    image = noise(width, height)
    box = (left * (width - 1), left * (height - 1), width - right * (1 - left), float(height))
    pixels = Resizer().resize(image, (side, side), box)
    expected = np.asarray(image.resize((side, side), Resampling.BILINEAR, box))
    assert pixels.shape == (side, side, 3)
    # each of two passes may round another way
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= 2


@pytest.mark.parametrize("size", [(112, 112), (61, 100), (1, 7)])
def test_doubled_pixels_are_pillows(size: tuple[int, int]) -> None:
    image, doubled = noise(*size), (2 * size[0], 2 * size[1])
    expected = np.asarray(image.resize(doubled, Resampling.BILINEAR))
    assert np.array_equal(Resizer().resize(image, doubled), expected)


def test_without_the_simd_code_it_is_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "SIMD", None)
    image = noise(300, 200)
    expected = np.asarray(image.resize((64, 64), Resampling.BILINEAR))
    assert np.array_equal(Resizer().resize(image, (64, 64)), expected)


@pytest.mark.parametrize("size", [(64, 64), (100, 37)])
def test_exact_is_pillow(size: tuple[int, int]) -> None:
    image = noise(300, 200)
    box = (10.5, 3.25, 290.0, 199.0)
    expected = np.asarray(image.resize(size, Resampling.BILINEAR, box))
    assert np.array_equal(Resizer(exact=True).resize(image, size, box), expected)


@pytest.mark.skipif(resize.SIMD is None, reason="cykooz-resizer has no wheel for this system")
def test_the_simd_code_is_used_for_small_pictures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    original = Resizer._own

    def counted(self: Resizer) -> object:
        used.append(1)
        return original(self)

    monkeypatch.setattr(Resizer, "_own", counted)
    Resizer().resize(noise(300, 200), (64, 64))
    assert len(used) == 1
    Resizer().resize(noise(MAX_SIMD_PIXELS // 1000 + 1, 1000), (64, 64))
    Resizer().resize(noise(300, 200).convert("L").convert("RGB"), (400, 400))
    Resizer().resize(noise(MAX_SIMD_PIXELS // 1000, 500), (2 * MAX_SIMD_PIXELS // 1000, 1000))
    Resizer().resize(noise(300, 200).convert("L"), (64, 64))
    assert len(used) == 1


@pytest.mark.skipif(resize.SIMD is None, reason="cykooz-resizer has no wheel for this system")
def test_a_box_a_hair_outside_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(300, 200)
    expected = Resizer().resize(image, (64, 64)).astype(int)
    original = resize.SIMD.CropBox
    resize.options.cache_clear()
    monkeypatch.setattr(resize.SIMD, "CropBox", lambda *_: original(0.0, 0.0, 300.0000001, 200.0))
    assert np.abs(Resizer().resize(image, (64, 64)).astype(int) - expected).max() <= 1
    assert resize.options.cache_info().currsize == 1
    resize.options.cache_clear()

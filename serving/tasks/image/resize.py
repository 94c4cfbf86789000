"""Bilinear, antialiased resampling: what Pillow does, several times faster where that can be had.

The SIMD code of `cykooz.resizer` differs from Pillow's by one grey level at most. It has no wheel for
every system, copies its input, and holds the interpreter while it works, so pictures that are large, or
of another mode, are Pillow's; so is enlarging, where a level may become two.
"""

import contextlib
import importlib
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

SIMD: Any = None
with contextlib.suppress(ImportError):
    SIMD = importlib.import_module("cykooz_resizer")

MAX_SIMD_PIXELS = 1_000_000
Box = tuple[float, float, float, float]
Picture = Image.Image | NDArray[np.uint8]  # an array is RGB, [height, width, 3]


class Resizer:
    """`resize` for all threads; each has its own buffers."""

    def __init__(self) -> None:
        self._local = threading.local()

    def resize(
        self, picture: Picture, size: tuple[int, int], box: Box | None = None
    ) -> NDArray[np.uint8]:
        """An RGB picture, or its part (left, top, right, bottom) -> uint8 [height, width, 3].

        `size` is (width, height). The array may be read-only.
        """
        width, height = size_of(picture)
        left, top, right, bottom = box or (0.0, 0.0, width, height)
        reduces = right - left >= size[0] and bottom - top >= size[1]
        if SIMD and reduces and width * height <= MAX_SIMD_PIXELS and is_rgb(picture):
            source = SIMD.ImageData(width, height, SIMD.PixelType.U8x3, picture.tobytes())
            target = SIMD.ImageData(*size, SIMD.PixelType.U8x3)
            with contextlib.suppress(RuntimeError):  # left + width may round to a hair beyond the edge
                self._own().resize(source, target, options((left, top, right, bottom)))
                return np.frombuffer(target.get_buffer(), np.uint8).reshape(size[1], size[0], 3)
        image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        return np.asarray(image.resize(size, Resampling.BILINEAR, box))

    def _own(self) -> Any:
        """The calling thread's."""
        if not hasattr(self._local, "resizer"):
            self._local.resizer = SIMD.Resizer()
        return self._local.resizer


@lru_cache(maxsize=64)
def options(box: Box) -> Any:
    """How the SIMD code is to resize this part of a picture."""
    chosen = SIMD.ResizeOptions(SIMD.ResizeAlg.convolution(SIMD.FilterType.bilinear))
    left, top, right, bottom = box
    chosen.crop_box = SIMD.CropBox(left, top, right - left, bottom - top)
    return chosen


def size_of(picture: Picture) -> tuple[int, int]:
    """(width, height)."""
    if isinstance(picture, np.ndarray):
        return picture.shape[1], picture.shape[0]
    return picture.size


def is_rgb(picture: Picture) -> bool:
    """Whether its bytes are three a pixel."""
    return isinstance(picture, np.ndarray) or picture.mode == "RGB"

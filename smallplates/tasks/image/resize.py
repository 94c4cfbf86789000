"""Antialiased resampling like Pillow's; bilinear is several times faster if SIMD code is available.

The SIMD code of `cykooz-resizer` resizes columns first, then rows; Pillow does it the other way round.
So when it reduces an image, 7 to 24 % of the pixels differ from Pillow's by one grey level. Over 105
images this changes a probability of the shipped model by 0.002 in the median and by at most 0.009. When
it doubles an image's size, the image is transposed, and the pixels are the same.

The library lacks wheels for some systems, and holds the GIL while it works. It reads the memory of
Pillow's images, so it is used only with versions of Pillow that it is tested with. Pillow resizes images
that are large or not RGB, enlarges to other sizes, and computes all other filters.
Called by `decode.py` on a decoding thread or the event loop.
"""

import contextlib
import importlib
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, __version__
from PIL.Image import Resampling, Transpose

KNOWN_PILLOWS = range(13, 14)
"""Major versions of Pillow that the SIMD code is tested with."""

SIMD: Any = None
if int(__version__.partition(".")[0]) in KNOWN_PILLOWS:
    with contextlib.suppress(ImportError):
        SIMD = importlib.import_module("cykooz_resizer")

MAX_SIMD_PIXELS = 1_000_000
Box = tuple[float, float, float, float]
DecodedImage = Image.Image | NDArray[np.uint8]  # arrays are RGB, [height, width, 3]


class Resizer:
    """Resizer shared by all threads; each thread has its own buffers."""

    def __init__(self, filter_name: str = "bilinear", exact: bool = False) -> None:
        """`exact` uses Pillow for everything."""
        self._filter = Resampling[filter_name.upper()]
        self._by_simd = SIMD is not None and self._filter == Resampling.BILINEAR and not exact
        self._local = threading.local()

    def resize(
        self, image: DecodedImage, size: tuple[int, int], box: Box | None = None
    ) -> NDArray[np.uint8]:
        """Resizes an RGB image, or its part `box` (left, top, right, bottom), to `size` (width, height).

        Returns uint8 [height, width, 3], which may be read-only.
        """
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image)
        left, top, right, bottom = box = box or (0.0, 0.0, *image.size)
        reduces = right - left >= size[0] and bottom - top >= size[1]
        doubles = box == (0.0, 0.0, *image.size) and size == (2 * image.width, 2 * image.height)
        small = max(image.width * image.height, size[0] * size[1]) <= MAX_SIMD_PIXELS
        if self._by_simd and (reduces or doubles) and small and image.mode == "RGB":
            with contextlib.suppress(RuntimeError):  # rounding may put the box slightly beyond the edge
                if reduces:
                    return np.asarray(self._resize_by_simd(image, size, box))
                turned = image.transpose(Transpose.TRANSPOSE)
                turned = self._resize_by_simd(turned, size[::-1], (0.0, 0.0, *turned.size))
                return np.asarray(turned.transpose(Transpose.TRANSPOSE))
        return np.asarray(image.resize(size, self._filter, box))

    def _resize_by_simd(self, image: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
        target = Image.new("RGB", size)
        self._own().resize_pil(image, target, options(box))
        return target

    def _own(self) -> Any:
        """Returns the calling thread's SIMD resizer."""
        if not hasattr(self._local, "resizer"):
            self._local.resizer = SIMD.Resizer()
        return self._local.resizer


@lru_cache(maxsize=64)
def options(box: Box) -> Any:
    """Returns the SIMD code's options for a part of an image."""
    chosen = SIMD.ResizeOptions(SIMD.ResizeAlg.convolution(SIMD.FilterType.bilinear))
    left, top, right, bottom = box
    chosen.crop_box = SIMD.CropBox(left, top, right - left, bottom - top)
    return chosen


def size_of(image: DecodedImage) -> tuple[int, int]:
    """Returns (width, height)."""
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    return image.size

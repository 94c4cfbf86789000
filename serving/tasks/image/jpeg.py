"""Plain JPEG files, read by libjpeg-turbo without the library around it: Pillow's pixels, sooner.

Most photos in a request are plain: `head` tells by their segments. What has a camera's notes (EXIF may
turn the picture), four colours, or anything out of the ordinary is left to Pillow in `images.py`, and so
is what libjpeg-turbo finds fault with. `classifier.py` asks for the size, to choose where to decode.
"""

import contextlib
import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TURBO: Callable[..., Any] | None = None
with contextlib.suppress(ImportError):  # no wheel for this system
    TURBO = importlib.import_module("simplejpeg").decode_jpeg

JPEG, SCAN = b"\xff\xd8", b"\xff\xda"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the markers that a size follows
SEQUENTIAL, PROGRESSIVE, SCAN_MARKER = (0xC0, 0xC1), 0xC2, 0xDA
TABLES = frozenset({0xC4, 0xDB, 0xDD, 0xFE})  # Huffman, quantisation, restarts; and comments
NOTES = frozenset(range(0xE0, 0xF0)) - {0xE1}  # applications' segments, but for EXIF and XMP
SMALLEST_SIDE = 16  # below it several scales give the same size, and libjpeg-turbo takes another one
MAX_SEGMENTS = 64
MAX_SCANS = 100  # a progressive JPEG has about ten; each is a pass over all pixels
SCALES = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a JPEG's first scan."""

    width: int
    height: int
    plain: bool
    """Whether `pixels` can read it as Pillow would."""


def head(data: bytes) -> Head | None:
    """None for other formats, and where the beginning is none of a sound JPEG."""
    if not data.startswith(JPEG):
        return None
    place, known = len(JPEG), True
    for _ in range(MAX_SEGMENTS):
        if len(data) < place + 10 or data[place] != 0xFF:
            return None
        marker, size = data[place + 1], data[place + 2] << 8 | data[place + 3]
        if marker in FRAMES:
            precision, height, width, colours = struct.unpack_from(">BHHB", data, place + 4)
            known = known and precision == 8 and colours in (1, 3)
            known = known and min(width, height) >= SMALLEST_SIDE
            plain = known and in_few_scans(data, place + 2 + size, marker, colours)
            return Head(width, height, plain)
        known = known and (marker in TABLES or marker in NOTES)
        place += 2 + size
    return None


def in_few_scans(data: bytes, place: int, frame: int, colours: int) -> bool:
    """Whether tables alone stand between the frame and its scans, of which there are not too many."""
    if frame not in SEQUENTIAL and frame != PROGRESSIVE:
        return False
    for _ in range(MAX_SEGMENTS):
        if len(data) < place + 5 or data[place] != 0xFF:
            return False
        marker = data[place + 1]
        if marker == SCAN_MARKER:
            whole = frame in SEQUENTIAL and data[place + 4] == colours  # nothing follows that scan
            return whole or data.count(SCAN) <= MAX_SCANS
        if marker not in TABLES and marker not in NOTES:
            return False
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    return False


def scale(picture: Head, least: tuple[int, int]) -> int:
    """The divisor by which to shrink to no less than `least` (width, height), as Pillow has it."""
    room = min(picture.width // max(1, least[0]), picture.height // max(1, least[1]))
    return next((divisor for divisor in SCALES if divisor <= room), 1)


def pixels(data: bytes, picture: Head, divisor: int) -> NDArray[np.uint8] | None:
    """RGB, uint8 [height, width, 3], both sides divided and rounded up; of a `plain` picture.

    None where libjpeg-turbo has anything to say against the file: Pillow overlooks some of that.
    """
    assert TURBO is not None  # noqa: S101 the caller has looked
    width, height = -(-picture.width // divisor), -(-picture.height // divisor)
    least = {} if divisor == 1 else {"min_width": width, "min_height": height}
    try:
        found: NDArray[np.uint8] = TURBO(data, "RGB", **least)
    except ValueError:
        return None
    return found if found.shape == (height, width, 3) else None

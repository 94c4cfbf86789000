"""Plain JPEG files: the header without decoding, and decoding by libjpeg-turbo, faster than Pillow.

Most JPEG files in requests are plain: baseline or progressive, grey or three colours, nothing unusual in
their segments. Decoding gives Pillow's own pixels. `decode.py` leaves all other files to Pillow, for
example those with EXIF, which may rotate the image, and files that libjpeg-turbo complains of.
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
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of segments that hold the size
SEQUENTIAL, PROGRESSIVE, SCAN_MARKER = (0xC0, 0xC1), 0xC2, 0xDA
TABLES = frozenset({0xC4, 0xDB, 0xDD, 0xFE})  # Huffman, quantisation, restarts; and comments
APPLICATION = frozenset(range(0xE0, 0xF0)) - {0xE1}  # all but EXIF and XMP
SMALLEST_SIDE = 16  # below it several scales give the same size, and libjpeg-turbo takes another one
MAX_SEGMENTS = 64
MAX_SCANS = 100  # a progressive JPEG has about ten; each is a pass over all pixels
SCALES = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a JPEG file, up to its first scan."""

    width: int
    height: int
    plain: bool
    """True if `decode` reads the file as Pillow would."""


def read_header(data: bytes) -> Header | None:
    """Reads a file's header; returns None for other formats and for broken headers."""
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
            plain = known and has_plain_scans(data, place + 2 + size, marker, colours)
            return Header(width, height, plain)
        known = known and (marker in TABLES or marker in APPLICATION)
        place += 2 + size
    return None


def has_plain_scans(data: bytes, place: int, frame: int, colours: int) -> bool:
    """Returns whether nothing but tables precedes the scans, and there are not too many scans.

    `place` is the end of the frame's segment, `frame` its marker.
    """
    if frame not in SEQUENTIAL and frame != PROGRESSIVE:
        return False
    for _ in range(MAX_SEGMENTS):
        if len(data) < place + 5 or data[place] != 0xFF:
            return False
        marker = data[place + 1]
        if marker == SCAN_MARKER:
            one_scan = frame in SEQUENTIAL and data[place + 4] == colours
            return one_scan or data.count(SCAN) <= MAX_SCANS
        if marker not in TABLES and marker not in APPLICATION:
            return False
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    return False


def scale(header: Header, least: tuple[int, int]) -> int:
    """Returns the divisor that shrinks to no less than `least` (width, height), as Pillow's `draft`."""
    most = min(header.width // max(1, least[0]), header.height // max(1, least[1]))
    return next((divisor for divisor in SCALES if divisor <= most), 1)


def decode(data: bytes, header: Header, divisor: int) -> NDArray[np.uint8] | None:
    """Decodes a `plain` file to RGB, uint8 [height, width, 3], both sides divided and rounded up.

    Returns None if libjpeg-turbo complains of anything: Pillow accepts some of these files.
    """
    assert TURBO is not None  # noqa: S101 the caller has checked it
    width, height = -(-header.width // divisor), -(-header.height // divisor)
    least = {} if divisor == 1 else {"min_width": width, "min_height": height}
    try:
        pixels: NDArray[np.uint8] = TURBO(data, "RGB", **least)
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None

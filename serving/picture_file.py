"""A picture's bytes as Pillow reads them; what costs time or memory and is no pixel is bounded here.

Used by `images.py`; `classifier.py` asks `jpeg_pixels` where to decode.
"""

import io
import struct

from serving.errors import InvalidImageError

MAX_READS = 500_000  # Pillow makes a few for each segment, chunk or tile, all of them in Python
JPEG, PNG = b"\xff\xd8", b"\x89PNG"
AT_MOST = (
    (
        JPEG,
        b"\xff\xda",
        100,
        "scans",
    ),  # a progressive JPEG has about ten; each is a pass over all pixels
    (JPEG, b"Exif\0\0", 32, "EXIF segments"),  # Pillow joins them one by one
    (PNG, b"iCCP", 8, "colour profiles"),  # each may unpack to a megabyte
)
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the markers that a size follows
MAX_SEGMENTS = 64


class PictureFile(io.BytesIO):
    """The bytes of one picture; hostile files have millions of pieces, and a few bytes in each."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidImageError."""
        super().__init__(data)
        self._reads = 0
        for format_, mark, most, name in AT_MOST:
            if data.startswith(format_) and data.count(mark) > most:
                raise InvalidImageError(f"the image has more than {most} {name}")

    def read(self, size: int | None = -1, /) -> bytes:
        """As `io.BytesIO` has it. Raises InvalidImageError for one read too many."""
        self._reads += 1
        if self._reads > MAX_READS:
            raise InvalidImageError("the image is in too many pieces")
        return super().read(size)


def jpeg_pixels(data: bytes) -> int | None:
    """Width times height of a JPEG; None for other formats, and where its head is no plain one."""
    if not data.startswith(JPEG):
        return None
    place = len(JPEG)
    for _ in range(MAX_SEGMENTS):
        if len(data) < place + 9 or data[place] != 0xFF:
            return None
        if data[place + 1] in FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return int(width * height)
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None

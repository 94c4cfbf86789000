"""A picture's bytes as Pillow reads them; what costs time or memory and is no pixel is bounded here.

Used by `images.py`.
"""

import io

from serving.errors import InvalidImageError
from serving.tasks.image.jpeg import JPEG, MAX_SCANS, SCAN

MAX_READS = 500_000  # Pillow makes a few for each segment, chunk or tile, all of them in Python
PNG = b"\x89PNG"
AT_MOST = (
    (JPEG, SCAN, MAX_SCANS, "scans"),
    (JPEG, b"Exif\0\0", 32, "EXIF segments"),  # Pillow joins them one by one
    (PNG, b"iCCP", 8, "colour profiles"),  # each may unpack to a megabyte
)


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

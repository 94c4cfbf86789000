"""Bytes of a picture -> checked pixels; every limit on untrusted pictures is here.

Called by `classifier.classify` on a decoding thread. The pixels equal what torchvision's Resize,
CenterCrop and a second Resize give, within one grey level, except that large JPEG files are decoded
at a reduced scale (`draft`), which is several times faster. Plain JPEG files go past Pillow (`jpeg.py`).
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Image import Transpose
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from serving.errors import ImageTooLargeError, InvalidImageError
from serving.model import ImagePipeline
from serving.tasks.image import jpeg
from serving.tasks.image.jpeg import JPEG, MAX_SCANS, SCAN
from serving.tasks.image.resize import MAX_SIMD_PIXELS, Picture, Resizer, size_of

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_TILES = 100_000  # strips or tiles of a TIFF
MAX_RLE_PIXELS = 4_000_000  # of a BMP that Pillow unpacks in Python, a byte at a time
RUN_LENGTHS = (BmpImageFile.COMPRESSIONS["RLE8"], BmpImageFile.COMPRESSIONS["RLE4"])
ORIENTATION = 0x0112
TILE_WIDTH, TILE_HEIGHT = 322, 323
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
DRAFT_MARGIN = 2  # a JPEG is never decoded to less than this multiple of the resized picture


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


class ImageDecoder:
    """Turns the bytes of one picture into the model's input, without mean and std."""

    def __init__(self, pipeline: ImagePipeline, max_pixels: int) -> None:
        Image.init()  # Pillow would load its plugins later, when there may be no descriptor left
        self.pipeline = pipeline
        self.max_pixels = max_pixels
        self._resizer = Resizer()
        Image.MAX_IMAGE_PIXELS = None  # Pillow's own, fixed limit; ours is checked below

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """A picture file -> RGB pixels, uint8 [height, width, 3] of `pipeline.output_size`.

        Raises InvalidImageError (unknown, truncated, broken) or ImageTooLargeError.
        """
        if not data:
            raise InvalidImageError("the image is empty")
        plain = self._plain_jpeg(data)
        return self._by_pillow(data) if plain is None else self._transform(plain)

    def _plain_jpeg(self, data: bytes) -> NDArray[np.uint8] | None:
        """What `jpeg.py` can read, as far as `Resizer` can take it as it is; None: it is Pillow's."""
        head = jpeg.head(data) if jpeg.TURBO else None
        if head is None or not head.plain:
            return None
        self._check_size(head.width, head.height)
        scale = jpeg.scale(head, self.draft_size(head.width, head.height))
        if head.width * head.height > MAX_SIMD_PIXELS * scale * scale:
            return None
        return jpeg.pixels(data, head, scale)

    def _by_pillow(self, data: bytes) -> NDArray[np.uint8]:
        with (
            broken_file_is_the_clients_fault(),
            Image.open(PictureFile(data), formats=FORMATS) as image,
        ):
            self._check_size(*image.size)
            if isinstance(image, JpegImageFile):
                image.draft(None, self.draft_size(*image.size))
            elif isinstance(image, TiffImageFile):
                self._check_tiles(image)
            elif image.info.get("compression") in RUN_LENGTHS and isinstance(image, BmpImageFile):
                check_size(*image.size, MAX_RLE_PIXELS)
            rgb = to_rgb(upright(image))
            return self._transform(ImageOps.invert(rgb) if is_negative(image) else rgb)

    def _check_size(self, width: int, height: int) -> None:
        check_size(width, height, self.max_pixels)

    def _check_tiles(self, image: TiffImageFile) -> None:
        """Tiles are unpacked whole, however little of them lies inside the picture."""
        if len(image.tile) > MAX_TILES:
            raise ImageTooLargeError(f"the TIFF has more than {MAX_TILES} tiles")
        tile_width = image.tag_v2.get(TILE_WIDTH, 1)
        tile_height = image.tag_v2.get(TILE_HEIGHT, 1)
        across, down = -(-image.width // tile_width), -(-image.height // tile_height)
        self._check_size(across * tile_width, down * tile_height)

    def draft_size(self, width: int, height: int) -> tuple[int, int]:
        """The least (width, height) at which a JPEG may be decoded; the codec rounds up."""
        resize = self.pipeline.resize
        if isinstance(resize, int):
            scale = DRAFT_MARGIN * resize / min(width, height)
            return round(width * scale), round(height * scale)
        side = DRAFT_MARGIN * max(resize)  # width and height may still be exchanged by EXIF
        return side, side

    def _transform(self, picture: Picture) -> NDArray[np.uint8]:
        """Resize and centre crop in one sampling of the crop's pixels alone, then enlarge."""
        pipeline = self.pipeline
        width, height = size_of(picture)
        if isinstance(pipeline.resize, int):
            short, long = (
                pipeline.resize,
                int(pipeline.resize * max(width, height) / min(width, height)),
            )
            new_width, new_height = (short, long) if width <= height else (long, short)
        else:
            new_height, new_width = pipeline.resize
        crop = pipeline.center_crop
        if crop is None or crop > min(new_width, new_height):
            self._check_size(new_width, new_height)  # a long and narrow picture grows
            pixels = self._resizer.resize(picture, (new_width, new_height))
            if crop:
                left, top = (new_width - crop) // 2, (new_height - crop) // 2
                pixels = np.array(Image.fromarray(pixels).crop((left, top, left + crop, top + crop)))
        else:
            left, top = round((new_width - crop) / 2), round((new_height - crop) / 2)
            x, y = width / new_width, height / new_height
            box = (left * x, top * y, min((left + crop) * x, width), min((top + crop) * y, height))
            pixels = self._resizer.resize(picture, (crop, crop), box)
        if pipeline.enlarge:
            pixels = self._resizer.resize(pixels, pipeline.enlarge[::-1])
        return pixels


def check_size(width: int, height: int, most: int) -> None:
    """Raises ImageTooLargeError."""
    if width * height > most:
        raise ImageTooLargeError(f"the image has {width}x{height} pixels; at most {most} are accepted")


@contextmanager
def broken_file_is_the_clients_fault() -> Iterator[None]:
    """Codecs meet hostile bytes with exceptions of every kind; all of them mean the same."""
    try:
        yield
    except (ImageTooLargeError, InvalidImageError):
        raise
    except UnidentifiedImageError as error:
        raise InvalidImageError("not a JPEG, PNG, WebP, GIF, BMP or TIFF image") from error
    except Exception as error:
        reason = str(error) or "it is broken"
        raise InvalidImageError(f"the image cannot be read: {reason}"[:200]) from error


def upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation; a broken EXIF block counts as none."""
    image.load()
    try:
        orientation = image.getexif().get(ORIENTATION)
    except Exception:  # the picture itself is fine
        return image
    if isinstance(orientation, int) and orientation in UPRIGHT:
        return image.transpose(UPRIGHT[orientation])
    return image


def is_negative(image: Image.Image) -> bool:
    """A TIFF whose 0 is white; Pillow inverts those of 8 bits and fewer only."""
    if not isinstance(image, TiffImageFile) or image.mode not in ("I;16", "F"):
        return False
    return image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode -> RGB: transparency over white, 16 bits a channel reduced to 8."""
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.dtype != np.uint16:
            values = values.clip(0, 65535)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.nan_to_num(np.asarray(image), nan=0.0)
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        if image.mode == "La":  # it has no other way
            image = image.convert("LA")
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return image.convert("RGB")

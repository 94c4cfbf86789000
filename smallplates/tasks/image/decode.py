"""Image decoding: from untrusted files to pixels of the model's input size.

Called by `inference/` on a decoding thread, or on the event loop for images that are cheap to decode.
The pixels match torchvision's Resize, CenterCrop and second Resize within one grey level; if the
pipeline is `exact`, they are identical to Pillow's. However, large JPEG files are decoded at a reduced
scale (`draft`), which is several times faster.

Most JPEG files in requests are plain: baseline or progressive, grey or three colours, nothing unusual in
their segments. libjpeg-turbo decodes them faster than Pillow, to the same pixels. Pillow decodes all
other files, such as those with EXIF, which may rotate the image, and those that libjpeg-turbo rejects.
Triton's photo model contains a copy of this folder.
"""

import ctypes
import importlib
import io
import math
import os
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, ImageOps, UnidentifiedImageError, _imaging, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Image import Transpose
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from smallplates.errors import ImageTooLargeError, InvalidImageError
from smallplates.models.description import ImagePipeline
from smallplates.tasks.image.resize import MAX_SIMD_PIXELS, DecodedImage, Resizer, size_of

TURBO: Callable[..., Any] | None = None
with suppress(ImportError):  # there is no wheel for this system
    TURBO = importlib.import_module("simplejpeg").decode_jpeg

JPEG, SCAN, END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of segments that hold the size
SEQUENTIAL, PROGRESSIVE, SCAN_MARKER = (0xC0, 0xC1), 0xC2, 0xDA
TABLES = frozenset({0xC4, 0xDB, 0xDD, 0xFE})  # Huffman, quantisation, restart interval, comment
APPLICATION = frozenset(range(0xE0, 0xF0)) - {0xE1}  # all but EXIF and XMP
SMALLEST_SIDE = 16  # below, several scales give the same size and libjpeg-turbo may choose another one
MAX_SEGMENTS = 64
MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # of a segment; those within a scan have none
MAX_MARKERS = 1000
USUAL_SCANS = 20  # more than a progressive JPEG usually has; each is a pass over all pixels
SCALES = (8, 4, 2)

os.environ["LIBTIFF_JPEG_MAX_ALLOWED_SCAN_NUMBER"] = str(USUAL_SCANS)  # libtiff reads it
FORMATS = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF") + ("AVIF",) * AvifImagePlugin.SUPPORTED
MAX_TILES = 100_000  # strips or tiles in a TIFF
MAX_RLE_PIXELS = 4_000_000  # in a BMP that Pillow decompresses in Python, byte by byte
RUN_LENGTHS = (BmpImageFile.COMPRESSIONS["RLE8"], BmpImageFile.COMPRESSIONS["RLE4"])
ORIENTATION = 0x0112
TILE_WIDTH, TILE_HEIGHT = 322, 323
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
COMPRESSION, UNCOMPRESSED = 259, 1
PLANES, SEPARATE = 284, 2
SAMPLE_FORMAT, UNSIGNED = 339, "unsigned"
BITS_PER_SAMPLE, DEPTH = 258, "depth"
EXTRA_SAMPLES, PREMULTIPLIED = 338, (1,)
KEY_SCALES = {"L;2": 85, "L;4": 17}  # Pillow scales these pixels, but not a PNG's transparent grey
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
DRAFT_MARGIN = 2  # a JPEG is decoded to at least this multiple of the resized image
INLINE_BYTES, SMALL_PIXELS = 96 * 1024, 4_000_000  # limits for a JPEG on the event loop

MAX_READS = 500_000  # Pillow reads each segment, chunk or tile in a few pieces, in Python
PNG, AVIF_PART = b"\x89PNG", b"av01"
AVIF_LAYOUTS = {("13.0.0", "1.4.2")}  # versions of Pillow and libavif, see `limit_avif`
MAX_AVIF_METADATA = 32 * 1024  # libavif takes quadratic time for it, while no other thread can run
LOOKS_LIKE = {
    rb".{4}ftyp(hei|hev|mif1|msf1)": "a HEIC photo: save it as JPEG",
    rb"\0\0\0\x0c(jP|JXL) |\xff[\n\x4f]": "JPEG 2000 or JPEG XL: save it as JPEG",
    rb"%PDF": "a PDF",
    rb"\s*<": "HTML, such as a page that says why there is no image, or SVG",
    rb"\s*[{[]": "JSON: send it with Content-Type: application/json",
    rb"data:|/9j/|iVBORw|R0lGOD|UklGR": "base64: send it in JSON, as image",
}
"""First bytes of files that Pillow does not support -> what they are."""

KNOWN = rb"\xff\xd8|\x89PNG|RIFF....WEBP|GIF8|BM|II[*+]|MM\0[*+]"

MAX_OCCURRENCES = (
    (JPEG, b"Exif\0\0", 32, "EXIF segments"),  # Pillow concatenates them one by one
    (b"\0\0", AVIF_PART, 16, "parts of an AVIF"),  # each may have as many pixels as the image
    (PNG, b"iCCP", 8, "colour profiles"),  # each may decompress to a megabyte
)


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a JPEG file, up to its first scan."""

    width: int
    height: int
    scans: int = 0  # 0 if unknown
    plain: bool = False  # true if `decode_jpeg` reads the file as Pillow would


class BoundedFile(io.BytesIO):
    """Image file that limits its number of parts: hostile files have millions of tiny parts."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidImageError for too many parts of a kind that Pillow processes slowly."""
        super().__init__(data)
        self._reads = 0
        for format_, mark, most, name in MAX_OCCURRENCES:
            if data.startswith(format_) and data.count(mark) > most:
                raise InvalidImageError(f"the image has more than {most} {name}")
        check_avif(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads like `io.BytesIO`. Raises InvalidImageError after too many reads."""
        self._reads += 1
        if self._reads > MAX_READS:
            raise InvalidImageError("the image has too many segments")
        return super().read(size)


class ImageDecoder:
    """Decodes image files to the model's input size; the backends apply mean and std."""

    def __init__(self, pipeline: ImagePipeline, max_pixels: int) -> None:
        Image.init()  # now, because later Pillow may find no free descriptor to load its plugins
        self.pipeline = pipeline
        self.max_pixels = max_pixels
        self._crop = pipeline.crop
        self._resizer = Resizer(pipeline.filter, pipeline.exact)
        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # as for other formats; requests are decoded in parallel
        Image.MAX_IMAGE_PIXELS = None  # disables Pillow's fixed limit; ours is checked below
        warnings.filterwarnings("ignore", module="PIL")  # one for each odd tag, thousands in a file
        with suppress(AttributeError, OSError):  # nor a line on stderr for each damaged row of a TIFF
            ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """Decodes a file to pixels, uint8 [height, width, 3], of size `pipeline.output_size`.

        The channels have the order `pipeline.channels`.

        Raises InvalidImageError (unknown, truncated or broken file) or ImageTooLargeError.
        """
        if not data:
            raise InvalidImageError("the image is empty")
        plain = self._decode_plain_jpeg(data)
        return self._decode_by_pillow(data) if plain is None else self._transform(plain)

    def _decode_plain_jpeg(self, data: bytes) -> NDArray[np.uint8] | None:
        """Decodes a plain JPEG to a size that the SIMD resizer supports; None if Pillow must do it."""
        header = read_header(data)
        if TURBO is None or header is None or not header.plain:
            return None
        check_size(header.width, header.height, self.max_pixels, header.scans)
        scale = jpeg_scale(header, self.draft_size(header.width, header.height))
        if header.width * header.height > MAX_SIMD_PIXELS * scale * scale:
            return None
        return decode_jpeg(data, header, scale)

    def _decode_by_pillow(self, data: bytes) -> NDArray[np.uint8]:
        with (
            codec_errors_are_client_errors(data),
            Image.open(BoundedFile(data), formats=FORMATS) as image,
        ):
            check_size(*image.size, self.max_pixels)
            if isinstance(image, JpegImageFile):
                check_size(*image.size, self.max_pixels, scans_of(data))
                if not data.endswith(END) and lacks_only_end(data):
                    return self.decode(data + END)
                image.draft(None, self.draft_size(*image.size))
            elif isinstance(image, TiffImageFile):
                self._check_tiles(image)
                check_layout(image)
                image.info[DEPTH] = image.tag_v2.get(BITS_PER_SAMPLE, (16,))[0]
                image.info[UNSIGNED] = 1 in image.tag_v2.get(SAMPLE_FORMAT, (1,))
            elif isinstance(image, PngImageFile):
                correct_transparency(image)
            elif image.format == "AVIF":
                limit_avif(image, 2 * self.max_pixels // data.count(AVIF_PART))
            elif image.info.get("compression") in RUN_LENGTHS and isinstance(image, BmpImageFile):
                check_size(*image.size, MAX_RLE_PIXELS)
            turned = upright(image)
            rgb = turned.convert("RGB") if has_unused_alpha(image) else to_rgb(turned)
            return self._transform(ImageOps.invert(rgb) if is_negative(image) else rgb)

    def _check_tiles(self, image: TiffImageFile) -> None:
        """Checks the total size of all tiles, which are decompressed whole, even outside the image.

        Raises ImageTooLargeError.
        """
        if len(image.tile) > MAX_TILES:
            raise ImageTooLargeError(f"the TIFF has more than {MAX_TILES} tiles")
        tile_width = image.tag_v2.get(TILE_WIDTH, 1)
        tile_height = image.tag_v2.get(TILE_HEIGHT, 1)
        across, down = -(-image.width // tile_width), -(-image.height // tile_height)
        check_size(across * tile_width, down * tile_height, self.max_pixels)

    def draft_size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the minimum (width, height) to decode a JPEG to; the codec rounds up."""
        if self.pipeline.filter == "nearest":
            return width, height  # it takes single pixels, and the codec would average them
        resize = self.pipeline.resize
        if isinstance(resize, int):
            scale = DRAFT_MARGIN * resize / min(width, height)
            return round(width * scale), round(height * scale)
        side = DRAFT_MARGIN * max(resize)  # EXIF may still swap width and height
        return side, side

    def _size_after_resize(self, width: int, height: int) -> tuple[int, int]:
        """Returns an image's (width, height) after `pipeline.resize`, before the crop."""
        short = self.pipeline.resize
        if not isinstance(short, int):
            return short[1], short[0]
        long = int(short * max(width, height) / min(width, height))
        return (short, long) if width <= height else (long, short)

    def _start(self, length: int, crop: int) -> int:
        """Returns where the centre crop starts along a side; negative if the side is shorter."""
        rest = (length - crop) / 2
        if self.pipeline.crop_rounding == "down":
            return math.floor(rest)
        return round(rest) if rest > 0 else math.ceil(rest)

    def _transform(self, image: DecodedImage) -> NDArray[np.uint8]:
        """Resizes and crops in one step, which samples only the crop's pixels; then enlarges.

        If the pipeline is `exact`, it takes two steps, because Pillow rounds the edges of a box.
        """
        pipeline = self.pipeline
        width, height = size_of(image)
        new_width, new_height = self._size_after_resize(width, height)
        down, across = self._crop or (new_height, new_width)
        left, top = self._start(new_width, across), self._start(new_height, down)
        right, bottom = left + across, top + down
        if self._crop is None or across > new_width or down > new_height or pipeline.exact:
            # a long, narrow image may become too large
            check_size(new_width, new_height, self.max_pixels)
            pixels = self._resizer.resize(image, (new_width, new_height))
            if self._crop:
                pixels = np.array(Image.fromarray(pixels).crop((left, top, right, bottom)))
        else:
            x, y = width / new_width, height / new_height
            box = (left * x, top * y, min(right * x, width), min(bottom * y, height))
            pixels = self._resizer.resize(image, (across, down), box)
        if pipeline.enlarge:
            pixels = self._resizer.resize(pixels, pipeline.enlarge[::-1])
        return np.ascontiguousarray(pixels[..., ::-1]) if pipeline.channels == "BGR" else pixels


def is_cheap(data: bytes) -> bool:
    """Returns whether it is a JPEG that is cheap enough to decode on the event loop.

    The cost of other formats cannot be predicted from their bytes and pixels.
    """
    header = read_header(data) if len(data) <= INLINE_BYTES else None
    if header is None or not 1 <= header.scans <= USUAL_SCANS:
        return False
    return header.width * header.height <= SMALL_PIXELS


def read_header(data: bytes) -> Header | None:
    """Reads a file's header; returns None for other formats and for broken headers."""
    if not data.startswith(JPEG):
        return None
    place, known, header = len(JPEG), True, None
    for _ in range(MAX_SEGMENTS):
        if len(data) < place + 10 or data[place] != 0xFF:
            break
        marker, size = data[place + 1], data[place + 2] << 8 | data[place + 3]
        if marker in FRAMES and header is None:
            precision, height, width, colours = struct.unpack_from(">BHHB", data, place + 4)
            known = known and precision == 8 and colours in (1, 3)
            known = known and min(width, height) >= SMALLEST_SIDE
            header, is_sequential = Header(width, height), marker in SEQUENTIAL
            if not is_sequential and marker != PROGRESSIVE:
                break
        elif marker == SCAN_MARKER and header:
            scans = 1 if is_sequential and data[place + 4] == colours else scans_of(data)
            return replace(header, scans=scans, plain=known and scans > 0)
        else:
            known = known and (marker in TABLES or marker in APPLICATION)
        place += 2 + size
    return header


def scans_of(data: bytes) -> int:
    """Returns the number of any JPEG's scans. Raises InvalidImageError for too many segments."""
    scans, place, colours = 0, len(JPEG), b""
    for _ in range(MAX_MARKERS):
        found = MARKER.search(data, place)
        if found is None or found[0] == END:
            return scans
        place = found.end()
        if found[0][1] in SEQUENTIAL:
            colours = data[place + 7 : place + 8]
        elif found[0] == SCAN:
            if not scans and data[place + 2 : place + 3] == colours:
                return 1  # it has all colours, so decoders read no further
            scans += 1
        place += int.from_bytes(data[place : place + 2])
    raise InvalidImageError("the image has too many segments")


def jpeg_scale(header: Header, least: tuple[int, int]) -> int:
    """Returns the largest divisor that keeps at least `least` (width, height), like Pillow's `draft`."""
    most = min(header.width // max(1, least[0]), header.height // max(1, least[1]))
    return next((divisor for divisor in SCALES if divisor <= most), 1)


def decode_jpeg(data: bytes, header: Header, divisor: int) -> NDArray[np.uint8] | None:
    """Decodes a `plain` file to RGB, uint8 [height, width, 3], with both sides divided and rounded up.

    Returns None if libjpeg-turbo reports any problem, because Pillow accepts some of these files.
    """
    assert TURBO is not None  # noqa: S101 the caller has checked it
    width, height = -(-header.width // divisor), -(-header.height // divisor)
    least = {} if divisor == 1 else {"min_width": width, "min_height": height}
    try:
        pixels: NDArray[np.uint8] = TURBO(data, "RGB", **least)
    except ValueError:
        return None
    return pixels if pixels.shape == (height, width, 3) else None


def lacks_only_end(data: bytes) -> bool:
    """Returns whether a JPEG has no end marker, but all its pixels.

    libjpeg-turbo reports missing pixels; Pillow makes them up. A progressive file that was cut between
    scans has all pixels, too, but only their upper bits.
    """
    start = data.rfind(SCAN)
    if TURBO is None or data.rfind(END) > start:
        return False
    with suppress(ValueError, IndexError):
        TURBO(data + END, "GRAY", min_width=1, min_height=1)
        return data[start + 7 + 2 * data[start + 4]] & 15 == 0  # the bits that are left out
    return False


def check_size(width: int, height: int, most: int, scans: int = 1) -> None:
    """Raises ImageTooLargeError for more than `most` pixels, or for fewer in unusually many scans."""
    if scans > USUAL_SCANS:
        most = most * USUAL_SCANS // scans
    if width * height > most:
        times = f" in {scans} scans" if scans > USUAL_SCANS else ""
        raise ImageTooLargeError(
            f"the image has {width}x{height} pixels{times}; at most {most} are accepted"
        )


@contextmanager
def codec_errors_are_client_errors(data: bytes) -> Iterator[None]:
    """Turns the codecs' exceptions, which can be of any type, into InvalidImageError."""
    try:
        yield
    except (ImageTooLargeError, InvalidImageError):
        raise
    except UnidentifiedImageError as error:
        message = f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
        if re.match(KNOWN, data, re.DOTALL):
            message = "the image is damaged, or of a kind that isn't supported: save it as JPEG or PNG"
        for start, kind in LOOKS_LIKE.items():
            if re.match(start, data, re.DOTALL):
                message += f", but {kind}"
        raise InvalidImageError(message) from error
    except Exception as error:
        reason = str(error) or "it is damaged"
        raise InvalidImageError(f"the image cannot be read: {reason}"[:200]) from error


def upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation; ignores broken EXIF data."""
    image.load()
    try:
        orientation = image.getexif().get(ORIENTATION)
    except Exception:  # the pixels are still fine
        return image
    if isinstance(orientation, int) and orientation in UPRIGHT:
        return image.transpose(UPRIGHT[orientation])
    return image


def check_layout(image: TiffImageFile) -> None:
    """Raises InvalidImageError for a TIFF that Pillow reads as other pixels, without an error."""
    tags = image.tag_v2
    plain = tags.get(COMPRESSION, UNCOMPRESSED) == UNCOMPRESSED
    deep = max(tags.get(BITS_PER_SAMPLE, (1,))) > 8
    planes = tags.get(PLANES) == SEPARATE and (image.mode == "LA" or (plain and deep))
    if planes or (image.mode == "F" and tags.prefix == b"MM" and not plain):
        raise InvalidImageError("this layout of a TIFF isn't supported: save it as JPEG or PNG")


def is_negative(image: Image.Image) -> bool:
    """Returns whether 0 is white in a TIFF that Pillow has not inverted (it does so up to 8 bits)."""
    if not isinstance(image, TiffImageFile) or image.mode not in ("I;16", "F"):
        return False
    return image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO


def has_unused_alpha(image: Image.Image) -> bool:
    """Returns whether a BMP or TIFF has alpha of 0 only: many programs leave these bytes empty."""
    if not isinstance(image, BmpImageFile | TiffImageFile) or image.mode not in ("RGBA", "LA"):
        return False
    if isinstance(image, TiffImageFile) and image.tag_v2.get(EXTRA_SAMPLES) == PREMULTIPLIED:
        return False  # Pillow has dropped the colours
    return image.getchannel("A").getbbox() is None


def check_avif(data: bytes) -> None:
    """Raises InvalidImageError if an AVIF file has too many bytes outside of its images."""
    place = metadata = 0
    while data[4:8] == b"ftyp" and place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        length = size if size > 1 else len(data)  # 0: the rest of the file; 1: more than 4 GB
        metadata += 8 if kind == b"mdat" and size != 1 else length
        if metadata > MAX_AVIF_METADATA:
            raise InvalidImageError(f"the AVIF has more than {MAX_AVIF_METADATA} bytes of metadata")
        place += length


def limit_avif(image: Any, most: int) -> None:
    """Makes libavif refuse a part with more than `most` pixels, or more than the file declares.

    Pillow has no parameter for it, but its decoder begins with a pointer to libavif's `avifDecoder`, in
    which the limits of size and side follow each other. Versions that were not looked at have no limit.
    """
    if (PIL.__version__, features.version("avif")) not in AVIF_LAYOUTS:
        return
    decoder = ctypes.c_void_p.from_address(id(image._decoder) + object.__basicsize__).value
    if decoder and [*(limits := (ctypes.c_uint32 * 2).from_address(decoder + 28))] == [1 << 28, 1 << 15]:
        limits[0] = min(image.width * image.height, most)


def correct_transparency(image: PngImageFile) -> None:
    """Scales the colour that a PNG declares transparent to 8 bits, as Pillow does with the pixels.

    `to_rgb` handles 16 bits of grey. Of 16 bits per colour, the upper 8 decide.
    """
    key, layout = image.info.get("transparency"), image.tile[0].args
    if key is not None and layout in KEY_SCALES:
        image.info["transparency"] = (key & 255 // KEY_SCALES[layout]) * KEY_SCALES[layout]
    elif key is not None and layout == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB: puts transparency over white, reduces 16 bits per channel to 8."""
    if image.mode[0] in "IF":  # one channel of 16 or more bits, or of floats from 0 to 1 or to 255
        values = np.nan_to_num(np.asarray(image), nan=0.0)
        if image.mode == "I" and image.info.get(UNSIGNED):
            values = values.view(np.uint32)
        if image.mode == "F" and values.max() <= 1:
            values = values * 255
        depth = 12 if image.info.get(DEPTH) == 12 else 16  # Pillow reads 12 bits as they are
        if image.mode == "I":  # of 32 bits, or of 16 with a sign, which may hold bytes
            depth = -(-int(values.max()).bit_length() // 8) * 8 or 8
        shades = values.clip(0, 255) if image.mode == "F" else values.clip(0) >> depth - 8
        is_transparent = values == image.info.get("transparency")
        return Image.fromarray(np.where(is_transparent, 255, shades).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        if image.mode == "La":  # Pillow cannot convert it directly
            image = image.convert("LA")
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return image.convert("RGB")

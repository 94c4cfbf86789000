"""What visitors upload: names made harmless, HEIC and AVIF converted, thumbnails for plain pages.

The API checks and decodes the photos; this file looks into them only where the API cannot, or
where a page without JavaScript has no preview of its own. Nothing is written to disk.
"""

import base64
import importlib.util
import io
import unicodedata
from dataclasses import dataclass

from PIL import Image, ImageOps, features

from flask_app.errors import ConversionError, PixelsError

MAX_NAME = 80
MAX_PIXELS = 50_000_000
HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
AVIF_BRANDS = (b"avif", b"avis")
THUMBNAIL_SIDE = 480
READABLE = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # no format that runs a program
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)


@dataclass(frozen=True)
class Photo:
    """An uploaded file: its harmless name and its bytes."""

    name: str
    content: bytes


def harmless_name(name: str | None) -> str:
    """The last part of a file name, without control or direction characters, of bounded length."""
    last = (name or "").replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    if len(kept) > MAX_NAME:
        kept = kept[: MAX_NAME - 12] + "…" + kept[-11:]
    return kept or "photo"


def for_the_api(content: bytes) -> bytes:
    """The bytes themselves, or a JPEG of a HEIC or AVIF file. Raises UploadError."""
    brand = content[8:12] if content[4:8] == b"ftyp" else b""
    if brand not in HEIC_BRANDS + AVIF_BRANDS:
        return content
    kind = _learn_heic() if brand in HEIC_BRANDS else _know_avif()
    try:
        with Image.open(io.BytesIO(content), formats=[kind]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise PixelsError(f"more than {MAX_PIXELS:,} pixels")
            return _jpeg(ImageOps.exif_transpose(image), quality=92)
    except PILLOW_ERRORS as error:
        raise ConversionError("a HEIC or AVIF file that cannot be read") from error


def thumbnail(content: bytes) -> str | None:
    """A small picture as a data: URL; None when there is none."""
    try:
        with Image.open(io.BytesIO(content), formats=READABLE) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.draft("RGB", (THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            small = ImageOps.exif_transpose(image)
            small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            encoded = base64.b64encode(_jpeg(small, quality=80)).decode("ascii")
    except PILLOW_ERRORS:
        return None
    return f"data:image/jpeg;base64,{encoded}"


def _jpeg(image: Image.Image, quality: int) -> bytes:
    """A JPEG without any metadata; alpha goes over white."""
    rgba = image.convert("RGBA")
    flat = Image.new("RGB", rgba.size, "white")
    flat.paste(rgba, mask=rgba.getchannel("A"))
    buffer = io.BytesIO()
    flat.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _know_avif() -> str:
    """Pillow's name of the format. Raises ConversionError where this Pillow lacks it."""
    if not features.check("avif"):
        raise ConversionError("AVIF needs a newer Pillow on the server")
    return "AVIF"


def _learn_heic() -> str:
    """Teaches Pillow HEIC where pillow-heif is installed. Raises ConversionError."""
    if importlib.util.find_spec("pillow_heif") is None:
        raise ConversionError("HEIC needs pillow-heif on the server")
    importlib.import_module("pillow_heif").register_heif_opener()
    return "HEIF"

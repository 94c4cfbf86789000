"""Prepares uploads: makes names harmless, converts HEIC and AVIF, renders thumbnails.

The API checks and decodes the images. This module decodes only what the API cannot, thumbnails for
browsers without JavaScript, which have no preview, and photos for Triton's `food_classifier_onnx`, which
takes tensors. It writes nothing to disk.
"""

import base64
import ctypes
import importlib.util
import io
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageOps, _imaging, features

from flask_app.errors import UploadError

MAX_NAME = 80
MAX_PIXELS = 52_000_000
USUAL_SCANS = 20  # more than a progressive JPEG usually has; each is a pass over all pixels
AVIF_BRANDS = {b"avif", b"avis"}
CONTAINER_BRANDS = {b"mif1", b"msf1"}  # of either format; the compatible brands say which
HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"}
MAX_FTYP_BYTES = 1024  # of the box with the brands, whose usual size is 32
MAX_AVIF_METADATA = 32 * 1024  # bytes; libavif takes quadratic time for them, while no other thread runs
THUMBNAIL_SIDE = 480
CONVERTED_SIDE = 4096  # more than any model looks at; as a JPEG it fits the API's limits
READABLE = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # no format that runs a program


@dataclass(frozen=True)
class Photo:
    """Uploaded file: its harmless name and its bytes."""

    name: str
    content: bytes


def harmless_name(name: str | None) -> str:
    """Returns a file name's last part without control or direction characters, shortened to MAX_NAME."""
    last = (name or "").replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    if len(printable) > MAX_NAME:
        printable = printable[: MAX_NAME - 12] + "…" + printable[-11:]
    return printable or "photo"


class Decoder:
    """Decodes one image at a time, on its own thread.

    50 million pixels take 200 MB, and the C library keeps that memory for every thread that used it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "decoder")
        warnings.filterwarnings("ignore", module="PIL")  # a line on stderr for each odd tag of a photo
        with suppress(AttributeError, OSError):  # and for each damaged row of a TIFF
            ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)

    def for_the_api(self, content: bytes) -> bytes:
        """Returns the bytes unchanged, or a JPEG of a HEIC or AVIF file. Raises UploadError."""
        if (kind := _foreign_format(content)) is None:
            return content
        with _any_error_as(UploadError("unsupported_image", "this HEIC or AVIF file cannot be read")):
            return self._jpeg(content, (kind,), CONVERTED_SIDE, 92)

    def thumbnail(self, content: bytes) -> str | None:
        """Returns a small JPEG as a data: URL; None when the image cannot be decoded."""
        try:
            with _any_error_as(UploadError("unsupported_image")):
                kind = _foreign_format(content)
                small = self._jpeg(content, (kind,) if kind else READABLE, THUMBNAIL_SIDE, 80)
        except UploadError:
            return None
        return f"data:image/jpeg;base64,{base64.b64encode(small).decode('ascii')}"

    def tensor(self, content: bytes, pipeline: Mapping[str, Any]) -> bytes:  # Any: JSON
        """Returns what a model takes that has no preprocessing of its own. Raises UploadError."""
        with _any_error_as(UploadError("unsupported_image", "this image cannot be read")):
            return self._thread.submit(_tensor, content, pipeline).result()

    def _jpeg(self, content: bytes, kinds: tuple[str, ...], side: int, quality: int) -> bytes:
        return self._thread.submit(_jpeg, content, kinds, side, quality).result()


@contextmanager
def _any_error_as(error: UploadError) -> Iterator[None]:
    """Raises `error` for any exception of a codec, because hostile bytes cause all kinds."""
    try:
        yield
    except UploadError:
        raise
    except Exception as reason:
        raise error from reason


def _flat(content: bytes, kinds: tuple[str, ...], side: int = 0) -> Image.Image:
    """Returns an upright RGB image on white, of at most `side` pixels if that is not 0."""
    with Image.open(io.BytesIO(content), formats=kinds) as image:
        scans = content.count(b"\xff\xda") if image.format == "JPEG" else 1
        if image.width * image.height * max(1, scans / USUAL_SCANS) > MAX_PIXELS:
            raise UploadError("image_too_large", f"more than {MAX_PIXELS:,} pixels")
        if side:
            image.thumbnail((side, side))
        ImageOps.exif_transpose(image, in_place=True)
        rgba = _in_8_bits(image).convert("RGBA")
        if image.format in ("BMP", "TIFF") and rgba.getchannel("A").getbbox() is None:
            rgba.putalpha(255)  # many programs leave these bytes empty
    flat = Image.new("RGB", rgba.size, "white")
    flat.paste(rgba, mask=rgba.getchannel("A"))
    return flat


def _jpeg(content: bytes, kinds: tuple[str, ...], side: int, quality: int) -> bytes:
    """Returns an upright JPEG of at most `side` pixels, without metadata, on white."""
    buffer = io.BytesIO()
    _flat(content, kinds, side).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Returns one channel of more than 8 bits, or of floats, in 8 bits; other images as they are."""
    if image.mode[0] not in "IF":
        return image
    top = float(image.getextrema()[1])  # type: ignore[arg-type]  # of one channel, a number
    scale = 255 if top <= 1 else 2.0 ** min(0, 8 - 8 * -(-int(top).bit_length() // 8))
    return image.point(lambda value: value * scale + 0).convert("L")


def _tensor(content: bytes, pipeline: Mapping[str, Any]) -> bytes:
    """Returns normalised float32 [3, height, width], by the steps of `image` in model.json."""
    image = _flat(content, READABLE)
    resample = Image.Resampling[pipeline.get("filter", "bilinear").upper()]
    size, crop = pipeline["resize"], pipeline.get("center_crop")
    if isinstance(size, int):
        size = [int(each * size / min(image.size) + 1e-6) for each in reversed(image.size)]
    image = image.resize(size[::-1], resample)
    if crop:
        height, width = (crop, crop) if isinstance(crop, int) else crop
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    image = image.resize((pipeline.get("enlarge") or image.size[::-1])[::-1], resample)
    bands = image.split()[:: -1 if pipeline.get("channels") == "BGR" else 1]
    return b"".join(map(_normalised, bands, pipeline["mean"], pipeline["std"]))


def _normalised(band: Image.Image, mean: float, std: float) -> bytes:
    return band.convert("F").point(lambda value: value * (1 / (255 * std)) - mean / std).tobytes()


def _foreign_format(content: bytes) -> str | None:
    """Returns Pillow's name of HEIC or AVIF; None for other files.

    Raises UploadError when the server cannot read the format.
    """
    if content[4:8] != b"ftyp":
        return None
    brand, end = content[8:12], min(int.from_bytes(content[:4]), MAX_FTYP_BYTES)
    compatible = {content[at : at + 4] for at in range(16, end, 4)}
    if brand in AVIF_BRANDS or (brand in CONTAINER_BRANDS and compatible & AVIF_BRANDS):
        return _avif_format(content)
    return _register_heic() if brand in HEIC_BRANDS | CONTAINER_BRANDS else None


def _avif_format(content: bytes) -> str:
    """Returns Pillow's name of AVIF.

    Raises UploadError when this Pillow lacks it, or for too many bytes outside of the image's data.
    """
    if not features.check("avif"):
        raise UploadError("unsupported_image", "AVIF needs a newer Pillow on the server")
    place = metadata = 0
    while place + 8 <= len(content):
        size = int.from_bytes(content[place : place + 4])
        length = size if size > 1 else len(content)  # 0: the rest of the file; 1: more than 4 GB
        metadata += 8 if content[place + 4 : place + 8] == b"mdat" and size != 1 else length
        if metadata > MAX_AVIF_METADATA:
            raise UploadError("unsupported_image", "this AVIF file has too much metadata")
        place += length
    return "AVIF"


def _register_heic() -> str:
    """Registers HEIC with Pillow and returns its name. Raises UploadError without pillow-heif."""
    if importlib.util.find_spec("pillow_heif") is None:
        raise UploadError("unsupported_image", "HEIC needs pillow-heif on the server")
    importlib.import_module("pillow_heif").register_heif_opener()
    return "HEIF"

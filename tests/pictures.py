"""Pictures for the tests, drawn here: ordinary ones, odd ones, and hostile ones."""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFile

ImageFile.MAXBLOCK = 1 << 24  # the buffer of a progressive file, which many restart markers outgrow


def plate(width: int = 320, height: int = 240) -> Image.Image:
    """An orange disc on a textured table: smooth areas, edges and noise."""
    noise = np.random.default_rng(7).integers(0, 40, (height, width, 3), np.uint8)
    image = Image.fromarray(noise + np.array([90, 60, 40], np.uint8))
    draw = ImageDraw.Draw(image)
    side = min(width, height)
    centre = (width / 2, height / 2)
    draw.circle(centre, side * 0.45, fill=(240, 240, 235))
    draw.circle(centre, side * 0.3, fill=(230, 120, 30))
    draw.rectangle((0, 0, width / 8, height / 8), fill=(20, 160, 40))
    return image


def encode(image: Image.Image, format_: str = "JPEG", **options: Any) -> bytes:
    """The bytes of a picture file; `options` are Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def jpeg(width: int = 320, height: int = 240) -> bytes:
    """An ordinary photo-like file."""
    return encode(plate(width, height), quality=85)


def segment(marker: int, content: bytes) -> bytes:
    """Of a JPEG: its marker's second byte, and what follows the length."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg_with(content: bytes) -> bytes:
    """A JPEG with something after its first marker."""
    data = jpeg(64, 48)
    return data[:2] + content + data[2:]


def rotated(orientation: int, format_: str = "JPEG") -> bytes:
    """A picture that says by EXIF, or an AVIF in its own way, how it is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(plate(), format_, exif=exif)


def sixteen_bit_png() -> bytes:
    """Grey, 16 bits a pixel."""
    return encode(Image.fromarray((np.arange(64 * 64) * 16).astype(np.uint16).reshape(64, 64)), "PNG")


def palette_with_transparency() -> bytes:
    """A PNG whose palette has a transparent entry."""
    image = plate().convert("P", palette=Image.Palette.ADAPTIVE)
    return encode(image, "PNG", transparency=0)


def animated(format_: str) -> bytes:
    """Three frames, of which the first one counts."""
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    return encode(frames[0], format_, save_all=True, append_images=frames[1:])


def png(
    width: int, height: int, data: bytes, depth: int = 8, colour: int = 2, more: bytes = b""
) -> bytes:
    """A PNG file from its parts, however wrong they are; `more` are chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more
    return start + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    """Of a PNG."""
    crc = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def png_with_key(depth: int, pixels: Sequence[Sequence[int]], key: Sequence[int]) -> bytes:
    """A PNG with one row of these pixels, grey or RGB, of which the colour `key` is transparent."""
    colour = 0 if len(key) == 1 else 2
    bits = "".join(f"{value:0{depth}b}" for pixel in pixels for value in pixel)
    row = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    more = chunk(b"tRNS", struct.pack(f">{len(key)}H", *key))
    return png(len(pixels), 1, zlib.compress(b"\0" + row), depth, colour, more)


def avif(width: int, height: int) -> bytes:
    """A small AVIF that says it has this size."""
    data = encode(plate(64, 48), "AVIF")
    place = data.index(b"ispe") + 8
    return data[:place] + struct.pack(">II", width, height) + data[place + 8 :]


def avif_with_metadata(size: int, behind: bytes = b"") -> bytes:
    """An AVIF with so many bytes that are no pixels, at its end behind some others."""
    return encode(plate(64, 48), "AVIF") + behind + struct.pack(">I4s", 8 + size, b"meta") + bytes(size)


def bomb(width: int = 30_000, height: int = 30_000) -> bytes:
    """A small file that unpacks to 900 million pixels of one bit."""
    row = b"\x00" * (width // 8 + 1)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, data, depth=1, colour=0)


def tiff_with_tiles(tile: int, width: int = 1, height: int = 1) -> bytes:
    """A TIFF whose tiles are far larger than the picture."""
    data = zlib.compress(bytes(1000))
    tags = [
        *((256, width), (257, height), (258, 8), (259, 8), (262, 1), (277, 1)),
        *((322, tile), (323, tile), (324, 8), (325, len(data))),
    ]
    start = 8 + len(data)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", start) + data + directory


def tiff_of_12_bits(value: int, width: int = 10, height: int = 10) -> bytes:
    """A grey TIFF whose pixels all have this value, from 0 to 4095."""
    data = (value << 12 | value).to_bytes(3, "big") * (width * height // 2)
    return tiff_of_a_strip(data, width, height, 12, 1)


def tiff_of_jpeg(data: bytes, width: int, height: int) -> bytes:
    """A grey TIFF with a JPEG in it."""
    return tiff_of_a_strip(data, width, height, 8, 7)


def tiff_of_a_strip(data: bytes, width: int, height: int, bits: int, compression: int) -> bytes:
    """A grey TIFF of these bytes."""
    tags = [
        *((256, width), (257, height), (258, bits), (259, compression), (262, 1)),
        *((273, 8), (277, 1), (278, height), (279, len(data))),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(data))
    return head + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def jpeg_with_scans(count: int, image: Image.Image | None = None) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = encode(image or plate(64, 48), progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + scan * count + data[-2:]


READABLE: dict[str, Callable[[], bytes]] = {
    "jpeg": jpeg,
    "jpeg large": lambda: jpeg(1600, 1200),
    "jpeg grey": lambda: encode(plate().convert("L")),
    "jpeg cmyk": lambda: encode(plate().convert("CMYK")),
    "jpeg progressive": lambda: encode(plate(), progressive=True),
    "jpeg without its end": lambda: jpeg()[:-2],
    "jpeg rotated": lambda: rotated(6),
    "jpeg unknown rotation": lambda: rotated(99),
    "png": lambda: encode(plate(), "PNG"),
    "png alpha": lambda: encode(plate().convert("RGBA"), "PNG"),
    "png grey alpha": lambda: encode(plate().convert("LA"), "PNG"),
    "png palette": palette_with_transparency,
    "png one bit": lambda: encode(plate().convert("1"), "PNG"),
    "png 16 bit": sixteen_bit_png,
    "webp": lambda: encode(plate(), "WEBP"),
    "webp alpha": lambda: encode(plate().convert("RGBA"), "WEBP"),
    "webp animated": lambda: animated("WEBP"),
    "gif": lambda: encode(plate(), "GIF"),
    "gif animated": lambda: animated("GIF"),
    "avif": lambda: encode(plate(), "AVIF"),
    "avif alpha": lambda: encode(plate().convert("RGBA"), "AVIF"),
    "avif animated": lambda: animated("AVIF"),
    "bmp": lambda: encode(plate(), "BMP"),
    "tiff": lambda: encode(plate(), "TIFF"),
    "tiff lzw": lambda: encode(plate(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": lambda: encode(plate().convert("CMYK"), "TIFF"),
    "tiff float": lambda: encode(Image.fromarray(np.full((9, 9), np.nan, np.float32)), "TIFF"),
    "tiff 32 bit": lambda: encode(Image.fromarray(np.full((9, 9), 2**30, np.int32)), "TIFF"),
    "1x1": lambda: encode(plate(1, 1), "PNG"),
    "30000x1": lambda: encode(Image.new("RGB", (30_000, 1), "red"), "PNG"),
    "1x30000": lambda: encode(Image.new("RGB", (1, 30_000), "red"), "PNG"),
}
"""Odd, but pictures: they are classified."""


def truncated(format_: str) -> Callable[[], bytes]:
    """The first half of a file."""
    return lambda: (data := encode(plate(), format_))[: len(data) // 2]


def corrupted(format_: str) -> Callable[[], bytes]:
    """A file whose middle third is gone to zero, its header whole."""

    def make() -> bytes:
        data = encode(plate(), format_)
        third = len(data) // 3
        return data[:third] + bytes(third) + data[2 * third :]

    return make


UNREADABLE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "one byte": lambda: b"\xff",
    "text": lambda: b"this is not a picture",
    "svg": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "pdf": lambda: b"%PDF-1.4\n%%EOF",
    "zip": lambda: b"PK\x03\x04" + bytes(100),
    "header only": lambda: png(8, 8, b""),
    "png rows missing": lambda: png(64, 64, zlib.compress(bytes(100))),
    "jpeg of many scans": lambda: jpeg_with_scans(1000),
    "png size 0": lambda: png(0, 0, zlib.compress(b"")),
    "jpeg without its last bits": lambda: jpeg()[:-4],
    "avif of much metadata": lambda: avif_with_metadata(40_000),
    "avif of metadata behind others": lambda: avif_with_metadata(
        40_000, struct.pack(">I4sQ", 1, b"mdat", 16)
    ),
    "avif of many parts": lambda: avif_with_metadata(0) + b"av01" * 16,
    "heic": lambda: b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic",
    **{f"{f} truncated": truncated(f) for f in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")},
    **{f"{f} corrupted": corrupted(f) for f in ("PNG",)},
}
"""400 invalid_image."""

TOO_LARGE: dict[str, Callable[[], bytes]] = {
    "bomb": bomb,
    "promise": lambda: png(2**31 - 1, 2**31 - 1, b""),
    "avif promise": lambda: avif(16_000, 16_000),
    "tiff of large tiles": lambda: tiff_with_tiles(16384),
    "just over": lambda: encode(Image.new("1", (10_000, 5_201)), "PNG"),
}
"""413 image_too_large."""

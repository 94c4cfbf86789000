"""File names made harmless, thumbnails, and files that need converting."""

import base64
import importlib.util
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, features

from flask_app import photos
from flask_app.errors import UploadError
from tests import pictures

IMAGE_WIDTH, MAKE, ORIENTATION = 0x0100, 0x010F, 0x0112  # tags of Exif
NEEDS_AVIF = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic"


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (640, 320)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, "red").save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("soup.jpg", "soup.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\soup.jpg", "soup.jpg"),
        ("a\u202egpj.exe\x00\n", "agpj.exe"),
        ("", "photo"),
        (None, "photo"),
        ("/", "photo"),
        ("x" * 500 + ".jpeg", "x" * 68 + "\u2026xxxxxx.jpeg"),
    ],
)
def test_names(name: str | None, harmless: str) -> None:
    assert photos.harmless_name(name) == harmless


@given(st.text())
def test_any_name_becomes_short_and_printable(name: str) -> None:
    harmless = photos.harmless_name(name)
    assert 0 < len(harmless) <= photos.MAX_NAME
    assert "/" not in harmless
    assert "\n" not in harmless


def test_thumbnail_is_small() -> None:
    url = photos.Decoder().thumbnail(picture("PNG", "RGBA", (3000, 1500)))
    head, coded = (url or ",").split(",")
    assert head == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(coded))) as image:
        assert image.size == (photos.THUMBNAIL_SIDE, photos.THUMBNAIL_SIDE // 2)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pictures.encode(Image.fromarray(np.full((9, 9), 0x4000, np.uint16)), "PNG"), (64, 64, 64)),
        (pictures.encode(Image.fromarray(np.full((9, 9), 0x4000, np.uint16)), "TIFF"), (64, 64, 64)),
        (pictures.encode(Image.new("I", (9, 9), 0x4000), "TIFF"), (64, 64, 64)),
        (pictures.encode(Image.new("I", (9, 9), 77), "TIFF"), (77, 77, 77)),
        (pictures.encode(Image.new("F", (9, 9), 0.5), "TIFF"), (127, 127, 127)),
        (pictures.encode(Image.new("F", (9, 9), 77.0), "TIFF"), (77, 77, 77)),
        (pictures.encode(Image.new("RGBA", (9, 9), (77, 77, 77, 0)), "TIFF"), (77, 77, 77)),
        (pictures.encode(Image.new("RGBA", (9, 9), (77, 77, 77, 0)), "PNG"), (255, 255, 255)),
    ],
)
def test_thumbnails_have_the_shades_that_the_api_reads(
    content: bytes, expected: tuple[int, int, int]
) -> None:
    url = photos.Decoder().thumbnail(content) or ","
    with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as image:
        assert image.getpixel((4, 4)) == expected


def test_many_scans_have_no_thumbnail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "MAX_PIXELS", 2 * 64 * 48)
    assert photos.Decoder().thumbnail(pictures.jpeg_with_scans(1))
    assert photos.Decoder().thumbnail(pictures.jpeg_with_scans(3 * photos.USUAL_SCANS)) is None


@given(st.binary(max_size=200))
@example(picture("JPEG")[:700])
@example(picture("EPS"))  # Pillow would run Ghostscript on it
def test_what_is_no_picture_has_no_thumbnail(content: bytes) -> None:
    assert photos.Decoder().thumbnail(content) is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_what_the_api_reads_is_left_alone(kind: str) -> None:
    content = picture(kind)
    assert photos.Decoder().for_the_api(content) is content


def branded(content: bytes, brand: bytes) -> bytes:
    """Returns a HEIC or AVIF file with another major brand; its compatible brands stay."""
    return content[:8] + brand + content[12:]


@NEEDS_AVIF
@pytest.mark.parametrize("brand", [b"avif", b"avis", b"mif1", b"msf1"])
def test_the_first_picture_of_an_avif_file_becomes_jpeg(brand: bytes) -> None:
    buffer = io.BytesIO()
    red, blue = (Image.new("RGB", (64, 48), colour) for colour in ("red", "blue"))
    is_sequence = brand in (b"avis", b"msf1")
    red.save(buffer, "AVIF", save_all=is_sequence, append_images=[blue] * is_sequence)
    content = branded(buffer.getvalue(), brand)
    assert (photos.Decoder().thumbnail(content) or "").startswith("data:image/jpeg;base64,")
    with Image.open(io.BytesIO(photos.Decoder().for_the_api(content))) as image:
        middle = np.asarray(image)[20, 30]
        assert image.format == "JPEG"
    assert middle[0] > 200 > 50 > middle[2]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xffftypmif1\0\0\0\0" + b"mif1" * 100_000 + b"avif",
        b"\0\0\0\x10ftypmif1\0\0\0\0avif",  # after the end of the box
        b"\0\0\0\0ftypmsf1",
        HEIC,
    ],
)
def test_heic_without_a_decoder_is_an_error(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UploadError, match="pillow-heif"):
        photos.Decoder().for_the_api(content)
    assert photos.Decoder().thumbnail(content) is None


def test_a_damaged_tiff_is_no_matter_for_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    data = pictures.encode(pictures.plate().convert("1"), "TIFF", compression="group4")
    photos.Decoder().thumbnail(data[:8] + b"\xa5" * 200 + data[208:])
    assert not capfd.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("pillow_heif") is None, reason="no pillow-heif")
@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_heic_becomes_jpeg_and_has_a_thumbnail(brand: bytes) -> None:
    photos._register_heic()
    content = branded(picture("HEIF"), brand)
    assert photos.Decoder().for_the_api(content).startswith(b"\xff\xd8")
    assert (photos.Decoder().thumbnail(content) or "").startswith("data:image/jpeg;base64,")
    with pytest.raises(UploadError):
        photos.Decoder().for_the_api(HEIC)


@NEEDS_AVIF
def test_avif_with_much_metadata_is_refused_before_it_is_decoded() -> None:
    content = picture("AVIF")
    assert photos.Decoder().for_the_api(content + (8).to_bytes(4) + b"mdat")
    junk = 100_000
    with pytest.raises(UploadError, match="metadata"):
        photos.Decoder().for_the_api(content + junk.to_bytes(4) + b"meta" + bytes(junk - 8))
    assert photos.Decoder().thumbnail(content + junk.to_bytes(4) + b"meta" + bytes(junk - 8)) is None


@NEEDS_AVIF
def test_broken_avif_is_an_error() -> None:
    """The AVIF decoder raises an exception of its own kind."""
    content = picture("AVIF")
    for end in range(16, len(content), 7):
        with pytest.raises(UploadError):
            photos.Decoder().for_the_api(content[:end])


def test_hostile_metadata_has_no_thumbnail() -> None:
    """Pillow rewrites the metadata when it turns the image; here the width in it is a text."""
    exif = Image.Exif()
    exif[ORIENTATION], exif[MAKE] = 6, "abc"
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40), "red").save(buffer, "WEBP", exif=exif)
    assert photos.Decoder().thumbnail(buffer.getvalue()) is not None
    hostile = buffer.getvalue().replace(MAKE.to_bytes(2), IMAGE_WIDTH.to_bytes(2))
    assert photos.Decoder().thumbnail(hostile) is None


@NEEDS_AVIF
def test_a_large_picture_is_converted_smaller() -> None:
    buffer = io.BytesIO(photos.Decoder().for_the_api(picture("AVIF", size=(5000, 100))))
    with Image.open(buffer) as image:
        assert image.size == (photos.CONVERTED_SIDE, 82)


@NEEDS_AVIF
def test_all_decoding_is_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding several images at the same time would take the memory of all of them."""
    threads = []

    def note(*_: object) -> bytes:
        threads.append(threading.get_ident())
        return b""

    monkeypatch.setattr(photos, "_jpeg", note)
    decoder = photos.Decoder()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decoder.thumbnail, [b""] * 8))
        list(pool.map(decoder.for_the_api, [b"\0\0\0\x0cftypavif"] * 8))
    assert len(threads) == 16
    assert len(set(threads)) == 1

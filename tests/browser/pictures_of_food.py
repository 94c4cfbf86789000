"""Files that the browser tests upload."""

import io
from pathlib import Path
from typing import TypedDict

from PIL import Image

from flask_app.samples import FOLDER

EGG = FOLDER / "eggs.jpg"
RICE = FOLDER / "rice.jpg"
SOUP = FOLDER / "soup.jpg"
GPS_IFD = 0x8825
ORIENTATION = 0x0112


class FilePayload(TypedDict):
    """File in the shape that Playwright takes."""

    name: str
    mimeType: str
    buffer: bytes


def payload(name: str, content: bytes, kind: str = "image/jpeg") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


def from_a_phone(folder: Path) -> Path:
    """Returns a large photo that EXIF turns by 90 degrees, with the place in its metadata."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    exif.get_ifd(GPS_IFD).update({1: "N", 2: (48.0, 12.0, 30.0), 3: "E", 4: (16.0, 22.0, 0.0)})
    path = folder / "IMG_0001.jpg"
    Image.open(SOUP).resize((3000, 2000)).save(path, exif=exif, quality=90)
    return path


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image

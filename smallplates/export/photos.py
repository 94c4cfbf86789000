"""Photos of a folder or a zip file, decoded as they are served; for quantisation."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import typer
from numpy.typing import NDArray
from tqdm import tqdm

from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.tasks.image.decode import ImageDecoder

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"}
MAX_PIXELS = 100_000_000
SEED = 0

File = tuple[PurePosixPath, Callable[[], bytes]]
"""Path inside the folder or zip, and a function that reads the file."""


@dataclass(frozen=True)
class Photos:
    """Decoded photos, in random order."""

    pixels: NDArray[np.uint8]
    """[N, height, width, 3]."""

    labels: NDArray[np.int64] | None
    """Class indices [N]; None unless the folders of all photos name classes."""

    def __len__(self) -> int:
        return len(self.pixels)

    def part(self, start: int, end: int | None = None) -> "Photos":
        """Returns the photos from `start` to `end`."""
        labels = None if self.labels is None else self.labels[start:end]
        return Photos(self.pixels[start:end], labels)


def read(path: Path, model: Model, most: int) -> Photos:
    """Reads up to `most` photos of a folder or a zip file, chosen at random, always the same.

    A photo's class is the name of its folder: a label of the model, or an index. Files that are no
    photos are left out. Raises ConfigurationError if there is none, and OSError.
    """
    every = files(path)
    order = np.random.default_rng(SEED).permutation(len(every)).tolist()
    decoder = ImageDecoder(model.description.pipeline, MAX_PIXELS)
    pixels, labels, unread = [], [], 0
    for name, data in tqdm([every[i] for i in order], desc=f"reading {path.name}", delay=2):
        try:
            pixels.append(decoder.decode(data()))
        except Exception:  # no photo, or damaged or encrypted in the zip file
            unread += 1
            continue
        labels.append(class_index(name.parent.name, model.labels))
        if len(pixels) == most:
            break
    if not pixels:
        raise ConfigurationError(f"{path} has no readable photo")
    if unread:
        typer.echo(f"{path}: {unread} files cannot be read and are skipped")
    return Photos(np.stack(pixels), None if None in labels else np.array(labels, np.int64))


def files(path: Path) -> list[File]:
    """Lists the files of a folder or a zip file that are photos by name, in the order of their names.

    Raises ConfigurationError and OSError.
    """
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        return [(PurePosixPath(file.relative_to(path).as_posix()), file.read_bytes) for file in inside]
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ConfigurationError(f"{path} is neither a folder nor a zip file of photos") from error
    names = sorted(name for name in archive.namelist() if PurePosixPath(name).suffix.lower() in SUFFIXES)
    return [(PurePosixPath(name), partial(archive.read, name)) for name in names]


def class_index(word: str, labels: list[str]) -> int | None:
    """Returns the class that a label, or an index of one, names; None if it names none."""
    if word in labels:
        return labels.index(word)
    return int(word) if word.isdecimal() and int(word) < len(labels) else None

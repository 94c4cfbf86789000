"""Training photos: reads zips into memory; for `training.photos` and `training.evaluate`.

A zip holds files named `CC/SOURCE-DISH-NUMBER.jpg` or `CC/SOURCE-NUMBER.jpg`, where CC is the two-digit
class index.
"""

import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm


def iterate(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yields (the JPEG file's bytes, class index), in the order of the zip file."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".jpg"):
                yield archive.read(name), int(name.split("/", 1)[0])


@dataclass(frozen=True)
class Kind:
    """Photos of one size."""

    photos: Tensor
    """uint8 [N, 3, side, side]."""

    classes: Tensor
    """int64 [N]."""

    names: list[str]
    """Source, and dish if it is known: `food101-ramen`, `bakery`."""

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> "Kind":
        """Returns it with its tensors on this device."""
        return Kind(self.photos.to(device), self.classes.to(device), self.names)


def read(side: int, *paths: Path) -> Kind:
    """Decodes whole zips, and cuts out the centres. 45,418 photos of 64x64 take 560 MB."""
    parts, names = [], []
    for path in paths:
        with zipfile.ZipFile(path) as archive, ThreadPoolExecutor() as pool:
            here = [name for name in archive.namelist() if name.endswith(".jpg")]
            photos = torch.empty(len(here), 3, side, side, dtype=torch.uint8)

            def decode(
                number: int, name: str, archive: zipfile.ZipFile = archive, photos: Tensor = photos
            ) -> None:
                with Image.open(io.BytesIO(archive.read(name))) as photo:
                    square = ImageOps.fit(photo.convert("RGB"), (side, side))
                photos[number] = torch.from_numpy(np.array(square)).permute(2, 0, 1)

            done = pool.map(decode, range(len(here)), here)
            for _ in tqdm(done, f"reading {path.name}", len(here), unit=" photos", mininterval=2):
                pass
        parts.append(photos)
        names += here
    classes = torch.tensor([int(name.partition("/")[0]) for name in names])
    return Kind(torch.cat(parts), classes, [name.partition("/")[2].rpartition("-")[0] for name in names])

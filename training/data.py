"""Training photos: reads zips into memory; for `training.food11` and `training.evaluate`.

A zip holds JPEG files named `CC/SOURCE-DISH-NUMBER.jpg`, where CC is the two-digit class index.
"""

import io
import zipfile
from collections.abc import Iterator
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
    """Photos of one size and origin."""

    photos: Tensor
    """uint8 [N, 3, side, side]."""

    classes: Tensor
    """int64 [N]."""

    dishes: list[str]
    """What each shows, by its file's name: `food101-ramen`."""

    def __len__(self) -> int:
        return len(self.classes)

    def part(self, chosen: Tensor) -> "Kind":
        """Returns the photos with these indices, or where this is True."""
        numbers = torch.arange(len(self))[chosen]
        return Kind(
            self.photos[numbers], self.classes[numbers], [self.dishes[i] for i in numbers.tolist()]
        )


def read(path: Path, side: int) -> Kind:
    """Decodes a whole zip, and cuts out the centres. 45,418 photos of 64x64 take 560 MB."""
    photos, dishes = [], []
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        for name in tqdm(names, desc=f"reading {path.name}", unit=" photos", mininterval=2):
            with Image.open(io.BytesIO(archive.read(name))) as photo:
                square = ImageOps.fit(photo.convert("RGB"), (side, side))
            photos.append(np.asarray(square).transpose(2, 0, 1))
            dishes.append(name.partition("/")[2].rpartition("-")[0])
    classes = torch.tensor([int(name.partition("/")[0]) for name in names])
    return Kind(torch.from_numpy(np.stack(photos)), classes, dishes)

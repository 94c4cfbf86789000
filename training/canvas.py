"""Canvas for draw_samples.py: paints masks and height maps, NumPy arrays, under one light."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Field = NDArray[np.float64]
Colour = tuple[float, float, float]

WIDTH, HEIGHT, SCALE = 480, 360, 2
LIGHT = np.array([-0.55, -0.6, 0.58])


class Canvas:
    """RGB image in [0, 1]; coordinates are pixels of the finished image."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        rows, columns = np.mgrid[0 : HEIGHT * SCALE, 0 : WIDTH * SCALE] / SCALE
        self.x: Field = columns
        self.y: Field = rows
        self.pixels: Field = np.ones((*rows.shape, 3))

    def noise(self, size: float) -> Field:
        """Returns smooth noise in about [-1, 1] with spots of `size` pixels."""
        shape = (int(HEIGHT / size) + 2, int(WIDTH / size) + 2)
        coarse = Image.fromarray(self.random.standard_normal(shape).astype(np.float32))
        fine = coarse.resize((WIDTH * SCALE, HEIGHT * SCALE), Image.Resampling.BICUBIC)
        return np.asarray(fine, dtype=np.float64)

    def distance(self, x: float, y: float, rx: float, ry: float, turn: float = 0) -> Field:
        """Returns the distance from an ellipse's centre: 0 there, 1 on its rim."""
        c, s = np.cos(turn), np.sin(turn)
        dx, dy = self.x - x, self.y - y
        return np.asarray(np.hypot((dx * c + dy * s) / rx, (dy * c - dx * s) / ry))

    def paint(self, mask: Field, colour: Field | Colour) -> None:
        """Paints a colour where the mask is 1."""
        alpha = np.clip(mask, 0, 1)[..., None]
        self.pixels = self.pixels * (1 - alpha) + np.clip(colour, 0, 1) * alpha

    def shade(self, mask: Field, strength: float) -> None:
        """Darkens where the mask is 1; a negative `strength` lightens towards white."""
        self.paint(
            np.clip(mask, 0, 1) * abs(strength),
            (0.08, 0.05, 0.02) if strength > 0 else (1, 1, 0.97),
        )

    def lit(self, colour: Colour, height: Field, gloss: float = 0.0) -> Field:
        """Returns the colour under a light from the upper left; `gloss` adds a highlight."""
        dy, dx = np.gradient(height)
        normal = np.stack([-dx * SCALE, -dy * SCALE, np.ones_like(dx)], axis=-1)
        normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
        brightness = np.clip(normal @ LIGHT, 0, 1)
        shine = np.clip(brightness, 0, 1) ** 40 * gloss
        return np.asarray(np.array(colour) * (0.45 + 0.72 * brightness)[..., None] + shine[..., None])

    def ball(
        self,
        x: float,
        y: float,
        rx: float,
        ry: float,
        colour: Colour,
        *,
        turn: float = 0,
        rough: float = 0.0,
        gloss: float = 0.0,
        spot: float = 6,
    ) -> Field:
        """Paints a lit ellipsoid with a soft shadow; returns its mask."""
        shadow = self.distance(x + rx * 0.12, y + ry * 0.2, rx * 1.12, ry * 1.1, turn)
        self.shade(soft(shadow, 0.35), 0.45)
        d = self.distance(x, y, rx, ry, turn)
        mask = soft(d, 2.0 / min(rx, ry))
        height = np.sqrt(np.clip(1 - d**2, 0, None)) * min(rx, ry) * 0.9
        grain = self.noise(spot) * rough
        self.paint(mask, self.lit(colour, height + grain * 2, gloss) * (1 + grain[..., None] * 0.25))
        return mask

    def table(self, colour: Colour, grain: float = 0.06) -> None:
        """Paints a wooden board with a vignette."""
        bent = self.y + self.noise(90) * 7
        stripes = np.sin(bent / 5.5) * 0.5 + np.sin(bent / 2.1 + self.noise(60)) * 0.5
        planks = np.where(np.mod(self.y, 92) < 1.6, -2.2, 0)
        wood = 1 + grain * (stripes + planks) + 0.02 * self.noise(2)
        self.pixels = np.array(colour) * wood[..., None]
        corner = self.distance(WIDTH * 0.42, HEIGHT * 0.38, WIDTH * 0.8, HEIGHT * 0.9)
        self.shade(np.clip(corner - 0.45, 0, 1), 0.6)

    def plate(self, x: float, y: float, rx: float, ry: float, colour: Colour) -> None:
        """Paints a plate with a rim and a well."""
        self.shade(soft(self.distance(x + 8, y + 14, rx * 1.03, ry * 1.05), 0.14), 0.6)
        d = self.distance(x, y, rx, ry)
        rim = 5 * np.exp(-(((d - 0.97) / 0.03) ** 2)) - 8 * smooth((0.78 - d) / 0.1)
        self.paint(soft(d, 0.01), self.lit(colour, rim + self.noise(120) * 0.5, 0.12))

    def save(self, path: Path) -> None:
        """Downsizes the image, adds camera noise, and writes a small JPEG."""
        grain = self.random.normal(0, 0.012, self.pixels.shape)
        array = (np.clip(self.pixels + grain, 0, 1) * 255).astype(np.uint8)
        image = Image.fromarray(array).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        image = image.filter(ImageFilter.GaussianBlur(0.4))
        image.save(path, "JPEG", quality=82, optimize=True)


def smooth(value: Field) -> Field:
    """Returns 0 below 0, 1 above 1, and a smooth step between."""
    t = np.clip(value, 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def soft(distance: Field, edge: float) -> Field:
    """Returns 1 inside a shape and 0 outside, with an edge of width `edge`."""
    return smooth((1 + edge - distance) / (2 * edge))

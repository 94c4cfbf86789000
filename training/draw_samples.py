"""Draws the sample images: `python -m training.draw_samples`.

They are drawn so that the default model recognises them, and say nothing about its accuracy.

Every image is painted at twice its size from a mask and a height map per shape, lit from the upper
left, and then downsized. Seeds are fixed, so that the files are always the same.
"""

import sys
from collections.abc import Callable

import numpy as np

from flask_app.samples import FOLDER
from training.canvas import SCALE, Canvas, Colour, smooth, soft


def eggs(canvas: Canvas) -> None:
    """Draws six devilled eggs on a plate."""
    canvas.table((0.45, 0.29, 0.18))
    canvas.plate(240, 186, 212, 166, (0.80, 0.84, 0.88))
    for x, y in ((130, 130), (240, 110), (350, 130), (130, 235), (240, 255), (350, 235)):
        turn = canvas.random.uniform(-0.6, 0.6)
        canvas.shade(soft(canvas.distance(x + 5, y + 8, 54, 42, turn), 0.1), 0.4)
        d = canvas.distance(x, y, 52, 40, turn)
        height = 6 * smooth((1 - d) / 0.3) + canvas.noise(20) * 0.4
        canvas.paint(soft(d, 0.03), canvas.lit((0.98, 0.96, 0.92), height, 0.15))
        canvas.ball(x, y, 34, 28, (0.96, 0.80, 0.30), rough=1.0, gloss=0.1, spot=5)
        pepper(canvas, 14, x, y, 31, 25, (0.65, 0.15, 0.05))


def pepper(canvas: Canvas, count: int, x: float, y: float, rx: float, ry: float, colour: Colour) -> None:
    """Strews small crumbs over an ellipse."""
    for _ in range(count):
        angle, far = canvas.random.uniform(0, 2 * np.pi), np.sqrt(canvas.random.uniform())
        size = canvas.random.uniform(0.7, 1.7)
        d = canvas.distance(x + rx * far * np.cos(angle), y + ry * far * np.sin(angle), size, size)
        canvas.paint(soft(d, 0.6) * 0.85, colour)


def leaf(canvas: Canvas, x: float, y: float, size: float, turn: float) -> None:
    """Draws a small green leaf with a rib."""
    colour = (0.22, 0.45 + canvas.random.uniform(0, 0.12), 0.12)
    canvas.ball(x, y, size, size * 0.42, colour, turn=turn, rough=0.3, spot=3)
    canvas.shade(soft(canvas.distance(x, y, size * 0.85, 1.1, turn), 0.9), -0.4)


def soup(canvas: Canvas) -> None:
    """Draws tomato soup in a bowl, with cream and herbs."""
    canvas.table((0.60, 0.50, 0.40), 0.05)
    canvas.plate(240, 190, 212, 160, (0.88, 0.85, 0.80))
    canvas.shade(soft(canvas.distance(248, 202, 172, 136), 0.1), 0.55)
    d = canvas.distance(240, 180, 166, 130)
    bowl = 8 * np.exp(-(((d - 0.96) / 0.035) ** 2)) - 30 * smooth((0.93 - d) / 0.12)
    canvas.paint(soft(d, 0.012), canvas.lit((0.95, 0.93, 0.88), bowl, 0.15))
    d = canvas.distance(240, 186, 144, 110)
    surface = canvas.noise(30) * 1.2 + canvas.noise(8) * 0.25
    liquid = canvas.lit((0.86, 0.35, 0.10), surface, 0.05) * (1 + canvas.noise(30) * 0.05)[..., None]
    canvas.paint(soft(d, 0.015), liquid)
    canvas.shade(smooth((d - 0.8) / 0.2) * soft(d, 0.015), 0.4)
    angle = np.arctan2(canvas.y - 186, canvas.x - 240)
    swirl = np.abs(np.sin((np.log(d + 0.05) * 2.3 - angle) / 2 + canvas.noise(60) * 0.12))
    cream = smooth((0.24 - swirl) / 0.16) * smooth((0.66 - d) / 0.12) * smooth(d / 0.1)
    canvas.paint(cream * 0.9, (0.99, 0.93, 0.82))
    for _ in range(9):
        x, y = canvas.random.normal((240, 182), (40, 28))
        leaf(canvas, x, y, canvas.random.uniform(9, 16), canvas.random.uniform(0, np.pi))
    pepper(canvas, 70, 240, 186, 125, 92, (0.16, 0.08, 0.05))


def bread(canvas: Canvas) -> None:
    """Draws a scored loaf."""
    canvas.table((0.40, 0.28, 0.18), 0.04)
    loaf = canvas.ball(236, 180, 225, 135, (0.80, 0.52, 0.22), turn=-0.12, rough=0.3, spot=7)
    for x, y in ((109, 192), (236, 180), (363, 168)):
        flesh = canvas.lit((0.93, 0.76, 0.48), canvas.noise(4) * 0.5)
        canvas.paint(soft(canvas.distance(x, y - 8, 80, 13, -1.0), 0.3) * loaf * 0.9, flesh)
        canvas.shade(soft(canvas.distance(x + 10, y - 2, 72, 5, -1.0), 0.6) * loaf, 0.5)


def rice(canvas: Canvas) -> None:
    """Draws white rice heaped in a dark bowl."""
    canvas.table((0.30, 0.22, 0.16))
    canvas.shade(soft(canvas.distance(252, 214, 196, 146), 0.12), 0.65)
    d = canvas.distance(240, 196, 190, 140)
    bowl = 8 * np.exp(-(((d - 0.95) / 0.035) ** 2)) - 20 * smooth((0.92 - d) / 0.1)
    canvas.paint(soft(d, 0.01), canvas.lit((0.20, 0.27, 0.36), bowl, 0.2))
    canvas.paint(soft(canvas.distance(240, 186, 158, 114), 0.04), (0.70, 0.67, 0.60))
    spots = canvas.random.uniform(-1, 1, (2600, 2))
    spots = spots[np.hypot(spots[:, 0], spots[:, 1]) < 1]
    for u, v in spots[np.argsort(-np.hypot(spots[:, 0], spots[:, 1]))]:
        grain(canvas, 240 + 156 * u, 186 + 112 * v - 26 * (1 - u * u - v * v), 1 - np.hypot(u, v))
    for _ in range(22):
        x, y = canvas.random.normal((240, 160), (36, 22))
        d = canvas.distance(x, y, 4.5, 3.2, canvas.random.uniform(0, 3))
        canvas.paint(soft(d, 0.25), (0.34, 0.58, 0.20))
        canvas.paint(soft(d / 0.5, 0.4), (0.72, 0.85, 0.50))


def grain(canvas: Canvas, x: float, y: float, inner: float) -> None:
    """Draws one grain of rice, in a small window of the canvas for speed."""
    turn = canvas.random.uniform(0, np.pi)
    top, left = int(max(0, (y - 10) * SCALE)), int(max(0, (x - 10) * SCALE))
    window = (slice(top, top + 20 * SCALE), slice(left, left + 20 * SCALE))
    c, s = np.cos(turn), np.sin(turn)
    dx, dy = canvas.x[window] - x, canvas.y[window] - y
    d = np.hypot((dx * c + dy * s) / 6.6, (dy * c - dx * s) / 2.5)
    shadow = np.hypot(((dx - 1) * c + (dy - 1.7) * s) / 7.2, ((dy - 1.7) * c - (dx - 1) * s) / 3.2)
    light = np.clip(0.90 - 0.035 * dx - 0.06 * dy + 0.10 * min(inner, 0.5), 0.55, 1.0)
    for mask, colour in (
        (soft(shadow, 0.5) * 0.34, np.array((0.33, 0.29, 0.22))),
        (soft(d, 0.2), np.array((0.98, 0.93, 0.80)) * light[..., None]),
    ):
        part = canvas.pixels[window]
        canvas.pixels[window] = part * (1 - mask[..., None]) + colour * mask[..., None]


def oranges(canvas: Canvas) -> None:
    """Draws rows of oranges, as in a crate."""
    canvas.table((0.30, 0.20, 0.12), 0.03)
    for row, y in enumerate((40, 130, 220, 310)):
        for x in range(-20 + row % 2 * 58, 540, 116):
            x_off, y_off = canvas.random.normal(0, 4, 2)
            colour = (0.97, 0.50, 0.05)
            canvas.ball(x + x_off, y + y_off, 62, 60, colour, rough=0.2, gloss=0.3, spot=2.6)
            canvas.shade(soft(canvas.distance(x - 6, y - 4, 4, 3), 0.6), 0.5)


def noodles(canvas: Canvas) -> None:
    """Draws spaghetti with tomato sauce and basil."""
    canvas.table((0.56, 0.44, 0.33))
    canvas.plate(240, 184, 206, 160, (0.93, 0.92, 0.90))
    for i in range(300):
        strand(canvas, 1 - i / 300)
    d = canvas.distance(238, 160, 78, 52) + canvas.noise(16) * 0.14
    height = canvas.noise(9) * 3 + 10 * smooth((1 - d) / 0.6)
    canvas.shade(soft(canvas.distance(242, 167, 80, 54) + canvas.noise(16) * 0.1, 0.15), 0.4)
    canvas.paint(soft(d, 0.06), canvas.lit((0.80, 0.17, 0.07), height, 0.25))
    for x, y, turn in ((226, 146, 0.5), (256, 142, 2.5), (243, 166, 1.4)):
        leaf(canvas, x, y, 26, turn)


def strand(canvas: Canvas, far: float) -> None:
    """Draws one noodle: an arc of an ellipse around the plate's centre, lit along its middle."""
    spread = 0.25 + 0.75 * np.sqrt(far)
    x, y = canvas.random.normal((240, 178), (46 * spread, 32 * spread))
    rx = canvas.random.uniform(28, 30 + 84 * spread)
    ry = rx * canvas.random.uniform(0.5, 0.85)
    turn, start = canvas.random.uniform(0, np.pi), canvas.random.uniform(-np.pi, np.pi)
    d = canvas.distance(x, y, rx, ry, turn)
    angle = np.arctan2(canvas.y - y, canvas.x - x)
    piece = smooth((np.cos(angle - start) + 0.3) / 0.08)
    inside = soft(canvas.distance(240, 180, 158, 118), 0.05) * piece
    across = (d - 1) * (rx + ry) / 2
    tone = 1 + canvas.random.uniform(-0.08, 0.06)
    canvas.shade(np.exp(-(((across - 1.5) / 4.4) ** 2)) * inside, 0.32)
    body = smooth((3.2 - np.abs(across)) / 1.2) * inside
    light = tone * (1.02 - 0.05 * np.abs(across + 1))
    canvas.paint(body, np.array((0.96, 0.80, 0.44)) * light[..., None])


DRAWINGS: dict[str, Callable[[Canvas], None]] = {
    "eggs": eggs,
    "soup": soup,
    "bread": bread,
    "rice": rice,
    "oranges": oranges,
    "noodles": noodles,
}


def main() -> int:
    """Writes all sample images; returns the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed, (key, draw) in enumerate(DRAWINGS.items()):
        canvas = Canvas(seed)
        draw(canvas)
        canvas.save(FOLDER / f"{key}.jpg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

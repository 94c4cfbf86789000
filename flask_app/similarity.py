"""Similarity of texts, from the vectors of an embedding model: a matrix, and the nearest pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul

from flask_app.words import Bar, clip, decimal

PAIRS = 5
NOTE = "Cosine similarity: 1 means the same to this model; texts that have nothing in common are near 0."
ONE = "Add a line, and the page compares the texts."


@dataclass(frozen=True)
class Cell:
    """Similarity of two texts."""

    number: str
    heat: int  # 0 to 10
    kind: str  # `self` for a text with itself, `best` for the nearest pair


@dataclass(frozen=True)
class Similarity:
    """What the page shows of vectors."""

    sentence: str
    note: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...] = ()  # a text, and its similarity to each text
    bars: tuple[Bar, ...] = ()  # the nearest pairs


def similarity(texts: str | Sequence[str], vectors: Sequence[Sequence[float]]) -> Similarity:
    """Compares the vectors of texts by cosine. Raises TypeError or ValueError if they are no vectors."""
    texts = [texts] if isinstance(texts, str) else texts
    units = [unit(vector) for vector in vectors]
    if len(units) != len(texts) or len({len(each) for each in units}) != 1:
        raise ValueError("not one vector of the same length for each text")
    if len(texts) == 1:
        return Similarity(f"A vector of {len(units[0]):,} numbers", ONE)
    cosines = {pair: cosine(*pair, units) for pair in combinations(range(len(texts)), 2)}
    nearest = sorted(cosines, key=cosines.__getitem__, reverse=True)
    best = nearest[0]
    rows = [
        (text, tuple(cell(cosines, best, row, column) for column in range(len(texts))))
        for row, text in enumerate(texts)
    ]
    bars = [
        Bar(
            f"“{clip(texts[first])}” and “{clip(texts[second])}”",
            decimal(cosines[first, second]),
            round(100 * max(0.0, cosines[first, second]), 2),
        )
        for first, second in nearest[:PAIRS]
    ]
    if len(texts) == 2:
        return Similarity(f"Similarity {bars[0].percent}", NOTE, tuple(rows))
    sentence = f"Texts {best[0] + 1} and {best[1] + 1} are the closest: {bars[0].percent}"
    return Similarity(sentence, NOTE, tuple(rows), tuple(bars))


def unit(vector: Sequence[float]) -> list[float]:
    """Returns a vector with length 1; one of zeros stays. Raises TypeError or ValueError."""
    length = math.hypot(*vector)
    if not vector or not math.isfinite(length):
        raise ValueError("not a vector")
    return [number / (length or 1) for number in vector]


def cosine(first: int, second: int, units: Sequence[Sequence[float]]) -> float:
    """Returns the similarity of two texts, from -1 to 1."""
    product: float = sum(map(mul, units[first], units[second]))
    return min(1.0, max(-1.0, product))


def cell(cosines: dict[tuple[int, int], float], best: tuple[int, int], row: int, column: int) -> Cell:
    """Returns a cell of the matrix."""
    if row == column:
        return Cell(decimal(1), 10, "self")
    pair = min(row, column), max(row, column)
    heat = round(10 * max(0.0, cosines[pair]))
    return Cell(decimal(cosines[pair]), heat, "best" if pair == best else "")

"""Upper limit of texts on this machine, in one process and without HTTP; for `compare`.

Each thread tokenises and computes batches of texts of nearly the same length, which no server is sent.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from benchmarks.limit import Work, rate
from benchmarks.peers.text import ClassifyTexts

BATCH = 8
"""On two cores of an EPYC, batches of 4, 8 and 16 came out alike, two threads of one session as well."""


def in_process(
    kind: type[ClassifyTexts],
    model_dir: Path,
    texts: Sequence[str],
    threads: int,
    seconds: float,
    precision: str,
) -> float:
    """Returns the texts a second of `threads` threads, with a session each."""
    works = [work(kind(str(model_dir), precision), texts, first) for first in range(threads)]
    return rate(works, seconds)


def work(classify: ClassifyTexts, texts: Sequence[str], first: int) -> Work:
    """Returns a function that classifies a batch, from the `first` on one after another."""
    order = sorted(texts, key=len)
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    step = 37  # so that short and long batches take turns
    turns: Iterator[int] = cycle(range(first, first + step * len(batches), step))

    def classify_next() -> int:
        return len(classify(batches[next(turns) % len(batches)]))

    return classify_next

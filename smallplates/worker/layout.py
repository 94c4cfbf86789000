"""Layout of a model's workers on a CPU: how many compute at a time, and how many threads each has.

Every worker reads all weights for every batch. If the memory is the limit, one worker with all threads
computes more than several workers with one each; if the cores are the limit, it computes less. The first
worker measures this for all, in a process that loads the model as often as there are to be workers.
Called by `process.py` before it loads the model.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from smallplates.engine.backend import Backend
from smallplates.models.tensors import Signature
from smallplates.worker.choice import MAX_TIME_RATIO, QUICK_MS, in_a_fork
from smallplates.worker.shared_choice import shared_choice
from smallplates.worker.warmup import run

MAX_THREADS = 16  # more threads than that hardly speed up a batch
LENGTH = 32  # size of varying axes; most texts are about as long
SIZES = (1, 4)  # items in a batch, for each thread of a worker
WINDOW_S, MIN_ROUNDS = 0.25, 2  # the first call of each size plans and allocates


class Layout(NamedTuple):
    """Workers that compute at a time, their threads, and why."""

    workers: int
    threads: int
    reason: str | None = None


def choose_layout(
    load: Callable[[int], Backend], signature: Signature, cores: int, most: int, scratch: Path | None
) -> Layout:
    """Returns the layout in which all cores compute fastest; the same for all instances of a model.

    Layouts of ever more threads are measured as long as each takes a tenth less time than the one
    before. `load` loads the model for a number of threads, `most` is the largest batch. Without
    `scratch` nothing is measured.
    """

    def measure() -> Layout:
        best, least_ms, times = Layout(cores, 1), math.inf, []
        for threads in range(1, min(cores, MAX_THREADS) + 1):
            if cores % threads == 0:
                layout = Layout(cores // threads, threads)
                ms = in_a_fork(partial(item_ms, load, signature, layout, most))[0] or 0.0
                times.append(f"{layout.workers} x {threads}: {ms:.2f}")
                if not QUICK_MS / cores < ms < MAX_TIME_RATIO * least_ms:
                    break
                best, least_ms = layout, ms
        return best._replace(reason=f"ms per item of workers x threads: {', '.join(times)}")

    alone = scratch is None or cores == 1
    return Layout(cores, 1) if alone else Layout(*shared_choice(scratch, "layout", measure))


def item_ms(load: Callable[[int], Backend], signature: Signature, layout: Layout, most: int) -> float:
    """Returns the milliseconds per item of workers that compute at the same time."""
    sizes = {signature.batch_size or min(size * layout.threads, most) for size in SIZES}
    lengths = signature.sizes_at(LENGTH)

    def seconds(backend: Backend) -> float:
        times: dict[int, list[float]] = {size: [] for size in sizes}
        end = time.perf_counter() + WINDOW_S
        while len(times[max(sizes)]) < MIN_ROUNDS or time.perf_counter() < end:
            for size, durations in times.items():
                start = time.perf_counter()
                run(backend, signature, size, lengths)
                durations.append(time.perf_counter() - start)
        return sum(median(durations[1:]) for durations in times.values()) / sum(sizes)

    backends = [load(layout.threads) for _ in range(layout.workers)]
    # two threads that make a process's first calls at the same time may deadlock in OpenVINO
    run(backends[0], signature, signature.batch_size or 1, lengths)
    with ThreadPoolExecutor(layout.workers) as pool:
        return 1000 * mean(pool.map(seconds, backends)) / layout.workers

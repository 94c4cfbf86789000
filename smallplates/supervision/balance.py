"""Number of web processes for `web_processes=auto`, from warm-up's measurements; for `cluster.py`."""

import timeit
from functools import partial

from smallplates.engine import topology
from smallplates.supervision.supervisor import Supervisor
from smallplates.system import cpus
from smallplates.tasks.base import Task

ROUNDS = 10
REQUEST_MS = 1.1
"""Time for a request in addition to preprocessing the example: HTTP, routing, base64, JSON, the engine
client, and the extra time for decoding an image of 400x300 pixels.

Measured on an AMD EPYC as the CPU time of the web process of a fake service whose workers sleep: 1.57 ms
for each `POST /predict` with such an image in base64, at 16 connections, minus 0.45 ms for the example.
"""


def web_processes(engine: Supervisor, task: Task) -> tuple[int, str]:
    """Returns how many web processes a started engine needs, and the reason in words."""
    cores, layout, report = cpus.usable(), engine.layout, engine.report
    if report.on_gpu:
        return layout.web_processes, f"{cores} cores, {layout.workers} of them for the GPU's workers"
    size = max(size for size in report.batch_ms if size <= report.batch_cap)
    threads, worker_ms, web_ms = report.threads, report.batch_ms[size] / size, request_ms(task)
    count = topology.balanced_web_processes(cores, report.workers, threads, worker_ms, web_ms)
    reason = f"{cores} cores, {worker_ms:.1f} ms per input in a worker, {web_ms:.1f} ms in a web process"
    return min(count, layout.web_processes), reason


def request_ms(task: Task) -> float:
    """Returns a web process's time per request in ms: preprocessing the example plus `REQUEST_MS`."""
    if task.example is None:
        return REQUEST_MS
    work = partial(task.preprocess, task.example)
    return 1000 * min(timeit.repeat(work, number=1, repeat=ROUNDS)) + REQUEST_MS

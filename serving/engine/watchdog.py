"""Which workers do not answer any more, and the end of them all; for `supervisor.py`."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

from serving.engine.memory import Memory
from serving.engine.worker_process import Process
from serving.logging import logger
from serving.settings import Settings

LOAD_TIMEOUT_S = 600
LEAST_HANG_S = 3.0
HANG_BATCHES = 20  # of the slowest measured batch
LEAST_LONGER_S, LONGER_BATCHES = 0.5, 2  # and then


def hang_limit(settings: Settings, profile: Mapping[str, Any]) -> float:
    """Seconds after which a worker that gathers and computes one batch counts as hung.

    `profile` is what the first ready worker has told, or empty.
    """
    delay = settings.max_queue_delay_us / 1e6
    if settings.worker_timeout_ms != "auto":
        return settings.worker_timeout_ms / 1000 + delay
    slowest: float = max(profile.get("batch_ms", {"1": 0.0}).values()) / 1000
    return max(LEAST_HANG_S, HANG_BATCHES * slowest) + delay


def kill_silent(processes: Iterable[Process], memory: Memory, limit_s: float) -> None:
    """Kills workers that have stopped answering or never get ready; their pipe tells of the end."""
    now = time.monotonic()
    longer_s = max(LEAST_LONGER_S, limit_s * LONGER_BATCHES / HANG_BATCHES)
    for process in processes:
        if process.popen is None:
            continue
        if process.ready:
            stuck = process.is_stuck(process.silent_for(memory, now) > limit_s, now, longer_s)
        else:
            stuck = now - process.begun_at > LOAD_TIMEOUT_S
        if stuck:
            logger().error("an inference worker does not answer", worker=process.index)
            process.popen.kill()


def end_all(processes: Iterable[Process], limit_s: float) -> None:
    """A worker that computes may finish its batch; none outlives `limit_s` seconds."""
    running = [(process, process.popen) for process in processes if process.popen]
    for process, _ in running:
        os.close(process.control_fd)
    end = time.monotonic() + limit_s
    for process, popen in running:
        if not process.ready:
            popen.kill()
        try:
            popen.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        os.close(process.status_fd)

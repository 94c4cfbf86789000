"""CPU and memory of process trees: now, or sampled by a thread.

A sample of `Usage` takes a few milliseconds a process, more for large ones; the pause after it is at
least `PAUSE` times as long, so that sampling takes at most a tenth of a core. Peaks between two samples
are missed: highest values are lower bounds.
"""

import contextlib
import threading
import time
from collections.abc import Iterable

import psutil

INTERVAL_S = 0.2
PAUSE = 9


def tree(pid: int) -> list[psutil.Process]:
    """Returns a process and all its descendants; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the CPU time of processes and of their children that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mb(processes: Iterable[psutil.Process]) -> float:
    """Returns the sum of proportional set sizes, MB: shared pages count once."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


class Usage:
    """Context manager that samples the processes given to `add`; has the figures after its block."""

    def __init__(self) -> None:
        self.cpu_percent = 0.0
        """Highest CPU use between two samples, all processes together; 100 is one core."""
        self.memory_mb = 0.0
        """Highest sum of proportional set sizes, MB: shared pages count once."""
        self.looks = 0
        self._roots: dict[int, bool] = {}
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._looked_at = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> "Usage":
        self._looked_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, pid: int, *, itself: bool = True) -> None:
        """Watches a process and all its descendants; without `itself` only the descendants."""
        with self._lock:
            self._roots[pid] = itself

    def _run(self) -> None:
        pause = INTERVAL_S
        while not self._stop.wait(pause):
            started = time.monotonic()
            self._look(started)
            pause = max(INTERVAL_S, PAUSE * (time.monotonic() - started))

    def _processes(self) -> set[psutil.Process]:
        with self._lock:
            roots = list(self._roots.items())
        return {
            process for pid, itself in roots for process in tree(pid) if itself or process.pid != pid
        }

    def _look(self, now: float) -> None:
        """Takes a sample; CPU time from before a process was first seen counts, too."""
        memory, used = 0, 0.0
        seen: dict[tuple[int, float], float] = {}
        for process in self._processes():
            try:
                memory += process.memory_full_info().pss
                times = process.cpu_times()
                key = process.pid, process.create_time()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            seen[key] = times.user + times.system
            used += seen[key] - self._cpu_seconds.get(key, 0.0)
        if self.looks:  # the first one has no look before it
            self.cpu_percent = max(self.cpu_percent, 100 * used / (now - self._looked_at))
        self.memory_mb = max(self.memory_mb, memory / 1e6)
        self._cpu_seconds, self._looked_at = seen, now
        self.looks += 1

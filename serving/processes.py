"""How much of the processors the web processes take; `metrics.py` asks when it is scraped."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
WEB = b"serving.cluster.frontend"


def web_cpu_seconds(shared: bool, proc: Path = PROC) -> float:
    """CPU time of this web process, or with `shared` of all that its parent has started now.

    A counter that begins anew, lower, when a web process is replaced. Where there is no `/proc`, this
    process counts alone.
    """
    if not shared:
        return time.process_time()
    parent = os.getppid()
    try:
        children = (proc / f"{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return time.process_time()
    return sum(_cpu_seconds(proc / child) for child in children)


def _cpu_seconds(process: Path) -> float:
    """User and system time of one process; 0 unless it is a web process that still runs."""
    try:
        if WEB not in (process / "cmdline").read_bytes().split(b"\0"):
            return 0.0
        numbers = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

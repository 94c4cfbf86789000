"""How many cores this process may really use: the machine's count is wrong in containers."""

import contextlib
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def quota(cgroup: Path = CGROUP) -> float:
    """Cores that the control group grants (versions 2 and 1); infinite without a limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if limit == "max" or int(limit) <= 0:
        return math.inf
    return int(limit) / int(period)


def usable(cgroup: Path = CGROUP) -> int:
    """Affinity or quota, whichever is smaller; at least 1."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        affinity = os.cpu_count() or 1
    return max(1, min(affinity, math.floor(min(quota(cgroup), affinity) + 0.5)))


def waited(process: int) -> dict[int, float]:
    """Seconds for which each thread of a process could run and had no core; empty where nobody knows."""
    seconds = {}
    with contextlib.suppress(OSError):  # not on Linux, or it has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # this one has
                nanoseconds = int((thread / "schedstat").read_text().split()[1])
                seconds[int(thread.name)] = nanoseconds / 1e9
    return seconds


def give_way(steps: int = 5) -> None:
    """Lowers the priority of this process, all its threads, below that of its parent's.

    For a process that computes as long as there is work, beside one that answers: on the same cores the
    scheduler then runs the second as soon as it has something to do. Only the superuser can go back.
    """
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + steps)
    try:
        threads = [int(thread) for thread in os.listdir("/proc/self/task")]  # noqa: PTH208 not Path's
    except OSError:
        threads = [0]  # not on Linux, where a process has one priority
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread, wanted)

"""Usable cores, waits for a core, and priority; a container may use fewer cores than the machine has."""

import contextlib
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_granted = math.inf


def grant(cores: float) -> int:
    """Makes `usable` count no more cores than these, in this process; returns what it counts now.

    For a scheduler that counts cores but binds nobody to them, as Ray does.
    """
    global _granted
    _granted = cores
    return usable()


def quota(cgroup: Path = CGROUP) -> float:
    """Returns the cores that the control group (version 2 or 1) grants; infinite without a limit."""
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
    """Returns how many cores this process may use, at least 1: the least of affinity, quota, grant."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        affinity = os.cpu_count() or 1
    return max(1, math.floor(min(quota(cgroup), _granted, affinity) + 0.5))


def core_wait_s(process: int) -> dict[int, float]:
    """Returns by thread id for how many seconds a process's threads were ready but had no core.

    Empty on other systems than Linux, and for a process that has ended.
    """
    seconds = {}
    with contextlib.suppress(OSError):  # not on Linux, or it has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                nanoseconds = int((thread / "schedstat").read_text().split()[1])
                seconds[int(thread.name)] = nanoseconds / 1e9
    return seconds


def lower_priority(steps: int = 5) -> None:
    """Lowers the priority of all threads of this process; only the superuser can raise it again.

    Workers compute as long as there is work. On the same cores the scheduler then runs a frontend as
    soon as it has something to do.
    """
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + steps)
    try:
        threads = [int(thread) for thread in os.listdir("/proc/self/task")]  # noqa: PTH208 not Path's
    except OSError:
        threads = [0]  # not on Linux, where a process has one priority
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread, wanted)

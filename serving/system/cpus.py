"""Usable cores, waits for a core, and priority; a container may use fewer cores than the machine has."""

import contextlib
import math
import os
from pathlib import Path
from typing import NamedTuple

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
    affinity = len(os.sched_getaffinity(0))
    return max(1, math.floor(min(quota(cgroup), _granted, affinity) + 0.5))


def bf16_objection(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns why bf16 gains nothing on this processor; empty if it has instructions for it."""
    words = cpuinfo.read_text().split() if cpuinfo.exists() else ()
    has_bf16 = "avx512_bf16" in words or "amx_bf16" in words
    return "" if has_bf16 else "this processor has no instructions for bf16"


class ThreadTimes(NamedTuple):
    """What the kernel has counted of a thread until now."""

    on_core_s: float
    waited_s: float
    """Ready without a core; a wait is counted when it ends."""

    ready: bool
    """It runs now, or waits for a core."""


def thread_times(process: int) -> dict[int, ThreadTimes]:
    """Returns the times of a process's threads, by thread id.

    Empty for a process that has ended.
    """
    times = {}
    with contextlib.suppress(OSError):  # it has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                on_core, waited = (thread / "schedstat").read_text().split()[:2]
                state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                times[int(thread.name)] = ThreadTimes(
                    int(on_core) / 1e9, int(waited) / 1e9, state == "R"
                )
    return times


def core_wait_s(process: int, since: dict[int, ThreadTimes], elapsed_s: float) -> float:
    """Returns the longest time that one of a process's threads waited for a core, in seconds.

    `since` are its threads' times `elapsed_s` ago; a thread begun in between does not count. One that is
    ready now, but had no core for most of this time, is still in a wait that is not counted yet.
    """
    waits = [0.0]
    for thread, now in thread_times(process).items():
        if before := since.get(thread):
            waits.append(now.waited_s - before.waited_s)
            if now.ready:
                waits.append(elapsed_s - (now.on_core_s - before.on_core_s))
    return max(waits)


def lower_priority(steps: int = 5) -> None:
    """Lowers the priority of all threads of this process; only the superuser can raise it again.

    Workers compute as long as there is work. On the same cores the scheduler then runs a web process as
    soon as it has something to do.
    """
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + steps)
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 not Path's
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread), wanted)

"""Usable cores (in a container often fewer than the machine has), waits for a core, and priority."""

import contextlib
import math
import os
from pathlib import Path
from typing import NamedTuple

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_granted = math.inf


def grant(cores: float) -> int:
    """Limits what `usable` returns in this process to `cores`; returns the new number.

    For schedulers such as Ray, which assign cores but do not enforce the assignment.
    """
    global _granted
    _granted = cores
    return usable()


def quota(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> float:
    """Returns the cores that the cgroups (version 2 or 1) grant; infinite if there is no limit.

    In a container, the root has the limit; systemd sets it for the process's own group, or one above.
    """
    groups = {"/"}
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                groups.add(path)
    above = {parent for group in groups for parent in (Path(group), *Path(group).parents)}
    return min(limit(cgroup, group.relative_to("/")) for group in above)


def limit(cgroup: Path, group: Path) -> float:
    """Returns the cores that one group grants; infinite if it has no limit, or does not exist here."""
    try:
        cores, period = (cgroup / group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            cores = (cgroup / "cpu" / group / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if cores == "max" or int(cores) <= 0:
        return math.inf
    return int(cores) / int(period)


def usable(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """Returns how many cores this process may use, at least 1: the least of affinity, quota, grant."""
    affinity = len(os.sched_getaffinity(0))
    return max(1, math.floor(min(quota(cgroup, membership), _granted, affinity) + 0.5))


def bf16_objection(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns why bf16 gains nothing on this processor; empty if the processor supports bf16."""
    words = cpuinfo.read_text().split() if cpuinfo.exists() else ()
    has_bf16 = "avx512_bf16" in words or "amx_bf16" in words
    return "" if has_bf16 else "this processor has no instructions for bf16"


def identity(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Returns what kind of processor this is: its name and its instructions, as Linux knows them."""
    names = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else ()
    return sorted({" ".join(line.split()) for line in lines if line.startswith(names)})


class ThreadTimes(NamedTuple):
    """The kernel's accounting of a thread so far."""

    on_core_s: float
    waited_s: float  # seconds in which it was ready but had no core; a wait is counted when it ends
    ready: bool  # whether it runs now or waits for a core


def thread_times(process: int) -> dict[int, ThreadTimes]:
    """Returns the times of a process's threads by thread id.

    The result is empty if the process has ended.
    """
    times = {}
    with contextlib.suppress(OSError):  # the process has ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                on_core, waited = (thread / "schedstat").read_text().split()[:2]
                state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                times[int(thread.name)] = ThreadTimes(
                    int(on_core) / 1e9, int(waited) / 1e9, state == "R"
                )
    return times


def core_wait_s(process: int, since: dict[int, ThreadTimes], elapsed_s: float) -> float:
    """Returns the longest time, in seconds, that a thread of a process has waited for a core.

    `since` has the threads' times `elapsed_s` seconds ago; threads started since then do not count. If a
    thread is ready now but had no core for most of this time, its current wait is not counted yet.
    """
    waits = [0.0]
    for thread, now in thread_times(process).items():
        if before := since.get(thread):
            waits.append(now.waited_s - before.waited_s)
            if now.ready:
                waits.append(elapsed_s - (now.on_core_s - before.on_core_s))
    return max(waits)


def used_s(process: int) -> float:
    """Returns a process's user and system time in seconds, also if it has ended and nobody has waited.

    Raises OSError if there is no such process.
    """
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def lower_priority(steps: int = 5) -> None:
    """Lowers the priority of all threads of this process; only the superuser can raise it again.

    Workers compute as long as there is work. With their lower priority, the scheduler runs a web process
    on the same cores as soon as it has something to do.
    """
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + steps)
    try:
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 only names are needed
    except OSError:  # no /proc: only the calling thread
        threads = ["0"]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread), wanted)

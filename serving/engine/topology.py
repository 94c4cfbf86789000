"""Numbers of workers, frontends and threads: from the settings, or from the machine for `auto`.

Called at start by the supervisor, the workers, the frontends and the cluster.
"""

from pathlib import Path

from serving.settings import Settings
from serving.system import cpus

MOST_WEB_PROCESSES = 64
MOST_IDLE_THREADS = 16  # more hardly help one input
LONE_INPUT_WORKERS = 2
"""Workers, from the first, that load the model a second time, on all cores, for an input that is alone.

An idle service wakes the first worker, see `queue.exclusive_epoll`, or the second while the first is
replaced. Where a record wakes all workers, all of them need it.
"""


def instances(settings: Settings) -> int:
    """Returns the workers per device; `auto`: one per usable core on a CPU, one on a GPU."""
    if settings.instances != "auto":
        return settings.instances
    if settings.device == "cuda":
        return 1
    return max(1, cpus.usable() // settings.intra_op_threads)


def idle_threads(settings: Settings) -> int | None:
    """Returns the threads for an input that is alone; `auto`: one per core, up to 16.

    Returns None where a worker has as many for every input.
    """
    chosen = settings.idle_threads
    threads = min(MOST_IDLE_THREADS, cpus.usable()) if chosen == "auto" else chosen
    return threads if threads > settings.intra_op_threads else None


def gpus(settings: Settings) -> list[int]:
    """Returns the indices of the CUDA devices to use; the first one unless set."""
    return settings.devices or [0]


def web_processes(settings: Settings) -> int:
    """Returns the number of frontends, the processes that speak HTTP and decode.

    On a CPU one frontend keeps the workers busy. A GPU computes faster than one process decodes: there
    every core that no worker needs gets a frontend.
    """
    if settings.web_processes != "auto":
        return settings.web_processes
    if settings.device != "cuda":
        return 1
    workers = instances(settings) * len(gpus(settings))
    return max(1, min(MOST_WEB_PROCESSES, cpus.usable() - workers))


def decoding_threads(settings: Settings) -> int:
    """Returns the decoding threads of one frontend: all frontends together have about one per core."""
    cores = cpus.usable()
    webs = 1 if settings.web_processes == "auto" else settings.web_processes
    return min(cores, max(2, cores // webs))


def gpu_is_possible() -> bool:
    """Returns whether there is an NVIDIA driver; without one `auto` will use the CPU."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

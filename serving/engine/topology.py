"""Numbers of workers, web processes and threads: from the settings, or from the machine for `auto`.

Called at start by the supervisor, the workers, the web processes and the cluster.
"""

import math
from pathlib import Path

from serving.settings import Settings
from serving.system import cpus

MOST_WEB_PROCESSES = 64
MOST_IDLE_THREADS = 16  # more hardly help one input
SINGLE_REQUEST_WORKERS = 2
"""Workers, from the first, that load the model a second time, on all cores, for an input that is alone.

An idle service wakes the first worker, see `queue.exclusive_epoll`, or the second while the first is
replaced. Where a record wakes all workers, all of them need it.
"""


def workers_per_device(settings: Settings) -> int:
    """Returns the workers per device; `auto`: one per usable core on a CPU, one on a GPU.

    A worker for every core, although web processes need some: workers have a lower priority, so web
    processes get their cores first, and whatever they leave is computed on.
    """
    if settings.instances != "auto":
        return settings.instances
    if settings.device == "cuda":
        return 1
    return max(1, cpus.usable() // settings.intra_op_threads)


def single_request_threads(settings: Settings) -> int | None:
    """Returns the threads for an input that is alone; `auto`: one per core, up to 16.

    Returns None where a worker has as many for every input.
    """
    chosen = settings.idle_threads
    threads = min(MOST_IDLE_THREADS, cpus.usable()) if chosen == "auto" else chosen
    return threads if threads > settings.intra_op_threads else None


def gpus(settings: Settings) -> list[int]:
    """Returns the indices of the CUDA devices to use; the first one unless set."""
    return settings.devices or [0]


def most_web_processes(settings: Settings) -> int:
    """Returns the number of web processes, which speak HTTP and decode; for `auto` the most.

    `auto` is 1 on up to two cores: there one web process answers more than the workers compute beside
    it, and saves the memory of another and of the cluster's parent. Several cannot take a free TCP port.

    A GPU computes faster than one process decodes: every core that no worker needs gets a web process.
    That number is exact, because a GPU's worker pins the slots of all of them. On a CPU the slots of
    those that will not be started cost nothing, and `balanced_web_processes` decides after warm-up.
    """
    if settings.web_processes != "auto":
        return settings.web_processes
    cores = cpus.usable()
    if cores <= 2 or settings.tcp_port == 0:
        return 1
    most = min(MOST_WEB_PROCESSES, cores)
    if settings.device == "cuda" or (settings.device == "auto" and gpu_is_possible()):
        workers = workers_per_device(settings.model_copy(update={"device": "cuda"})) * len(
            gpus(settings)
        )
        return max(1, min(most, cores - workers))
    return most


def balanced_web_processes(
    cores: int, workers: int, threads: int, worker_ms: float, web_ms: float
) -> int:
    """Returns the fewest web processes for which the workers never wait, on a CPU.

    A worker takes `worker_ms` on `threads` cores for an input, a web process `web_ms` on one. Together
    all cores so answer `cores / (threads * worker_ms + web_ms)` a millisecond, or fewer where there are
    not enough workers, and every web process `1 / web_ms`.
    """
    inputs_per_ms = min(cores / (threads * worker_ms + web_ms), workers / worker_ms)
    return max(1, min(MOST_WEB_PROCESSES, cores, math.ceil(inputs_per_ms * web_ms)))


def decoding_threads(settings: Settings) -> int:
    """Returns the decoding threads of a web process: all of them together have about one per core.

    The cluster's parent gives its web processes the number that `auto` has become.
    """
    cores = cpus.usable()
    webs = 1 if settings.web_processes == "auto" else settings.web_processes
    return min(cores, max(2, cores // webs))


def gpu_is_possible() -> bool:
    """Returns whether there is an NVIDIA driver; without one `auto` will use the CPU."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

"""Numbers of workers, web processes and threads: from the settings or, for `auto`, from the machine.

Called at startup by the supervisor, the workers, the web processes and the cluster.
"""

import math
from pathlib import Path

from smallplates.settings import Settings
from smallplates.system import cpus

MAX_WEB_PROCESSES = 64
MAX_IDLE_THREADS = 16  # more threads hardly speed up a single item
SINGLE_REQUEST_WORKERS = 2
"""Number of workers that load the model a second time, for all cores, to compute a lone item faster.

An idle service wakes the first worker (see `worker.queue.exclusive_epoll`), or the second while the
first is being replaced. If a record wakes all workers, all of them load the model twice.
"""


def workers_per_device(settings: Settings) -> int:
    """Returns the workers per device; `auto` means one on a GPU, and on a CPU enough to use all cores.

    Workers get every core although the web processes need cores, too: workers run at a lower priority,
    so web processes go first and workers compute on whatever is left.
    """
    if settings.instances != "auto":
        return settings.instances
    if settings.device == "cuda":
        return 1
    return max(1, cpus.usable() // settings.threads)


def single_request_threads(settings: Settings) -> int | None:
    """Returns the threads for an item that is alone in the service; `auto` means one per core, up to 16.

    Returns None if a worker uses as many threads for every batch anyway.
    """
    setting = settings.idle_threads
    threads = min(MAX_IDLE_THREADS, cpus.usable()) if setting == "auto" else setting
    return threads if threads > settings.threads else None


def gpus(settings: Settings) -> list[int]:
    """Returns the indices of the CUDA devices to use; by default only the first device."""
    return settings.devices or [0]


def most_web_processes(settings: Settings) -> int:
    """Returns the number of web processes, which speak HTTP and decode; for `auto` its upper limit.

    On up to two cores `auto` means 1: with both shipped models, a second one and the cluster's parent
    take 110 MB and handle up to 14 % more requests. Several web processes cannot share a TCP port that
    the system picks (port 0).

    A GPU computes faster than one process can decode, so every core that no worker needs gets a web
    process. This number is exact, because a GPU's worker pins the slots of all web processes. On a CPU
    the slots of web processes that are never started cost nothing, and `balanced_web_processes` decides
    after warm-up.
    """
    if settings.web_processes != "auto":
        return settings.web_processes
    cores = cpus.usable()
    if cores <= 2 or settings.tcp_port == 0:
        return 1
    most = min(MAX_WEB_PROCESSES, cores)
    if settings.device == "cuda" or (settings.device == "auto" and gpu_is_possible()):
        per_gpu = workers_per_device(settings.model_copy(update={"device": "cuda"}))
        return max(1, min(most, cores - per_gpu * len(gpus(settings))))
    return most


def balanced_web_processes(
    cores: int, workers: int, threads: int, worker_ms: float, web_ms: float
) -> int:
    """Returns the fewest web processes that keep the workers busy, on a CPU.

    An item takes a worker `worker_ms` on `threads` cores, and a web process `web_ms` on one core. So all
    cores together handle `cores / (threads * worker_ms + web_ms)` items per millisecond, or fewer if
    there are too few workers, and each web process handles `1 / web_ms`.
    """
    inputs_per_ms = min(cores / (threads * worker_ms + web_ms), workers / worker_ms)
    return max(1, min(MAX_WEB_PROCESSES, cores, math.ceil(inputs_per_ms * web_ms)))


def decoding_threads(settings: Settings) -> int:
    """Returns the decoding threads of a web process: about one per core over all web processes.

    The cluster's parent passes its web processes the number that it chose for `auto`.
    """
    cores = cpus.usable()
    webs = 1 if settings.web_processes == "auto" else settings.web_processes
    return min(cores, max(2, cores // webs))


def gpu_is_possible() -> bool:
    """Returns whether there is an NVIDIA driver; without a driver, `auto` uses the CPU."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

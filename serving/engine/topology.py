"""How many processes of which kind: what the settings say, or what follows from the machine."""

from pathlib import Path

from serving.settings import Settings
from serving.system import cpus

MOST_WEB_PROCESSES = 64
MOST_IDLE_THREADS = 16  # more hardly help one picture, and every instance has them


def instances(settings: Settings) -> int:
    """Workers per device; `auto`: one per usable core on a CPU, one on a GPU."""
    if settings.instances != "auto":
        return settings.instances
    if settings.device == "cuda":
        return 1
    return max(1, cpus.usable() // settings.intra_op_threads)


def idle_threads(settings: Settings) -> int:
    """Threads that each worker keeps for a picture that is alone; `auto`: the cores, within reason."""
    if settings.idle_threads != "auto":
        return settings.idle_threads
    return min(MOST_IDLE_THREADS, cpus.usable())


def gpus(settings: Settings) -> list[int]:
    """Indices of the CUDA devices that have workers, if there are any."""
    return settings.devices or [0]


def web_processes(settings: Settings) -> int:
    """Processes that speak HTTP and decode.

    On a CPU one keeps the workers busy. A GPU computes faster than one process decodes: there every
    core that no worker needs gets one.
    """
    if settings.web_processes != "auto":
        return settings.web_processes
    if settings.device != "cuda":
        return 1
    workers = instances(settings) * len(gpus(settings))
    return max(1, min(MOST_WEB_PROCESSES, cpus.usable() - workers))


def decoding_threads(settings: Settings) -> int:
    """Of one web process: all together not many more than there are cores."""
    cores = cpus.usable()
    webs = 1 if settings.web_processes == "auto" else settings.web_processes
    return min(cores, max(2, cores // webs))


def gpu_is_possible() -> bool:
    """Whether an NVIDIA driver shows itself; if not, `auto` will end on the CPU."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

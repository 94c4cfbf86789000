"""How busy and how full the GPUs are, for `/metrics` and `/model`: one poller for all processes.

The supervisor starts it with the first worker that runs on a GPU. It asks NVML once a second and writes
into the shared mapping, from where every web process reads. On a CPU nothing of this runs.
"""

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import Any

from serving.engine.memory import Memory
from serving.logging import logger

PERIOD_S = 1.0


@dataclass(frozen=True)
class GpuFigures:
    """One GPU at the last look; all of it, whoever uses it."""

    index: int
    """As in `devices`."""

    busy_percent: int
    """Share of the time in which any kernel ran, whatever part of the GPU that filled."""

    memory_used_bytes: int
    memory_total_bytes: int


class GpuMonitor:
    """`watch` each GPU once; `close` ends the poller."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._uuids: dict[int, str] = {}

    def watch(self, place: int, index: int, uuid: str) -> None:
        """From now on also this GPU; `place` is where its figures stand in the mapping."""
        if uuid in self._uuids.values():
            return
        self._memory.gpu_index[place] = index
        self._uuids[place] = uuid
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Returns when nothing writes into the mapping any more."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            nvml: Any = importlib.import_module("pynvml")  # it has no types
        except ImportError:
            logger().warning("no figures of the GPU: nvidia-ml-py is not installed")
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            logger().warning("no figures of the GPU", reason=str(error))
            return
        while not self._closing.is_set():
            for place, uuid in list(self._uuids.items()):
                self._look(nvml, place, uuid)
            self._closing.wait(PERIOD_S)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _look(self, nvml: Any, place: int, uuid: str) -> None:
        """One GPU; one that does not answer has no figures, not old ones."""
        memory = self._memory
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            room = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            memory.gpu_known[place] = 0
            return
        memory.gpu_busy[place] = busy
        memory.gpu_memory_used[place] = room.used
        memory.gpu_memory_total[place] = room.total
        memory.gpu_known[place] = 1


def figures(memory: Memory) -> list[GpuFigures]:
    """Of every GPU that answered at the last look; empty on a CPU."""
    return [
        GpuFigures(
            memory.gpu_index[place],
            memory.gpu_busy[place],
            memory.gpu_memory_used[place],
            memory.gpu_memory_total[place],
        )
        for place in range(memory.layout.workers)
        if memory.gpu_known[place]
    ]

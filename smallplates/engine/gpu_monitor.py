"""GPU utilisation and memory use, for `/metrics` and `/model`.

The supervisor's process polls NVML once a second and writes the figures into the shared memory, where
every web process reads them. The polling thread starts with the first worker on a GPU; without a GPU it
never runs.
"""

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import Any

from smallplates.engine.memory import Memory
from smallplates.logging import logger

PERIOD_S = 1.0


@dataclass(frozen=True)
class GpuFigures:
    """Figures of one GPU at the last poll, including its use by other programs."""

    index: int
    """Index, as in the setting `devices`."""

    busy_percent: int
    """Percentage of the time in which at least one kernel ran, however little of the GPU it used."""

    memory_used_bytes: int
    memory_total_bytes: int


class GpuMonitor:
    """Polls the GPUs; `watch` adds a GPU, `close` stops the thread."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._closing = threading.Event()
        self._uuids: dict[int, str] = {}

    def watch(self, row: int, index: int, uuid: str) -> None:
        """Adds a GPU unless it is watched already; `row` is its index in the mapping's GPU arrays."""
        if uuid in self._uuids.values():
            return
        self._memory.gpu_index[row] = index
        is_first = not self._uuids
        self._uuids[row] = uuid
        if is_first:
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def close(self) -> None:
        """Makes the thread end; it may still hang in the driver, which must not hold up anything."""
        self._closing.set()

    def _run(self) -> None:
        try:
            nvml: Any = importlib.import_module("pynvml")  # untyped
        except ImportError:
            logger().warning("no figures of the GPU: nvidia-ml-py is not installed")
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            logger().warning("no figures of the GPU", reason=str(error))
            return
        while not self._closing.is_set():
            for row, uuid in list(self._uuids.items()):
                self._poll(nvml, row, uuid)
            self._closing.wait(PERIOD_S)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _poll(self, nvml: Any, row: int, uuid: str) -> None:
        """Reads the figures of one GPU, or removes them if the GPU does not respond."""
        memory = self._memory
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            usage = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            memory.gpu_known[row] = 0
            return
        memory.gpu_busy[row] = busy
        memory.gpu_memory_used[row] = usage.used
        memory.gpu_memory_total[row] = usage.total
        memory.gpu_known[row] = 1


def figures(memory: Memory) -> list[GpuFigures]:
    """Returns the figures of every GPU that responded to the last poll; empty on a CPU."""
    return [
        GpuFigures(
            memory.gpu_index[row],
            memory.gpu_busy[row],
            memory.gpu_memory_used[row],
            memory.gpu_memory_total[row],
        )
        for row in range(memory.layout.workers)
        if memory.gpu_known[row]
    ]

"""What is there for GPUs and needs none: batch_sizes, errors, figures, the number of processes."""

import ctypes
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smallplates.engine import gpu_monitor
from smallplates.engine.memory import Memory
from smallplates.errors import ConfigurationError
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.web.metrics import Metrics
from smallplates.worker import batch_sizes, cuda_driver, warmup
from smallplates.worker.device_errors import DeviceLostError, OutOfDeviceMemoryError, translate_errors
from tests.servers import wait_for
from tests.unit.engine.conftest import IMAGES

UUID = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_a_batch_is_padded_to_the_next_bucket(count: int, size: int) -> None:
    assert batch_sizes.pad(count, [1, 2, 4, 6]) == size
    assert batch_sizes.pad(count, []) == count


@pytest.mark.parametrize(("cap", "half"), [(64, 32), (6, 2), (4, 2), (2, 1), (1, 1)])
def test_half_of_a_cap_is_a_bucket(cap: int, half: int) -> None:
    assert batch_sizes.halve(cap, [1, 2, 6, 32, 64]) == half
    assert batch_sizes.halve(cap, []) == max(1, cap // 2)


class Small:
    """A device with room for batches of `fits`."""

    def __init__(self, fits: int) -> None:
        self.fits = fits

    def infer(self, _: Signature, inputs: Sequence[Array]) -> list[Array]:
        if len(inputs[0]) > self.fits:
            raise OutOfDeviceMemoryError("full")
        return [np.zeros((len(inputs[0]), 11), np.float32)]


def test_sizes_that_do_not_fit_are_left_out_at_warm_up() -> None:
    profile = warmup.measure(Small(4), IMAGES, [8, 4, 2, 1])  # type: ignore[arg-type]
    assert list(profile) == [1, 2, 4]
    assert warmup.choose_cap(Settings(max_batch_size=8), profile) == 4
    with pytest.raises(ConfigurationError, match="too small for one input: full"):
        warmup.measure(Small(0), IMAGES, [2, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", OutOfDeviceMemoryError),
        ("Failed to allocate memory for requested buffer of size 765249024", OutOfDeviceMemoryError),
        ("Available memory of 16 is smaller than requested bytes of 32", OutOfDeviceMemoryError),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", OutOfDeviceMemoryError),
        ("CUBLAS failure 3: the resource allocation failed ; GPU=0", OutOfDeviceMemoryError),
        ("CUDA error: an illegal memory access was encountered", DeviceLostError),
        ("CUDA failure 700: an illegal memory access ; GPU=0", DeviceLostError),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", DeviceLostError),
        ("shape mismatch", RuntimeError),
    ],
)
def test_what_libraries_say_is_translated(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, translate_errors():
        raise RuntimeError(f"{text}\nand more")
    assert str(caught.value).startswith(text)
    with pytest.raises(kind), translate_errors(), translate_errors():
        raise RuntimeError(text)


class Nvml:
    """A stand-in for `pynvml`, with one GPU; after `looks` looks it is lost."""

    class NVMLError(Exception):
        """As in the original."""

    def __init__(self, looks: int = 1 << 30, driver: bool = True) -> None:
        self.looks, self.driver = looks, driver
        self.ended = False
        self.lost = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802 NVML's
        if not self.driver:
            raise Nvml.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended = True

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != UUID:
            raise Nvml.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, _: str) -> SimpleNamespace:  # noqa: N802
        self.looks -= 1
        if self.looks < 0:
            self.lost.set()
            raise Nvml.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, _: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=5 << 30, total=16 << 30)


def close(monitor: gpu_monitor.GpuMonitor) -> None:
    """Closes it, and waits for its thread."""
    monitor.close()
    for thread in threading.enumerate():
        if thread.name == "gpus":
            thread.join()


def test_the_figures_of_a_gpu_reach_metrics(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    metrics = Metrics()
    metrics.engines.follow("one", memory, web_processes=1)
    assert b"serving_gpu" not in metrics.text()
    monitor = gpu_monitor.GpuMonitor(memory)
    monitor.watch(0, 3, UUID)
    monitor.watch(1, 3, UUID)  # a second worker on the same one
    wait_for(lambda: memory.gpu_known[0] == 1)
    assert gpu_monitor.figures(memory) == [gpu_monitor.GpuFigures(3, 75, 5 << 30, 16 << 30)]
    rows = [line.split() for line in metrics.text().decode().splitlines()]
    values = {row[0]: float(row[1]) for row in rows if "{gpu=" in row[0]}
    assert values == {
        'serving_gpu_busy_ratio{gpu="3"}': 0.75,
        'serving_gpu_memory_used_bytes{gpu="3"}': 5 << 30,
        'serving_gpu_memory_bytes{gpu="3"}': 16 << 30,
    }
    close(monitor)
    assert nvml.ended


def test_a_lost_gpu_has_no_figures(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(looks=1)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu_monitor, "PERIOD_S", 0.01)
    monitor = gpu_monitor.GpuMonitor(memory)
    monitor.watch(0, 0, UUID)
    assert nvml.lost.wait(60)
    wait_for(lambda: memory.gpu_known[0] == 0)
    assert memory.gpu_memory_total[0] == 16 << 30  # it had some before
    assert gpu_monitor.figures(memory) == []
    close(monitor)


def test_a_driver_that_hangs_does_not_hold_up_the_end(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, asked, answers = Nvml(), threading.Event(), threading.Event()

    def hang(_: str) -> None:
        asked.set()
        answers.wait()
        raise Nvml.NVMLError("Timeout")

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", hang)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monitor = gpu_monitor.GpuMonitor(memory)
    monitor.watch(0, 0, UUID)
    assert asked.wait(60)
    closing = threading.Thread(target=monitor.close)
    closing.start()
    closing.join(60)
    is_closed = not closing.is_alive()
    answers.set()
    close(monitor)
    assert is_closed


@pytest.mark.parametrize("nvml", [None, Nvml(driver=False)])
def test_without_nvml_there_are_no_figures(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monitor = gpu_monitor.GpuMonitor(memory)
    monitor.watch(0, 0, UUID)
    close(monitor)
    assert gpu_monitor.figures(memory) == []


def tell(target: Any, value: int) -> int:
    """Writes what the driver returns by reference; the call is a success."""
    target._obj.value = value
    return 0


class Driver:
    """A stand-in for NVIDIA's driver with one GPU of 1 GiB; its `cuInit` returns `code`."""

    def __init__(self, code: int = 0) -> None:
        self.cuInit = lambda _: code
        self.cuDeviceGetCount = lambda count: tell(count, 1)
        self.cuDeviceGet = tell
        self.cuDeviceTotalMem_v2 = lambda total, _: tell(total, 1 << 30)

    def cuDeviceGetUuid(self, uuid: Any, _: object) -> int:  # noqa: N802 the driver's
        uuid._obj[15] = 1
        return 0


def test_the_driver_tells_memory_and_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    assert cuda_driver.total_memory(0) == 1 << 30
    assert cuda_driver.device_uuid(0) == UUID
    with pytest.raises(ConfigurationError, match="there is no GPU 1: the NVIDIA driver finds 1"):
        cuda_driver.device_uuid(1)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(code=100))
    with pytest.raises(ConfigurationError, match="does not start: CUDA error 100"):
        cuda_driver.total_memory(0)

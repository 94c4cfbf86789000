"""What a worker reports when it has loaded and measured its model; the first one's is the engine's."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from serving.backends.base import BackendInfo


@dataclass
class Profile:
    """What warm-up measured."""

    batch_ms: dict[int, float]
    """Milliseconds of each batch size of the first signature, ascending; of items of a medium length."""

    batch_cap: int
    """Largest batch of the first signature that pays."""

    max_batch_elements: list[int]
    """Largest batch of each signature that pays where sizes vary, in elements of the largest input."""

    call_overhead_elements: list[int]
    """Elements of each signature that are computed in the time that a call takes by itself; where the
    signature limits its batches, so many that any of their items may be padded."""

    largest_ms: float
    """Milliseconds of the largest item that its limits allow; 0 where sizes do not vary."""


def unmeasured() -> Profile:
    """Returns what a worker reports that relies on what the first one has measured."""
    return Profile({}, 0, [], [], 0.0)


@dataclass(kw_only=True)
class WorkerReport(Profile):
    """Report of a worker, and what the supervisor adds; it travels between processes as JSON."""

    info: BackendInfo
    single_request_threads: int | None = None
    """Threads for a request that is alone in the service; None: no others than for batches."""

    gpu_uuid: str | None = None
    schemas: dict[str, Any] = field(default_factory=dict)
    """JSON schemas and example that the model itself declares, see `DeclaredBackend`."""

    web_processes: int = 1
    """Web processes that use the engine."""

    web_processes_reason: str | None = None
    """Why `auto` chose this number."""

    @property
    def device_type(self) -> str:
        """Returns `cpu` or `cuda`; all workers of an engine have the same."""
        return self.info.device.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        """Whether the workers compute on a GPU."""
        return self.device_type != "cpu"

    @property
    def slowest_ms(self) -> float:
        """Milliseconds of the slowest measured batch or item."""
        return max(*self.batch_ms.values(), self.largest_ms)


REPORT = TypeAdapter(WorkerReport)

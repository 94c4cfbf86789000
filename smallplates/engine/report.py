"""A worker's report after loading and measuring its model; the first report counts for the engine."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from smallplates.engine.backend import BackendInfo


@dataclass
class Profile:
    """Measurements from warm-up."""

    batch_ms: dict[int, float] = field(default_factory=dict)
    """Batch size, ascending, -> milliseconds; first signature, items of medium length."""

    batch_cap: int = 0
    """Batch size of the first signature beyond which throughput hardly grows."""

    max_batch_elements: list[int] = field(default_factory=list)
    """Largest worthwhile batch of each signature if sizes vary, in elements of the largest input."""

    largest_ms: float = 0.0
    """Milliseconds for the largest item that the limits allow; 0 if sizes do not vary."""


@dataclass(kw_only=True)
class WorkerReport(Profile):
    """Report of a worker, completed by the supervisor; passed between processes as JSON."""

    info: BackendInfo
    workers: int = 1
    """Workers that compute at a time; any others stand by."""

    threads: int = 1
    """Threads of each worker."""

    layout_reason: str | None = None
    """What was measured to choose these numbers; None if they follow from the settings."""

    measured_at: str | None = None
    """When an earlier start made the measurements that this one reuses; None if it measured itself."""

    single_request_threads: int | None = None
    """Threads for a request that is alone in the service; None: as many as for batches."""

    gpu_uuid: str | None = None
    schemas: dict[str, Any] = field(default_factory=dict)
    """JSON schemas and example that the model itself declares; see `DeclaredBackend`."""

    load_s: float = 0.0
    """Seconds from the start of the engine until its workers were ready."""

    web_processes: int = 1
    """Web processes that use the engine."""

    web_processes_reason: str | None = None
    """Why `auto` chose this number."""

    @property
    def device_type(self) -> str:
        """`cpu` or `cuda`; the same for all workers of an engine."""
        return self.info.device.partition(":")[0]

    @property
    def on_gpu(self) -> bool:
        """Whether the workers compute on a GPU."""
        return self.device_type != "cpu"

    @property
    def slowest_ms(self) -> float:
        """Milliseconds of the slowest measured batch or item."""
        return max(*self.batch_ms.values(), self.largest_ms)


PROFILE = TypeAdapter(Profile)
REPORT = TypeAdapter(WorkerReport)

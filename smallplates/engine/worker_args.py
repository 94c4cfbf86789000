"""Messages between the supervisor and a worker process: the start arguments and the commands."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

from smallplates.engine.memory import SlotLayout

SERVE = b"s"
"""Command on the control pipe: start taking batches."""

REFRESH_HEARTBEAT = b"?"
"""Command on the control pipe: update the heartbeat, to prove that the idle worker is alive."""


@dataclass(frozen=True)
class WorkerArgs:
    """Start arguments of a worker, passed as JSON on its standard input."""

    index: int
    parent: int
    """Process id of the supervisor."""

    backend: str
    """`module:class` of a `smallplates.engine.backend.Backend`."""

    model: str
    """The model's name, for the log."""

    model_dir: str
    version: str
    scratch: str | None
    """Folder that all workers of the engine share; None if no folder is writable."""

    gpu: int
    """Index of the CUDA device; unused on a CPU."""

    settings: dict[str, Any]
    """Settings of the model and of this worker, by name."""

    layout: SlotLayout
    memory_fd: int
    counts_fd: int
    work_pipes: tuple[tuple[int, int], tuple[int, int]]
    """Both ends of the work pipes, interactive and bulk: a worker puts back what it leaves to others."""

    done_fds: tuple[int, ...]
    """Write ends of the done pipes, one for each web process."""

    lifeline_fd: int
    """Read end of a pipe to which nobody writes; its writer is the supervisor's process alone."""

    epoll_fd: int | None = None
    """Descriptor of this worker's `worker.queue.exclusive_epoll`."""

    control_fd: int = -1
    status_fd: int = -1

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the worker inherits."""
        own = (self.memory_fd, self.counts_fd, self.lifeline_fd, self.control_fd, self.status_fd)
        both = (*own, *chain(*self.work_pipes), *self.done_fds)
        return both if self.epoll_fd is None else (*both, self.epoll_fd)

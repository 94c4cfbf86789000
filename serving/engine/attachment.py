"""How a web process is tied to an engine; made by the supervisor, used by `client.py`."""

from dataclasses import dataclass

from serving.engine.memory import Geometry


@dataclass(frozen=True)
class Attachment:
    """What a web process needs of an engine; descriptors are valid in the process that has it."""

    web: int
    geometry: Geometry
    memory_fd: int
    work_fds: tuple[int, int]
    """Ends to write: interactive, bulk."""

    done_fd: int
    """The end to read."""

    kick_fd: int
    """The end to write: asks the supervisor to look after its workers."""

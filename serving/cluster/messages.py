"""JSON messages between the parent and each of its web processes.

To a web process: `engine` (a model's engine with its descriptors), `out_of_service` (a model without an
engine, and why), `accept` (connections may be accepted from now on), `changed` (the reply to `load` or
`unload`) and `ping` (which the event loop answers with `connections`). From a web process: `ready`,
`load`, `unload`, `released` and `connections` (how many are open).
"""

import json
import socket
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from serving.engine.memory import EngineFds, SlotLayout
from serving.engine.report import REPORT, WorkerReport
from serving.model import Model

LAYOUT = TypeAdapter(SlotLayout)
MAX_MESSAGE = 65536
MAX_FDS = 8


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets that preserve message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, kind: str, **fields: Any) -> None:
    """Sends a message without descriptors. Raises OSError."""
    sock.send(json.dumps({"type": kind, **fields}).encode())


def identity(model: Model) -> dict[str, str]:
    """Returns what another process needs to read the model."""
    name, version = model.description.name, model.description.version
    return {"model": name, "version": version, "path": str(model.path)}


def send_engine(
    sock: socket.socket, key: int, model: Model, fds: EngineFds, report: WorkerReport
) -> None:
    """Sends an engine to a web process, descriptors included. Raises OSError."""
    message = {
        "type": "engine",
        "key": key,
        **identity(model),
        "frontend": fds.frontend,
        "layout": asdict(fds.layout),
        "report": REPORT.dump_python(report, mode="json"),
    }
    numbers = [fds.memory_fd, fds.counts_fd, *fds.work_fds, fds.done_fd, fds.wakeup_fd]
    socket.send_fds(sock, [json.dumps(message).encode()], numbers)


def engine_fds(message: dict[str, Any], numbers: list[int]) -> EngineFds:
    """Returns the descriptors and sizes that `send_engine` sent; `numbers` are received descriptors."""
    memory_fd, counts_fd, interactive_fd, bulk_fd, done_fd, wakeup_fd = numbers
    return EngineFds(
        frontend=message["frontend"],
        layout=LAYOUT.validate_python(message["layout"]),
        memory_fd=memory_fd,
        counts_fd=counts_fd,
        work_fds=(interactive_fd, bulk_fd),
        done_fd=done_fd,
        wakeup_fd=wakeup_fd,
    )

"""JSON messages between the parent and each of its web processes.

To a web process: `prepare` (an engine with its descriptors), `serve`, `discard`, `withdraw` and `begin`
(it knows all that is in service), `accept` (connections may be accepted from now on) and `ping` (which
the event loop answers with `connections`). From a web process: `ready`, `load`, `unload`, `released` and
`connections` (how many are open). The first five, `load` and `unload` are calls, which the other end
answers with `done`; see `Calls`.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from smallplates.engine.memory import EngineFds, SlotLayout, anonymous_file
from smallplates.engine.report import REPORT
from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.supervision.registry import EngineHandle

Send = Callable[..., None]
"""Sends a message; takes its kind, and its fields by name."""

LAYOUT = TypeAdapter(SlotLayout)
MAX_MESSAGE = 65536
"""Size in bytes up to which a message goes through the socket; larger ones go in a file."""

RETRY_S = 0.1
MAX_FDS = 8
MAX_REASON = 4000
"""Characters of an error that always fit into a message."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets that preserve message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, kind: str, fds: Sequence[int] = (), **fields: Any) -> None:
    """Sends a message, with descriptors. Raises OSError."""
    data = json.dumps({"type": kind, **fields}).encode()
    if len(data) <= MAX_MESSAGE:
        socket.send_fds(sock, [data], fds)
        return
    file = anonymous_file(len(data))
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(data)
        head = {"type": kind, "id": fields.get("id"), "key": fields.get("key"), "bytes": len(data)}
        socket.send_fds(sock, [json.dumps(head).encode()], [*fds, file])
    finally:
        os.close(file)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns a message and its descriptors; None if the other end has closed.

    If this process has no room for the descriptors, it returns type, `id`, `key`, and `is_cut`. Raises
    BlockingIOError if there is no message, and OSError.
    """
    data, fds, flags, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_FDS)
    if not data:
        return None
    message: dict[str, Any] = json.loads(data)
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        return {**message, "is_cut": True}, []
    if "bytes" in message:
        file = fds.pop()
        with contextlib.closing(os.fdopen(file, "rb")):
            message = json.loads(os.pread(file, message["bytes"], 0))
    return message, fds


class Calls:
    """Calls of the process at the other end of a socket that it has not answered yet."""

    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._numbers = itertools.count()

    async def make(self, send: Send, kind: str, **fields: Any) -> None:
        """Returns when the call is done. Raises ConfigurationError if it failed there.

        Also raises what `send` raises.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            send(kind, id=number, **fields)
            error = await answer
        finally:
            del self._answers[number]
        if error is not None:
            raise ConfigurationError(error)

    def on_done(self, number: int, error: str | None) -> None:
        """Ends the call with this number; `error` says why it failed."""
        answer = self._answers.get(number)  # none if its caller is gone
        if answer is not None and not answer.done():
            answer.set_result(error)

    def end(self, error: str | None) -> None:
        """Ends all calls."""
        for number in list(self._answers):
            self.on_done(number, error)


class Outbox:
    """Sends messages to a process that may be busy; they wait until it has read the ones before."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message, now or later; it is lost if the process has died."""
        self._waiting.append((kind, fields))
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._sock)
        while self._waiting:
            kind, fields = self._waiting[0]
            try:
                send(self._sock, kind, **fields)
            except BlockingIOError:
                loop.add_writer(self._sock, self._flush)
                return
            except ConnectionError:
                self._waiting.clear()
                return
            except OSError as error:  # no memory or descriptor, perhaps only for a while
                logger().error("a message cannot be sent", kind=kind, reason=str(error))
                loop.call_later(RETRY_S, self._flush)
                return
            self._waiting.popleft()


async def answer(send: Send, number: int, work: Awaitable[None]) -> None:
    """Does the work of a call, and says so."""
    error = None
    try:
        await work
    except ConfigurationError as reason:
        error = str(reason)[:MAX_REASON]
    except Exception:  # a bug must not leave the caller waiting, nor end the task that answers calls
        logger().exception("a change failed")
        error = "an unexpected error, which is in the log"
    send("done", id=number, error=error)


def identity(model: Model) -> dict[str, str]:
    """Returns what another process needs to read the model."""
    name, version = model.description.name, model.description.version
    return {"model": name, "version": version, "path": str(model.path)}


def engine_fields(handle: EngineHandle) -> dict[str, Any]:
    """Returns the fields of `prepare`, descriptors included as `fds`."""
    fds = handle.fds
    return {
        "key": handle.key,
        **identity(handle.model),
        "web_process": fds.web_process,
        "layout": asdict(fds.layout),
        "report": REPORT.dump_python(handle.report, mode="json"),
        "fds": [fds.memory_fd, fds.counts_fd, *fds.work_fds, fds.done_fd, fds.wakeup_fd],
    }


def engine_fds(message: dict[str, Any], numbers: list[int]) -> EngineFds:
    """Returns the descriptors and sizes of `prepare`; `numbers` are received descriptors."""
    memory, counts, interactive, bulk, done, wakeup = numbers
    layout = LAYOUT.validate_python(message["layout"])
    return EngineFds(message["web_process"], layout, memory, counts, (interactive, bulk), done, wakeup)

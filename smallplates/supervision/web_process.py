"""A web process as the parent sees it."""

import asyncio
import contextlib
import os
import socket
import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.supervision import messages
from smallplates.supervision.registry import EngineHandle
from smallplates.system import cpus, python

MAX_UNANSWERED = 5  # counted, not timed: a pause of all processes leaves at most one unanswered
MAX_OF_A_START = 24  # it answers when its event loop runs, before it is ready
END_S = 10.0


@dataclass
class WebProcess:
    """A web process and the parent's end of the socket to it; a `Member` of the registry."""

    index: int
    popen: subprocess.Popen[bytes]
    sock: socket.socket
    ready: bool = False
    connections: int = 0  # number of open HTTP connections, as last reported
    unanswered: int = 0  # number of pings since its last reply
    cpu_s: float = 0.0  # CPU time that it has used; known when it has ended
    calls: messages.Calls = field(default_factory=messages.Calls)

    @classmethod
    def start(
        cls, index: int, count: int, package: str, listener: socket.socket, metrics_folder: Path
    ) -> "WebProcess":
        """Starts `web/process.py` as one of `count` web processes. Raises OSError."""
        ours, theirs = messages.pair()
        numbers = (os.getpid(), theirs.fileno(), listener.fileno())
        with theirs:
            try:
                popen = subprocess.Popen(  # noqa: S603 our own module
                    python.command("smallplates.web.process", package, *map(str, numbers)),
                    pass_fds=numbers[1:],
                    env=python.environment()
                    | {"PROMETHEUS_MULTIPROC_DIR": str(metrics_folder)}
                    | {"SERVING_WEB_PROCESSES": str(count)},
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(index, popen, ours)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; it is lost if the process has died or does not read its messages."""
        with contextlib.suppress(OSError):
            messages.send(self.sock, kind, **fields)

    async def prepare(self, handle: EngineHandle) -> None:
        """See `Member`."""
        try:
            await self._call("prepare", **messages.engine_fields(handle))
        except OSError as error:
            handle.release()
            raise ConfigurationError(f"a web process cannot be given the model: {error}") from error

    async def serve(self, key: int) -> None:
        """See `Member`."""
        await self._change("serve", key=key)

    async def discard(self, key: int) -> None:
        """See `Member`."""
        await self._change("discard", key=key)

    async def withdraw(self, name: str, reason: str) -> None:
        """See `Member`."""
        await self._change("withdraw", model=name, reason=reason)

    async def begin(self) -> None:
        """Tells the process that it knows all that is in service, so it may answer requests."""
        await self._change("begin")

    async def _change(self, kind: str, **fields: Any) -> None:
        """Returns when the process has made a change that it needs to know, or has died.

        Raises ConfigurationError.
        """
        try:
            await self._call(kind, **fields)
        except OSError:
            await self._end()

    async def _call(self, kind: str, **fields: Any) -> None:
        """Returns when the process has done what a message says, or has died.

        Raises ConfigurationError, and OSError if there is no memory or descriptor for the message.
        """
        try:
            await self.calls.make(partial(messages.send, self.sock), kind, **fields)
        except BlockingIOError:  # it has stopped reading messages
            await self._end()
        except ConnectionError:
            pass  # it has died

    async def _end(self) -> None:
        """Ends the process: it cannot be told what it needs to know, or has stopped reading messages."""
        self.kill()
        await asyncio.to_thread(self.popen.wait)

    async def exit_code(self) -> int:
        """Returns the exit code of the process, which has closed its socket; kills it if it stays."""
        ended = asyncio.get_running_loop().run_in_executor(None, self._wait)
        await asyncio.wait([ended], timeout=END_S)
        if not ended.done():
            self.kill()
        return await ended

    def _wait(self) -> int:
        """Waits for the end, and notes the CPU time; for a thread."""
        with contextlib.suppress(OSError):  # it was waited for when it was killed
            os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
            self.cpu_s = cpus.used_s(self.popen.pid)
        return self.popen.wait()

    def ping(self, most: int) -> None:
        """Checks that the event loop runs; kills the process if `most` pings are unanswered."""
        if self.unanswered >= most:
            self.kill()
            return
        self.unanswered += 1
        self.send("ping")

    def kill(self) -> None:
        """Kills the process because its event loop does not run."""
        logger().error("a web process does not answer", web=self.index)
        self.ready = False
        self.popen.kill()

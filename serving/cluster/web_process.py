"""A web process as the parent sees it."""

import contextlib
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.cluster import messages
from serving.engine.supervisor import Supervisor
from serving.logging import logger
from serving.system import python

MOST_UNANSWERED = 5  # counted, not timed: a pause of all processes leaves at most one unanswered


@dataclass
class WebProcess:
    """A web process and the parent's end of the socket to it."""

    index: int
    popen: subprocess.Popen[bytes]
    sock: socket.socket
    ready: bool = False
    connections: int = 0
    """Number of open HTTP connections, as last reported."""

    unanswered: int = 0
    """Number of pings since its last reply."""

    @classmethod
    def start(
        cls, index: int, count: int, package: str, listener: socket.socket, metrics_folder: Path
    ) -> "WebProcess":
        """Starts `frontend.py` as one of `count` web processes. Raises OSError."""
        ours, theirs = messages.pair()
        numbers = (os.getpid(), theirs.fileno(), listener.fileno())
        with theirs:
            try:
                popen = subprocess.Popen(  # noqa: S603 our own module
                    python.command("serving.cluster.frontend", package, *map(str, numbers)),
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

    def send_engine(self, key: int, engine: Supervisor) -> None:
        """Sends a model's engine, to be used from now on."""
        fds = engine.engine_fds(self.index)
        try:
            messages.send_engine(self.sock, key, engine.model, fds, engine.report)
        except BlockingIOError:  # it has stopped reading messages, and needs this one
            self.kill()
        except OSError:  # it has died, which the parent notices on the socket
            pass

    def ping(self) -> None:
        """Checks that the event loop runs; kills the process after too many unanswered pings."""
        if self.unanswered >= MOST_UNANSWERED:
            self.kill()
            return
        self.unanswered += 1
        self.send("ping")

    def kill(self) -> None:
        """Kills the process because its event loop does not run."""
        logger().error("a web process does not answer", web=self.index)
        self.ready = False
        self.popen.kill()

"""What one request carries along: its id, its clock, and what the log and the metrics will say."""

import random
import re
import time
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request

from serving.engine.statistics import Timings

VALID_ID = re.compile(r"[!-~]{1,128}")
IDS = random.Random()


@dataclass
class RequestContext:
    """Made by `middleware.AccessLogMiddleware`, filled on the way."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    """time.monotonic() at the first byte."""

    code: str = "ok"
    """The error's code, for log and metrics."""

    stages: dict[str, float] = field(default_factory=dict)
    """Seconds per stage, for Server-Timing and the log."""

    @classmethod
    def of(cls, request: Request) -> "RequestContext":
        """The context of a request in progress."""
        context: RequestContext = request.scope["context"]
        return context

    def set_timings(self, stages: Timings) -> None:
        """What the classifier says of an answer."""
        self.stages = {"decode": stages.decode_s, "queue": stages.queue_s, "infer": stages.infer_s}

    @cached_property
    def milliseconds(self) -> dict[str, float]:
        """Every stage, and the total until this was asked first: when the answer's head was made."""
        stages = {**self.stages, "total": time.monotonic() - self.started}
        return {name: round(seconds * 1000, 2) for name, seconds in stages.items()}

    def server_timing(self) -> str:
        """The Server-Timing header: every stage and the total, in ms."""
        return ", ".join(f"{name};dur={ms:.2f}" for name, ms in self.milliseconds.items())


def choose_id(offered: bytes | None) -> str:
    """The client's X-Request-ID where it is harmless, else a new one."""
    text = (offered or b"").decode("latin-1")
    return text if VALID_ID.fullmatch(text) else f"{IDS.getrandbits(128):032x}"

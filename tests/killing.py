"""Kills this process at a chosen line, as a kernel may at any time."""

import os
import signal
import sys
from collections.abc import Container
from types import FrameType
from typing import Any


def after(lines: int, functions: Container[str]) -> None:
    """Makes this process kill itself after so many lines of functions with these names."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_name not in functions:
            return None
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)

"""Signals to programs while they start, and at their parent's death.

A program calls `end_on_signals` before it imports anything else, which takes a second: without a handler
SIGINT prints a traceback, and the kernel drops a SIGTERM to process 1 of a container.
"""

import os
import signal

PR_SET_PDEATHSIG = 1


def end_on_signals() -> None:
    """Makes SIGINT and SIGTERM end this process with exit code 0, until other handlers are set."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))


def set_pdeathsig(parent: int, number: signal.Signals) -> bool:
    """Asks the kernel for a signal when the thread that started this process ends.

    Returns whether the process `parent` still is this process's parent.
    """
    import ctypes  # not before `end_on_signals`

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def die_with_parent(parent: int) -> None:
    """Asks for SIGKILL at the parent's death. Raises SystemExit if it has died already."""
    if not set_pdeathsig(parent, signal.SIGKILL):
        raise SystemExit(1)

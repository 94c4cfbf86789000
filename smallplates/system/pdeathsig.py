"""Parent-death signal: kills a process when its parent dies.

Separate from `signals.py`, which must not import ctypes before its handlers are set.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def set_pdeathsig(parent: int, number: signal.Signals) -> bool:
    """Asks the kernel to send this process a signal when the thread that started it ends.

    Returns whether the process `parent` is still this process's parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies. Raises SystemExit if it already has."""
    if not set_pdeathsig(parent, signal.SIGKILL):
        raise SystemExit(1)

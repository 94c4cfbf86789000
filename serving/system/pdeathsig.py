"""Parent-death signal: ends a process when the parent that started it is gone.

Apart from `signals.py`, which must not import ctypes before its handlers are set.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def set_pdeathsig(parent: int, number: signal.Signals) -> bool:
    """Asks the kernel for a signal when the thread that started this process ends.

    Returns whether the process `parent` still is this process's parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def die_with_parent(parent: int) -> None:
    """Asks for SIGKILL at the parent's death. Raises SystemExit if it has died already."""
    if not set_pdeathsig(parent, signal.SIGKILL):
        raise SystemExit(1)

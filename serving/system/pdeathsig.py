"""The end of a parent process, heard of by its children; for `launch.py` and the engine's programs."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def signal_at_its_end(parent: int, number: signal.Signals) -> bool:
    """Asks the kernel for a signal when the parent's thread ends, where it can, on Linux.

    Returns whether `parent`, a process id, is still there.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent

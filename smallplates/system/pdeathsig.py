"""Ends processes when another one dies: a child by the parent-death signal, a process group by a pipe.

Separate from `signals.py`, which must not import ctypes before its handlers are set.
"""

import ctypes
import fcntl
import os
import select
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


def die_with_writer(pipe: int) -> bool:
    """Makes the kernel kill this process's group when the last writer of a pipe closes it, or dies.

    `pipe` is an inherited reader, and nobody may write to it. The group has the processes that a
    Python class starts, which know nothing of this one's parent. The parent-death signal must not be
    set: it could end this process before the pipe is closed, and the kernel would forget the group.
    Returns whether the kernel supports this. Raises SystemExit if the last writer has already gone.
    """
    try:
        # a description of our own: each can signal only one group
        reader = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    except OSError:  # not Linux's own kernel, or no /proc
        return False
    if select.select([reader], [], [], 0)[0]:
        raise SystemExit(1)
    return True

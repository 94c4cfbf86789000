"""Runs a program and, at its end, ends all its descendants: `python -m benchmarks.keeper PROGRAM ...`.

Servers start processes that start processes; some daemonise, some leave their children behind. The
kernel makes this process the parent of such orphans (`PR_SET_CHILD_SUBREAPER`), so that it finds them.
SIGTERM is passed on to the program. When the program has ended, its remaining descendants get SIGTERM
and then SIGKILL. The end of the parent process (`benchmarks.running`) counts as SIGTERM.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PROGRAM_S = 20
REST_S = 5


class Stop(Exception):  # noqa: N818 not an error
    """Raised in the main thread by SIGTERM."""


def on_signal(_number: int, _frame: FrameType | None) -> None:
    """Raises Stop for the first signal; ignores all further ones."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop


def adopt_orphans() -> None:
    """Makes this process the parent of orphans below it; its own parent's end sends it SIGTERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_CHILD_SUBREAPER, 1), (PR_SET_PDEATHSIG, signal.SIGTERM)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def end(program: subprocess.Popen[bytes]) -> None:
    """Ends the program with SIGTERM, then its descendants; kills what does not end in time."""
    if program.poll() is None:
        program.terminate()
        try:
            program.wait(PROGRAM_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
    for stop in (psutil.Process.terminate, psutil.Process.kill, psutil.Process.kill):
        rest = psutil.Process().children(recursive=True)
        for process in rest:
            try:
                stop(process)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(rest, REST_S)


def main(command: list[str]) -> int:
    """Returns the program's exit code; 0 when it was asked to stop."""
    parent = os.getppid()
    adopt_orphans()
    signal.signal(signal.SIGTERM, on_signal)
    program = subprocess.Popen(command)  # noqa: S603 what the benchmark runs
    try:
        if os.getppid() != parent:  # it ended before it could be watched
            return 0
        return program.wait()
    except Stop:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

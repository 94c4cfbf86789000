"""Runs a program and, at its end, ends all its descendants: `python -m benchmarks.keeper PROGRAM ...`.

Servers start processes that start processes; some daemonise, some leave their children behind. The
kernel makes this process the parent of such orphans (`PR_SET_CHILD_SUBREAPER`), so that it finds them.
SIGTERM is passed on to the program. When the program has ended, its remaining descendants get SIGTERM
and then SIGKILL. The end of the parent process (`benchmarks.running`) counts as SIGTERM.

The signal's handler only notes it: an exception raised from a handler can come before the program is
known, or while its end is handled, and would leave the descendants running.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil

PR_SET_CHILD_SUBREAPER = 36
PROGRAM_S = 20
REST_S = 5
POLL_S = 0.05


def adopt_orphans() -> None:
    """Makes this process the parent of orphans below it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
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
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: signals.append(number))
    adopt_orphans()
    program = subprocess.Popen(command)  # noqa: S603 what the benchmark runs
    while program.poll() is None and not signals and os.getppid() == parent:
        time.sleep(POLL_S)
    code = program.returncode
    end(program)
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

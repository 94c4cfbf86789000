"""Signals that end a program, also during its start; imported before anything else.

Imports take a second, so a program calls `end_on_signals` before them: without a handler, SIGINT would
print a traceback, and the kernel would drop a SIGTERM to process 1 of a container.

A process inherits ignored and blocked signals from the one that started it. While SIGCHLD is ignored,
nobody learns how a child has ended, so a killed worker would look like one that fails.
"""

import os
import signal


def ending_signals() -> list[signal.Signals]:
    """Returns the signals that end a program: SIGHUP, too, which a closed terminal sends, but not if
    `nohup` has made this process ignore it.
    """
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if stays else [signal.SIGHUP])]


def end_on_signals() -> None:
    """Makes the ending signals end this process with exit code 0 until other handlers are set.

    Undoes what another program may have set for all that it starts.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in ending_signals():
        signal.signal(number, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

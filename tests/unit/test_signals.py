"""`smallplates.system.signals`: what a process does with signals, whatever started it."""

import sys

from tests import servers

STARTED = """
import os, signal, subprocess
from smallplates.system.signals import end_on_signals

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
end_on_signals()
print(subprocess.call(["sh", "-c", "exit 3"]), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""

HANGUP = """
import os, signal, sys
from smallplates.system.signals import end_on_signals

signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1:] else signal.SIG_DFL)
end_on_signals()
os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
"""


def test_signals_that_another_program_has_ignored_or_blocked() -> None:
    process = servers.run(sys.executable, "-c", STARTED)
    assert (process.returncode, process.stdout, process.stderr) == (0, "3\n", "")


def test_a_closed_terminal_ends_a_program_without_nohup() -> None:
    ended, stays = (servers.run(sys.executable, "-c", HANGUP, *nohup) for nohup in ([], ["nohup"]))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert (stays.returncode, stays.stdout) == (0, "goes on\n")
